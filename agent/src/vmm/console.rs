//! The last words of a machine: what its PID 1 wrote to its standard error.
//!
//! In: the console's file, kept open, so that it can be read after the machine's file systems are gone. Out: its end, for
//! people. Opened by the VMM, read by the owner when the machine dies.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
};

/// How much of the end is looked at.
const TAIL: u64 = 600;
/// A console longer than this is emptied: it lives in memory.
const LONGEST: u64 = 512 << 10;

/// An open console.
#[derive(Debug)]
pub struct Console(File);

impl Console {
    /// Takes a file opened for reading and writing; `None` when it is not a regular one.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn new(file: File) -> io::Result<Option<Self>> {
        Ok(file.metadata()?.is_file().then_some(Self(file)))
    }

    /// Its last lines as one, without control characters; empty when there are none.
    pub fn tail(&mut self) -> String {
        let mut bytes = Vec::new();
        let length = self.0.metadata().map_or(0, |meta| meta.len());
        let sought = self.0.seek(SeekFrom::Start(length.saturating_sub(TAIL)));
        // A console that cannot be read has no last words; the death is reported all the same.
        if sought.and_then(|_| (&self.0).take(TAIL).read_to_end(&mut bytes)).is_err() {
            return String::new();
        }
        let text = String::from_utf8_lossy(&bytes);
        let whole = match text.split_once('\n') {
            Some((_, rest)) if length > TAIL && !rest.is_empty() => rest,
            Some(_) | None => &text,
        };
        let lines = whole.lines().map(|line| line.replace(char::is_control, " ").trim().to_owned());
        lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" | ")
    }

    /// Empties it when it has become long. The machine goes on at its new end.
    pub fn trim(&self) {
        if self.0.metadata().is_ok_and(|meta| meta.len() > LONGEST) {
            // Full is as good as empty: the machine's writes then fail, which it does not mind.
            let _still_long = self.0.set_len(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn console(text: &str) -> Console {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Console::new(file).unwrap().unwrap()
    }

    #[test]
    fn the_last_whole_lines_are_shown_as_one() {
        assert_eq!(console("").tail(), "");
        assert_eq!(console("one\n\u{1b}[1mtwo\n").tail(), "one | [1mtwo");
        let long = format!("{}\nlast\n", "x".repeat(1000));
        assert_eq!(console(&long).tail(), "last");
        assert_eq!(console(&"y".repeat(1000)).tail().len(), 600);
    }

    #[test]
    fn a_long_console_is_emptied() {
        let mut long = console(&"x".repeat(600 << 10));
        long.trim();
        assert_eq!(long.tail(), "");
        let mut short = console("x");
        short.trim();
        assert_eq!(short.tail(), "x");
    }
}
