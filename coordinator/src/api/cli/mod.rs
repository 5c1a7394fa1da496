//! The command line: `kc` sends its arguments here and obeys the answer. In: arguments, file contents, an edited text, or a change to
//! wait for. Out: what to print and what to do next. One file a verb. Called by the door.

mod answer;
mod apply;
mod args;
mod columns;
mod delete;
mod describe;
mod edit;
mod events;
mod explain;
mod get;
mod help;
mod host;
mod local;
mod lookup;
mod manifest;
mod operator;
mod plan;
mod rows;
mod table;
mod types;
mod until;
mod wait;
mod watch;

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::{StatusCode, header};
use serde::Deserialize;

use super::{
    Api, auth, door,
    errors::{Problem, Trouble},
    family,
};
use answer::{Answer, EditApply, Failure, Retry};
use args::Verb;

pub use answer::refuse;

/// The beginning of the `User-Agent` of our own client, which goes on waiting after it has sent a file.
pub const OUR_CLIENT: &str = "shardplane-kc/";

/// What `kc` posts.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Post {
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    retry_params: Option<Retry>,
    #[serde(default)]
    edit_apply: Option<EditApply>,
    #[serde(default)]
    file_content: Option<String>,
}

/// `POST /api/v1/cli`
pub async fn serve(State(api): State<Api>, request: Request) -> Response {
    let token = auth::bearer(request.headers()).map(str::to_owned);
    let ours = |value: &http::HeaderValue| value.to_str().is_ok_and(|value| value.starts_with(OUR_CLIENT));
    let waits_itself = request.headers().get(header::USER_AGENT).is_some_and(ours);
    let outcome = match door::body(&api, token.as_deref(), request).await.and_then(|body| {
        serde_json::from_slice::<Post>(&body)
            .map_err(|cause| Problem::bad_data(format!("the body is not what kc sends: {cause}")))
    }) {
        Ok(post) => run(&api, post, token.as_deref(), waits_itself).await,
        Err(problem) => Err(problem.into()),
    };
    match outcome {
        Ok(Answer { sign_out: true, .. }) => {
            family::json(StatusCode::RESET_CONTENT, &Answer::printed("Logged out.").node())
        }
        Ok(answer) => family::json(StatusCode::OK, &answer.node()),
        Err(Failure::Problem(problem)) => refuse(&problem),
        Err(Failure::Text(text)) => family::json(StatusCode::OK, &Answer::failed(&text).node()),
    }
}

async fn run(api: &Api, post: Post, token: Option<&str>, waits_itself: bool) -> Result<Answer, Failure> {
    let args = match args::parse(&post.args) {
        Ok(args) => args,
        Err(usage) => return Err(Failure::Text(usage)),
    };
    if let Some(answer) = local::answer(&args)? {
        return Ok(answer);
    }
    // Each verb asks for the scope it needs; being let in is enough to be told what is wrong with a command.
    let session = api.enter(token, &[]).await?;
    if let Some(retry) = &post.retry_params {
        return match retry.operation.as_str() {
            watch::WORD => watch::run(&session, &events::as_typed(&args), Some(retry), waits_itself),
            until::WORD => until::run(&session, &args, Some(retry)),
            _ => wait::again(&session, retry, &args),
        };
    }
    match args.verb {
        Verb::Get | Verb::Events if args.wait => {
            watch::run(&session, &events::as_typed(&args), None, waits_itself)
        }
        Verb::Get | Verb::Events => get::run(&session, &events::as_typed(&args)),
        Verb::Wait => until::run(&session, &args, None),
        Verb::Cancel => events::cancel(session, &args).await,
        Verb::Describe => describe::run(&session, &args),
        Verb::Explain => explain::run(&session, &args),
        Verb::Apply => apply::run(session, &args, post.file_content.as_deref(), waits_itself).await,
        Verb::Delete => delete::run(session, &args, post.file_content.as_deref(), waits_itself).await,
        Verb::Edit => edit::run(session, &args, post.edit_apply.as_ref()).await,
        Verb::Cordon | Verb::Uncordon | Verb::Drain => host::run(session, &args).await,
        Verb::Plan => plan::run(session, &args, post.file_content.as_deref()),
        Verb::Login => Ok(local::login(&session)),
        Verb::Help | Verb::ApiResources | Verb::Logout | Verb::Config | Verb::Version => {
            Err(Failure::Problem(Problem::new(
                Trouble::Internal,
                "this command should have been answered without a session",
            )))
        }
    }
}
