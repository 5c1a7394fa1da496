//! The arguments of a command. In: the words after `kc`. Out: a verb, its words and flags, or a text that says what is not right.

use super::super::rest::LONGEST_CORDON;

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// `get`, `ls`, `list`
    Get,
    /// `describe`
    Describe,
    /// `explain placement`
    Explain,
    /// `apply`
    Apply,
    /// `edit`
    Edit,
    /// `delete`, `rm`, `remove`
    Delete,
    /// `cordon`
    Cordon,
    /// `uncordon`
    Uncordon,
    /// `drain`
    Drain,
    /// `plan`
    Plan,
    /// `wait`
    Wait,
    /// `cancel`
    Cancel,
    /// `events`
    Events,
    /// `api-resources`
    ApiResources,
    /// `login`
    Login,
    /// `logout`
    Logout,
    /// `config …`
    Config,
    /// `help`
    Help,
    /// `version`, when a client does not answer it itself
    Version,
}

/// How to show what is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Output {
    /// Columns.
    #[default]
    Table,
    /// More columns.
    Wide,
    /// JSON.
    Json,
    /// YAML, which `apply` reads.
    Yaml,
}

/// A parsed command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Args {
    /// What to do.
    pub verb: Verb,
    /// Words that are not flags, without the verb.
    pub words: Vec<String>,
    /// `-n`, `--folder`
    pub folder: Option<String>,
    /// `-A`, `--all-folders`
    pub all_folders: bool,
    /// `-o`, `--output`
    pub output: Output,
    /// `-q`, `--quiet`
    pub quiet: bool,
    /// `-f`, `--filename`
    pub filename: Option<String>,
    /// `-w`, `--wait`
    pub wait: bool,
    /// `--force`
    pub force: bool,
    /// `--for`: how long, until what, or about what, as the verb says
    pub for_what: Option<String>,
    /// `--timeout`, in seconds
    pub timeout: Option<u32>,
    /// `--reason`
    pub reason: Option<String>,
}

fn verb(word: &str) -> Option<Verb> {
    Some(match word {
        "get" | "ls" | "list" => Verb::Get,
        "describe" => Verb::Describe,
        "explain" => Verb::Explain,
        "apply" => Verb::Apply,
        "edit" => Verb::Edit,
        "delete" | "rm" | "remove" => Verb::Delete,
        "cordon" => Verb::Cordon,
        "uncordon" => Verb::Uncordon,
        "drain" => Verb::Drain,
        "plan" => Verb::Plan,
        "wait" => Verb::Wait,
        "cancel" => Verb::Cancel,
        "events" => Verb::Events,
        "api-resources" => Verb::ApiResources,
        "login" => Verb::Login,
        "logout" => Verb::Logout,
        "config" => Verb::Config,
        "help" | "?" => Verb::Help,
        "version" => Verb::Version,
        _ => return None,
    })
}

/// Reads the arguments of a command.
///
/// # Errors
/// A text for people.
pub fn parse(given: &[String]) -> Result<Args, String> {
    let mut args = Args {
        verb: Verb::Help,
        words: Vec::new(),
        folder: None,
        all_folders: false,
        output: Output::Table,
        quiet: false,
        filename: None,
        wait: false,
        force: false,
        for_what: None,
        timeout: None,
        reason: None,
    };
    let mut help = false;
    let mut rest = given.iter().map(String::as_str);
    let mut only_words = false;
    while let Some(word) = rest.next() {
        if only_words || word == "-" || !word.starts_with('-') {
            args.words.push(word.to_owned());
        } else if word == "--" {
            only_words = true;
        } else if let Some(long) = word.strip_prefix("--") {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            args.flag(&format!("--{name}"), value, &mut rest, &mut help)?;
        } else {
            args.short(&word[1..], &mut rest, &mut help)?;
        }
    }
    args.take_verb(help)?;
    Ok(args)
}

impl Args {
    fn take_verb(&mut self, help: bool) -> Result<(), String> {
        let Some(first) = self.words.first().cloned() else { return Ok(()) };
        // `kc vpc ls` reads like `kc ls vpc`.
        let swapped = self.words.get(1).is_some_and(|second| verb(second) == Some(Verb::Get));
        self.verb = match verb(&first) {
            Some(verb) => {
                self.words.remove(0);
                verb
            }
            None if swapped => {
                self.words.remove(1);
                Verb::Get
            }
            None if first == "create" => {
                return Err("there is no create: write a manifest and use kc apply -f <file>".to_owned());
            }
            None => return Err(format!("there is no command {first:?}; kc help lists them")),
        };
        if help {
            self.verb = Verb::Help;
        }
        Ok(())
    }

    fn short<'a>(
        &mut self,
        letters: &str,
        rest: &mut impl Iterator<Item = &'a str>,
        help: &mut bool,
    ) -> Result<(), String> {
        let mut letters = letters.chars();
        while let Some(letter) = letters.next() {
            let name = format!("-{letter}");
            if takes_value(&name) {
                // The value may follow at once: -ojson, -o=json.
                let attached = letters.as_str();
                let attached = attached.strip_prefix('=').unwrap_or(attached);
                let value = (!letters.as_str().is_empty()).then_some(attached);
                return self.flag(&name, value, rest, help);
            }
            self.flag(&name, None, rest, help)?;
        }
        Ok(())
    }

    fn flag<'a>(
        &mut self,
        name: &str,
        value: Option<&str>,
        rest: &mut impl Iterator<Item = &'a str>,
        help: &mut bool,
    ) -> Result<(), String> {
        if takes_value(name) {
            let value =
                value.or_else(|| rest.next()).ok_or_else(|| format!("the flag {name} needs a value"))?;
            match name {
                "-n" | "--folder" => self.folder = Some(value.to_owned()),
                "--for" => self.for_what = Some(value.to_owned()),
                "--timeout" => self.timeout = Some(span(name, value)?),
                "--reason" => self.reason = Some(value.to_owned()),
                "-f" | "--filename" => self.filename = Some(value.to_owned()),
                _ => self.output = output(value)?,
            }
            return Ok(());
        }
        let on = match value {
            None | Some("true") => true,
            Some("false") => false,
            Some(other) => return Err(format!("the flag {name} is true or false, not {other:?}")),
        };
        match name {
            "-A" | "--all-folders" => self.all_folders = on,
            "-q" | "--quiet" => self.quiet = on,
            "-w" | "--wait" => self.wait = on,
            "--force" => self.force = on,
            "-h" | "--help" => *help = on,
            _ => return Err(format!("there is no flag {name}; kc help lists them")),
        }
        Ok(())
    }
}

fn takes_value(name: &str) -> bool {
    matches!(
        name,
        "-n" | "--folder" | "-o" | "--output" | "-f" | "--filename" | "--for" | "--timeout" | "--reason"
    )
}

/// A span such as `90s`, `30m`, `2h` or `1d`, in seconds.
///
/// # Errors
/// Says what the flag takes.
pub fn span(flag: &str, value: &str) -> Result<u32, String> {
    let wrong =
        || format!("{flag} {value:?}: write a whole number and s, m, h or d, for example 2h; at most 366d");
    let (number, unit) = value.split_at_checked(value.len().saturating_sub(1)).ok_or_else(wrong)?;
    let seconds: u32 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return Err(wrong()),
    };
    let number: u32 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(seconds).filter(|all| (1..=LONGEST_CORDON).contains(all)).ok_or_else(wrong)
}

fn output(value: &str) -> Result<Output, String> {
    Ok(match value {
        "table" => Output::Table,
        "wide" => Output::Wide,
        "json" => Output::Json,
        "yaml" => Output::Yaml,
        other => return Err(format!("-o {other:?}: there are table, wide, json and yaml")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &str) -> Result<Args, String> {
        parse(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn flags_stand_anywhere_and_in_every_form() {
        for words in [
            "get vpc x -n prod -o json -q",
            "-nprod get -qo=json vpc x",
            "get --folder=prod --output json vpc x --quiet",
        ] {
            let args = of(words).unwrap();
            assert_eq!(args.verb, Verb::Get, "{words}");
            assert_eq!(args.words, ["vpc", "x"], "{words}");
            assert_eq!(
                (args.folder.as_deref(), args.output, args.quiet),
                (Some("prod"), Output::Json, true),
                "{words}"
            );
        }
        let args = of("apply -f - --wait").unwrap();
        assert_eq!((args.verb, args.filename.as_deref(), args.wait), (Verb::Apply, Some("-"), true));
        let args = of("cordon h1 --for 2h --reason disks").unwrap();
        assert_eq!((args.for_what.as_deref(), args.reason.as_deref()), (Some("2h"), Some("disks")));
        assert_eq!(of("wait vk x --timeout 5m").unwrap().timeout, Some(300));
        assert!(of("drain h1 --force").unwrap().force);
        assert_eq!(of("get -Aq vpc").map(|a| (a.all_folders, a.quiet)), Ok((true, true)));
    }

    #[test]
    fn verbs_have_their_aliases_and_types_may_come_first() {
        for (words, verb) in
            [("ls vpc", Verb::Get), ("vpc ls", Verb::Get), ("rm vpc x", Verb::Delete), ("", Verb::Help)]
        {
            assert_eq!(of(words).unwrap().verb, verb, "{words}");
        }
        assert_eq!(of("vpc ls").unwrap().words, ["vpc"]);
        assert_eq!(of("get vpc --help").unwrap().verb, Verb::Help);
    }

    #[test]
    fn what_is_not_right_is_said() {
        for (words, part) in [
            ("frobnicate", "there is no command \"frobnicate\""),
            ("get vpc -o xml", "table, wide, json and yaml"),
            ("get vpc -o", "-o needs a value"),
            ("get vpc --nope", "no flag --nope"),
            ("get vpc -x", "no flag -x"),
            ("create vpc", "kc apply -f"),
            ("wait vk x --timeout soon", "for example 2h"),
            ("wait vk x --timeout 0h", "for example 2h"),
            ("wait vk x --timeout 367d", "at most 366d"),
            ("wait vk x --timeout é", "for example 2h"),
        ] {
            let refused = of(words).unwrap_err();
            assert!(refused.contains(part), "{words}: {refused}");
        }
    }
}
