//! `kc`, the thin client: it parses nothing, sends its arguments to the server and obeys the answer. In: arguments, `~/.kc`,
//! `KC_API_URL`, `KC_TOKEN`, `KC_PROFILE`. Out: what the server says to print, and its exit code. Called by `bin/kc.rs`.

mod answer;
mod editor;
mod http;
mod profile;
mod terminal;

use std::{path::Path, time::Duration};

use tokio::time::sleep;

use answer::{Answer, Ask};
use http::Server;
use profile::Profiles;

/// Between two looks at a change that the server is carrying out.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Runs one command and answers its exit code.
pub async fn run(args: Vec<String>) -> u8 {
    if matches!(args.first().map(String::as_str), Some("version" | "--version" | "-v")) {
        println!("kc {}", env!("CARGO_PKG_VERSION"));
        return 0;
    }
    match obey(args).await {
        Ok(code) => code,
        Err(text) => {
            eprintln!("error: {text}");
            1
        }
    }
}

async fn obey(args: Vec<String>) -> Result<u8, String> {
    let profiles = Profiles::of_this_user()?;
    let name = profiles.current();
    let profile = profiles.load(&name)?;
    let mut server = Server::new(&profile.server, profile.token)?;
    let mut reply = server.post(&Ask::first(&args)).await?;
    if reply.status == 401 {
        let token = terminal::token(&name)
            .ok_or_else(|| format!("{}\nset KC_TOKEN, or: kc config set-token <token>", reply.text()))?;
        server.set_token(token.clone());
        profiles.change(&name, None, Some(&token))?;
        reply = server.post(&Ask::first(&args)).await?;
        if reply.status == 401 {
            return Err("the server does not know this token either".to_owned());
        }
    }
    if reply.status == 205 {
        if terminal::confirm(&format!("Delete the saved token of profile {name:?}? [y/N] ")) {
            profiles.change(&name, None, Some(""))?;
        }
        return Ok(0);
    }
    let mut answer = reply.answer()?;
    let mut told = String::new();
    // What a server may ask for is finite: a file, then changes to wait for, or a text to edit until it is right.
    loop {
        if let (Some(retry), 0) = (&answer.retry_params, answer.rc) {
            // What is said while it goes on is said once for each new text; rows of a watch come each for itself.
            let news = if answer.stderr == told { "" } else { &answer.stderr };
            if !terminal::print(&answer.stdout, news)? {
                return Ok(0);
            }
            told.clone_from(&answer.stderr);
            let ask = Ask { retry_params: Some(retry.clone()), ..Ask::first(&args) };
            sleep(LOOK_AGAIN).await;
            answer = server.post(&ask).await?.answer()?;
        } else if let Some(file) = &answer.read_file {
            let content = terminal::read(&file.path)?;
            let ask = Ask { file_content: Some(content), ..Ask::first(&args) };
            answer = server.post(&ask).await?.answer()?;
        } else if let Some(edit) = &answer.edit {
            let Some(edited) = editor::edit(edit)? else {
                eprintln!("Edit cancelled, no changes made.");
                return Ok(u8::from(!edit.error.is_empty()));
            };
            let ask = Ask { edit_apply: Some(edited), ..Ask::first(&args) };
            answer = server.post(&ask).await?.answer()?;
        } else {
            break;
        }
    }
    finish(&answer, &profiles, &name)
}

fn finish(answer: &Answer, profiles: &Profiles, name: &str) -> Result<u8, String> {
    if let Some(file) = &answer.file {
        terminal::save(file)?;
    }
    if let Some(config) = &answer.config {
        profiles.obey(config, name)?;
    }
    terminal::print(&answer.stdout, &answer.stderr)?;
    Ok(u8::try_from(answer.rc).unwrap_or(1))
}

/// `~/` at the beginning of a path is the home of the user.
fn expand(path: &str) -> std::path::PathBuf {
    match (path.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => Path::new(&home).join(rest),
        _ => Path::new(path).to_owned(),
    }
}
