//! Rules about the source tree. In: its files. Out: every place that breaks a rule, with the rule. Run by cargo.

use std::{collections::BTreeSet, fs, process::Command};

use shardplane_tree::{SourceFile, files, top};

/// The top level, dot files besides.
const TOP_LEVEL: [&str; 10] = [
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "agent",
    "coordinator",
    "deploy",
    "images",
    "proto",
    "tests",
];

/// Lines that one file may have.
const MOST_LINES: usize = 700;

/// Files that nobody writes by hand.
const GENERATED: [(&str, &str); 2] =
    [("Cargo.lock", "cargo writes it"), (".json", "golden answers, compared by the tests that write them")];

/// Names of engines. What is not an engine's room must work for every engine.
const ENGINE_WORDS: [&str; 4] = ["valkey", "postgres", "patroni", "citus"];

/// Where engines may be named, and why.
const ENGINE_PLACES: [(&str, &str); 10] = [
    ("coordinator/model/src/engine/", "the engine rooms of the coordinator"),
    ("coordinator/model/src/validate/", "parsing of the API: a message becomes a typed spec"),
    ("coordinator/model/src/view/", "the way back: a resource becomes a message"),
    ("coordinator/model/tests/", "tests make clusters of real engines"),
    ("coordinator/src/api/", "parsing of the API and the words of kc"),
    ("agent/tests/", "tests run real images"),
    ("images/", "the engine rooms of the guests"),
    ("proto/", "the messages of the API and of the engine rooms"),
    ("deploy/", "demo, samples and runbooks are for people with clusters"),
    ("tests/", "tests run real clusters"),
];

/// What the model may be built from; nothing with a clock, a socket, a runtime or randomness.
const MODEL_DEPENDENCIES: [&str; 8] =
    ["hex", "imbl", "prost", "serde", "serde_json", "shardplane-proto", "thiserror", "time"];

/// What must not come in behind those. imbl shuffles with a fixed seed by rand_core and rand_xoshiro, which draw nothing.
const MODEL_NEVER: [&str; 14] = [
    "async-std",
    "chrono",
    "fastrand",
    "getrandom",
    "hyper",
    "libc",
    "mio",
    "nix",
    "rand",
    "rustix",
    "socket2",
    "tokio",
    "tonic",
    "tracing",
];

/// All that breaks a rule, at once.
fn refuse(rule: &str, broken: Vec<String>) {
    assert!(broken.is_empty(), "{rule}\n  {}", broken.join("\n  "));
}

fn lines_with(file: &SourceFile, wrong: impl Fn(&str) -> bool) -> Vec<String> {
    let numbered = file.text.lines().enumerate().filter(|(_, line)| wrong(line));
    numbered.map(|(at, line)| format!("{}:{}: {}", file.path, at + 1, line.trim())).collect()
}

#[test]
fn the_top_level_is_as_agreed() {
    let found: BTreeSet<String> = fs::read_dir(top())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with('.') && name != "target")
        .collect();
    let agreed: BTreeSet<String> = TOP_LEVEL.iter().map(|name| (*name).to_owned()).collect();
    let odd = found.symmetric_difference(&agreed);
    let told = odd.map(|name| {
        format!("{name} {}", if found.contains(name) { "is one too many" } else { "is missing" })
    });
    refuse("the top level has exactly the agreed names", told.collect());
}

#[test]
fn no_file_is_too_long() {
    let long = files().unwrap().into_iter().filter(|file| {
        !GENERATED.iter().any(|(end, _)| file.path.ends_with(end)) && file.text.lines().count() > MOST_LINES
    });
    let told = long.map(|file| format!("{} has {} lines", file.path, file.text.lines().count()));
    refuse("a file has at most 700 lines; split it by what its parts decide", told.collect());
}

#[test]
fn engines_are_named_in_their_rooms_only() {
    let outside = files().unwrap().into_iter().filter(|file| {
        !file.is("md")
            && file.path != "Cargo.lock"
            && !ENGINE_PLACES.iter().any(|(place, _)| file.path.starts_with(place))
    });
    let told = outside.flat_map(|file| {
        lines_with(&file, |line| {
            let line = line.to_lowercase();
            ENGINE_WORDS.iter().any(|word| line.contains(word))
        })
    });
    refuse("what is not an engine's room names no engine", told.collect());
}

#[test]
fn the_places_where_engines_are_named_exist() {
    let all = files().unwrap();
    let unused =
        ENGINE_PLACES.iter().filter(|(place, _)| !all.iter().any(|file| file.path.starts_with(place)));
    refuse(
        "an exception that nothing needs is taken out",
        unused.map(|(place, why)| format!("{place} ({why})")).collect(),
    );
}

/// What a supervisor keeps to itself the coordinator refuses by name, with a reason: nobody finds out by a directive that does nothing.
#[test]
fn directives_that_the_supervisor_owns_are_forbidden_in_parameter_sets() {
    let text = |end: &str| files().unwrap().into_iter().find(|file| file.path.ends_with(end)).unwrap().text;
    let quoted = |text: &str| text.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let conf = text("images/supervisor/src/engine/valkey/conf.rs");
    let owned = conf.split_once("const OWNED").unwrap().1.split_once("];").unwrap().0;
    let model = text("coordinator/model/src/engine/valkey/directives.rs");
    let forbidden = quoted(model.split_once("pub const FORBIDDEN").unwrap().1);
    let known = |name: &String| {
        forbidden
            .iter()
            .any(|f| f == name || f.strip_suffix('*').is_some_and(|start| name.starts_with(start)))
    };
    let owned = quoted(owned);
    assert!(owned.len() > 20, "{owned:?}");
    refuse(
        "owned by the supervisor and not forbidden",
        owned.into_iter().filter(|name| !known(name)).collect(),
    );
}

fn cargo_tree(depth: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--locked", "--package", "shardplane-model", "--edges", "normal"])
        .args(["--prefix", "none", "--format", "{p}", "--depth", depth])
        .current_dir(top())
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("cargo prints UTF-8");
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "shardplane-model").map(str::to_owned).collect()
}

#[test]
fn the_model_is_pure() {
    let direct: BTreeSet<String> = cargo_tree("1");
    let odd = direct.iter().filter(|name| !MODEL_DEPENDENCIES.contains(&name.as_str()));
    refuse("the model depends only on crates that are listed here", odd.cloned().collect());
    let all = cargo_tree("99");
    assert!(all.len() > direct.len(), "cargo tree lists what is behind the direct dependencies");
    let odd = all.iter().filter(|name| MODEL_NEVER.contains(&name.as_str()));
    refuse(
        "nothing with a clock, a socket, a runtime or randomness stands behind the model",
        odd.cloned().collect(),
    );
}

#[test]
fn clocks_and_hash_maps_are_banned_from_the_model() {
    let banned = fs::read_to_string(top().join("coordinator/model/clippy.toml")).unwrap();
    let types = [
        "std::collections::HashMap",
        "std::collections::HashSet",
        "std::time::Instant",
        "std::time::SystemTime",
    ];
    let missing = types.iter().filter(|name| !banned.contains(&format!("\"{name}\"")));
    refuse("coordinator/model/clippy.toml bans these", missing.map(|name| (*name).to_owned()).collect());
    let allowed =
        files().unwrap().into_iter().filter(|file| file.path.starts_with("coordinator/model/src/")).flat_map(
            |file| {
                lines_with(&file, |line| {
                    line.contains("clippy::disallowed_types") || line.contains("clippy::disallowed_methods")
                })
            },
        );
    refuse("the model makes no exception from its bans", allowed.collect());
}

#[test]
fn every_rust_file_says_what_it_is_for() {
    let silent = files().unwrap().into_iter().filter(|file| file.is("rs") && !file.text.starts_with("//! "));
    refuse(
        "a Rust file starts with //!: what goes in, what comes out, who calls it",
        silent.map(|file| file.path).collect(),
    );
}

#[test]
fn nothing_is_left_for_later() {
    // Written in two parts, or this file would find itself.
    let words =
        [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("todo", "!"), concat!("unimplemented", "!")];
    let told = files()
        .unwrap()
        .into_iter()
        .flat_map(|file| lines_with(&file, |line| words.iter().any(|word| line.contains(word))));
    refuse("what is not done now is an issue, not a mark in the source", told.collect());
}

#[test]
fn no_path_of_one_machine() {
    let paths = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
    let names_one = |line: &str| {
        let absolute = paths.iter().any(|path| {
            line.match_indices(path).any(|(at, _)| {
                // What follows a word, a placeholder or a dot is the middle of some other path.
                !line[..at].ends_with(|before: char| before.is_alphanumeric() || "_-.}$)>*".contains(before))
            })
        });
        absolute || line.contains(concat!("/tm", "p/w/"))
    };
    let told = files().unwrap().into_iter().flat_map(|file| lines_with(&file, names_one));
    refuse("the source names no path of the machine it was written on", told.collect());
}

#[test]
fn every_script_stops_at_the_first_error() {
    let loose = files()
        .unwrap()
        .into_iter()
        .filter(|file| file.text.starts_with("#!/bin/bash") && !file.text.contains("\nset -euo pipefail\n"));
    refuse("a bash script sets -euo pipefail", loose.map(|file| file.path).collect());
}

/// Whether tests find them is for tests/plant to say; that they are bugs of this tree can be seen at once.
#[test]
fn planted_bugs_still_apply() {
    let bugs: Vec<_> = files().unwrap().into_iter().filter(|f| f.path.starts_with("tests/bugs/")).collect();
    assert!(bugs.len() >= 15, "{} planted bugs", bugs.len());
    let stale = bugs.into_iter().filter_map(|bug| {
        let mut apply = Command::new("git");
        let said = apply.args(["apply", "--check", &bug.path]).current_dir(top()).output().unwrap();
        (!said.status.success()).then(|| format!("{}: {}", bug.path, String::from_utf8_lossy(&said.stderr)))
    });
    refuse("a planted bug follows the code that it breaks", stale.collect());
}
