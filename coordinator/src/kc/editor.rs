//! The user's editor. In: a text, and why the last one was refused. Out: the text as the user left it, or none when nothing changed.

use std::{env, io::Write as _, process::Command};

use super::answer::{Edit, Edited};

/// Begins the lines that this client adds; they are taken out again.
const OURS: &str = "#| ";

/// Lets the user edit.
///
/// # Errors
/// When there is no room for the file, or the editor fails.
pub fn edit(edit: &Edit) -> Result<Option<Edited>, String> {
    let before = with_comments(edit);
    let mut file = tempfile::Builder::new()
        .prefix("kc-edit-")
        .suffix(".yaml")
        .tempfile()
        .map_err(|cause| format!("cannot make a file to edit: {cause}"))?;
    file.write_all(before.as_bytes())
        .map_err(|cause| format!("cannot write {}: {cause}", file.path().display()))?;
    let chosen = ["KC_EDITOR", "EDITOR"]
        .iter()
        .find_map(|name| env::var(name).ok().filter(|value| !value.trim().is_empty()));
    let chosen = chosen.unwrap_or_else(|| "vi".to_owned());
    let mut words = chosen.split_whitespace();
    let status = Command::new(words.next().unwrap_or("vi"))
        .args(words)
        .arg(file.path())
        .status()
        .map_err(|cause| format!("cannot run the editor {chosen:?}: {cause}; set KC_EDITOR"))?;
    if !status.success() {
        return Err(format!("the editor {chosen:?} failed: {status}"));
    }
    // Editors may put a new file in the place of the old one, so it is read by its name.
    let after = std::fs::read_to_string(file.path())
        .map_err(|cause| format!("cannot read the edited file: {cause}"))?;
    let empty = after.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'));
    if after == before || empty {
        return Ok(None);
    }
    Ok(Some(Edited {
        kind: edit.kind.clone(),
        resource_id: edit.resource_id.clone(),
        content: without_ours(&after),
    }))
}

fn without_ours(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with(OURS)).map(|line| format!("{line}\n")).collect()
}

fn with_comments(edit: &Edit) -> String {
    let mut text = format!(
        "{OURS}Change it, save and close the editor. An empty file or no change leaves all as it is.\n"
    );
    for line in edit.error.lines() {
        text.push_str(&format!("{OURS}ERROR: {line}\n"));
    }
    text + &without_ours(&edit.content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_of_ours_come_and_go() {
        let edit = Edit {
            content: "#| old\na: 1\n# mine\n".to_owned(),
            error: "one\ntwo".to_owned(),
            ..Edit::default()
        };
        let shown = with_comments(&edit);
        assert!(
            shown.contains("#| ERROR: one\n#| ERROR: two\na: 1\n# mine\n") && !shown.contains("old"),
            "{shown}"
        );
        assert_eq!(without_ours(&shown), "a: 1\n# mine\n");
    }
}
