//! The engine's output: appended to a bounded file, with the last lines kept for messages to people.
//!
//! In: the read end of the engine's stdout and stderr. Out: a file of at most 8 MiB and one older one beside it, and
//! [`Tail`]. A thread of its own, because a full disk must stall neither the reports nor the reaping.

use std::{
    collections::VecDeque,
    fs::{File, OpenOptions},
    io::{BufRead as _, BufReader, PipeReader, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

const MAX_FILE: u64 = 8 << 20;
const MAX_LINE: u64 = 16 << 10;
const TAIL_LINES: usize = 6;
const TAIL_LINE_CHARS: usize = 300;
const LEFT_OUT: &str = "[a line with a secret was left out]";

/// The last lines an engine process wrote.
#[derive(Clone, Default)]
pub struct Tail(Arc<Shared>);

#[derive(Default)]
struct Shared {
    lines: Mutex<Lines>,
    ended: Condvar,
}

#[derive(Default)]
struct Lines {
    last: VecDeque<String>,
    /// Every writer closed the pipe: there will be no more.
    ended: bool,
}

impl Tail {
    /// The lines, oldest first, joined by newlines. Waits for the end of the output, but not past `patience`: the
    /// last words of a process that just died may still be in the pipe.
    pub fn text(&self, patience: Duration) -> String {
        let lines = self.lines();
        let waited = self.0.ended.wait_timeout_while(lines, patience, |lines| !lines.ended);
        let (lines, _) = waited.unwrap_or_else(PoisonError::into_inner);
        lines.last.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: &str) {
        let last = &mut self.lines().last;
        if last.len() == TAIL_LINES {
            last.pop_front();
        }
        last.push_back(line.chars().take(TAIL_LINE_CHARS).collect());
    }

    fn end(&self) {
        self.lines().ended = true;
        self.0.ended.notify_all();
    }
}

/// Starts the thread; it ends when the last writer closed the pipe.
pub fn follow(output: PipeReader, path: PathBuf, is_secret: fn(&str) -> bool) -> std::io::Result<Tail> {
    let tail = Tail::default();
    let lines = tail.clone();
    std::thread::Builder::new().name("engine-log".to_owned()).spawn(move || {
        let mut file = BoundedFile::open(&path);
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut output).take(MAX_LINE).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return lines.end(),
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end();
            let text = if is_secret(text) { LEFT_OUT } else { text };
            lines.push(text);
            file.write_line(text);
        }
    })?;
    Ok(tail)
}

struct BoundedFile {
    path: PathBuf,
    file: Option<File>,
    size: u64,
}

impl BoundedFile {
    fn open(path: &Path) -> Self {
        let open = OpenOptions::new().append(true).create(true).mode(0o600).open(path);
        if let Err(error) = &open {
            tracing::warn!(path = %path.display(), %error, "engine log not opened, its lines are lost");
        }
        let file = open.ok();
        let size = file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |meta| meta.len());
        Self { path: path.to_owned(), file, size }
    }

    /// A line that cannot be written is dropped: the engine is worth more than its log.
    fn write_line(&mut self, line: &str) {
        if self.size >= MAX_FILE {
            let _ = std::fs::rename(&self.path, self.path.with_extension("log.1"));
            *self = Self::open(&self.path);
            // When the rename failed the file is still full: start it over, the bound holds.
            if self.size >= MAX_FILE && self.file.as_ref().is_some_and(|file| file.set_len(0).is_ok()) {
                self.size = 0;
            }
        }
        if let Some(file) = &mut self.file
            && self.size < MAX_FILE
            && writeln!(file, "{line}").is_ok()
        {
            self.size += line.len() as u64 + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_bounded_and_one_older_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("engine.log");
        let mut file = BoundedFile::open(&path);
        let line = "x".repeat(1 << 20);
        for _ in 0..20 {
            file.write_line(&line);
        }
        let size = |name: &str| std::fs::metadata(dir.path().join(name)).unwrap().len();
        assert!(size("engine.log") <= MAX_FILE + line.len() as u64 + 1);
        assert!(size("engine.log.1") <= MAX_FILE + line.len() as u64 + 1);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn the_tail_has_the_last_lines_without_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("engine.log");
        let (read, mut write) = std::io::pipe().unwrap();
        let tail = follow(read, path.clone(), |line| line.contains("s3cret")).unwrap();
        for n in 0..20 {
            writeln!(write, "line {n}").unwrap();
        }
        writeln!(write, "requirepass s3cret").unwrap();
        drop(write);
        let text = tail.text(Duration::from_secs(5));
        assert!(text.starts_with("line 15\n") && text.ends_with(LEFT_OUT), "{text}");
        assert!(!std::fs::read_to_string(&path).unwrap().contains("s3cret"));
    }
}
