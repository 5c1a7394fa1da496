//! Commands that need nothing from the state: profiles, help, the list of types. In: the arguments. Out: the answer, or none when the
//! command is another one.

use shardplane_model::resource::Kind;

use super::{
    super::verbs::Session,
    answer::{Answer, Config, Failure},
    args::{Args, Verb},
    help, table,
    types::{self, OperatorType},
};

/// Answers a command that needs no session.
///
/// # Errors
/// Words of `config` that are not right.
pub fn answer(args: &Args) -> Result<Option<Answer>, Failure> {
    Ok(match args.verb {
        Verb::Help => Some(Answer::printed(help::TEXT)),
        Verb::Version => Some(Answer::printed(concat!("shardplane ", env!("CARGO_PKG_VERSION")))),
        Verb::ApiResources => Some(Answer::printed(api_resources())),
        Verb::Logout => Some(Answer { sign_out: true, ..Answer::default() }),
        Verb::Config => Some(Answer { config: Some(config(&args.words)?), ..Answer::default() }),
        Verb::Get
        | Verb::Describe
        | Verb::Explain
        | Verb::Apply
        | Verb::Edit
        | Verb::Delete
        | Verb::Cordon
        | Verb::Uncordon
        | Verb::Drain
        | Verb::Plan
        | Verb::Wait
        | Verb::Cancel
        | Verb::Events
        | Verb::Login => None,
    })
}

/// `kc login`: says whose token it is.
pub fn login(session: &Session) -> Answer {
    let scopes: Vec<&str> = session.caller.scopes.iter().map(|scope| scope.name()).collect();
    Answer::printed(format!(
        "Logged in. Token is valid.\nname: {}\nscopes: {}",
        session.caller.user.name,
        if scopes.is_empty() { "none".to_owned() } else { scopes.join(", ") }
    ))
}

fn config(words: &[String]) -> Result<Config, Failure> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Ok(match words.as_slice() {
        ["view"] => Config { action: "read", ..Config::default() },
        ["get-contexts"] => Config { action: "list", ..Config::default() },
        ["use-context", profile] => {
            Config { action: "use", profile: Some(profile_name(profile)?), ..Config::default() }
        }
        ["set-server", server] => {
            if !server.starts_with("http://") && !server.starts_with("https://") {
                return Err(Failure::Text(format!("{server:?} is not a server: write http://host:port")));
            }
            let server = server.trim_end_matches('/').to_owned();
            Config { action: "write", server: Some(server), ..Config::default() }
        }
        ["set-token", token] => {
            Config { action: "write", token: Some((*token).to_owned()), ..Config::default() }
        }
        _ => {
            let text = "kc config knows view, get-contexts, use-context <name>, set-server <url> and set-token <token>";
            return Err(Failure::Text(text.to_owned()));
        }
    })
}

/// A profile is a file of the client's: its name must not lead elsewhere.
fn profile_name(name: &str) -> Result<String, Failure> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
        return Err(Failure::Text(format!(
            "{name:?} cannot be the name of a context: use letters, digits, - and _"
        )));
    }
    Ok(name.to_owned())
}

fn api_resources() -> String {
    let row = |path: &str, aliases: Vec<&str>, kind: &str, group: &str, verbs: &str| {
        vec![path.to_owned(), aliases.join(","), kind.to_owned(), group.to_owned(), verbs.to_owned()]
    };
    let public = Kind::all().into_iter().map(|kind| {
        let aliases = types::aliases(kind).iter().copied().filter(|alias| *alias != kind.path()).collect();
        row(kind.path(), aliases, kind.name(), types::product(kind), "get,describe,apply,edit,delete")
    });
    let operator = OperatorType::ALL.into_iter().map(|kind| match kind.words() {
        [first, others @ ..] => row(first, others.to_vec(), "", "operator", kind.verbs()),
        [] => Vec::new(),
    });
    table::render(&["NAME", "ALIASES", "KIND", "GROUP", "VERBS"], public.chain(operator).collect())
}

#[cfg(test)]
mod tests {
    use super::{super::args, *};

    fn of(words: &str) -> Result<Option<Answer>, Failure> {
        answer(&args::parse(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).unwrap())
    }

    #[test]
    fn profiles_are_changed_by_the_client() {
        let config = |words: &str| of(words).unwrap().unwrap().config.unwrap();
        assert_eq!(config("config view").action, "read");
        assert_eq!(config("config set-server http://a:1/").server.as_deref(), Some("http://a:1"));
        assert_eq!(config("config use-context lab").profile.as_deref(), Some("lab"));
        for words in ["config", "config use-context ../x", "config set-server a:1", "config nope"] {
            assert!(of(words).is_err(), "{words}");
        }
    }

    #[test]
    fn every_type_is_listed_with_its_aliases() {
        let text = of("api-resources").unwrap().unwrap().stdout;
        assert!(
            text.contains("valkey-parameters-set") && text.contains("vk-paramset") && text.contains("host"),
            "{text}"
        );
        assert!(of("logout").unwrap().unwrap().sign_out);
        assert!(of("get vpc").unwrap().is_none());
    }
}
