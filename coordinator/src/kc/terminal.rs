//! The terminal and files. In: what the server says to print, ask, read or write. Out: that.

use std::{
    fs,
    io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use super::{answer::File, expand};

/// Prints as it is, with a line end. Answers whether somebody still reads.
///
/// # Errors
/// When standard output cannot be written.
pub fn print(stdout: &str, stderr: &str) -> Result<bool, String> {
    let ended = |text: &str| if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let mut out = io::stdout().lock();
    let printed = out
        .write_all(stdout.as_bytes())
        .and_then(|()| out.write_all(ended(stdout).as_bytes()))
        .and_then(|()| out.flush());
    eprint!("{stderr}{}", ended(stderr));
    match printed {
        // `kc get … | head` is not an error.
        Err(cause) if cause.kind() != io::ErrorKind::BrokenPipe => Err(format!("cannot print: {cause}")),
        printed => Ok(printed.is_ok()),
    }
}

/// Asks for a token without showing it; none when nobody is at the terminal.
pub fn token(profile: &str) -> Option<String> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return None;
    }
    eprint!("Enter token for profile {profile:?}: ");
    let shown = tcgetattr(&stdin).ok();
    if let Some(shown) = &shown {
        let mut hidden = shown.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        // A terminal that refuses shows what is typed; asking is still better than failing.
        let _ = tcsetattr(&stdin, OptionalActions::Flush, &hidden);
    }
    let mut line = String::new();
    let read = stdin.lock().read_line(&mut line);
    if let Some(shown) = &shown {
        let _ = tcsetattr(&stdin, OptionalActions::Flush, shown);
    }
    eprintln!();
    read.ok().map(|_| line.trim().to_owned()).filter(|token| !token.is_empty())
}

/// Asks a question whose answer is yes or no; no when nobody is at the terminal.
pub fn confirm(question: &str) -> bool {
    eprint!("{question}");
    let mut line = String::new();
    // An unreadable answer is no answer.
    let _ = io::stdin().lock().read_line(&mut line);
    matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

/// Reads a file, or standard input for `-`.
///
/// # Errors
/// When it cannot be read or is not text.
pub fn read(path: &str) -> Result<String, String> {
    let mut text = String::new();
    let read = if path == "-" {
        io::stdin().lock().read_to_string(&mut text).map(|_| ())
    } else {
        fs::read_to_string(expand(path)).map(|content| text = content)
    };
    read.map_err(|cause| format!("cannot read {path}: {cause}"))?;
    Ok(text)
}

/// Writes a file that the server sent, for its owner alone.
///
/// # Errors
/// When it is not base64 or cannot be written.
pub fn save(file: &File) -> Result<(), String> {
    let content = BASE64_STANDARD
        .decode(&file.content)
        .map_err(|cause| format!("the server's file is not base64: {cause}"))?;
    let names = [file.destination.as_str(), file.filename.as_str(), "download"];
    let path = expand(names.into_iter().find(|name| !name.is_empty()).unwrap_or("download"));
    let written = || {
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder)?;
        }
        fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)?
            .write_all(&content)
    };
    written().map_err(|cause| format!("cannot write {}: {cause}", path.display()))
}
