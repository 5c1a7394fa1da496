//! The last words of a machine: what it wrote to its console.
//!
//! In: the console's file, kept open, so that it can be read after the machine's file systems are gone; for a machine with a
//! VMM also that one's log, and the task that fills the file. Out: their ends, for people. Opened by the VMM, read by the
//! owner when the machine dies.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    time::Duration,
};

use tokio::{task::JoinHandle, time::timeout};

use super::cloud_hypervisor::watch::LastEvents;

/// How much of the end is looked at.
const TAIL: u64 = 600;
/// A console longer than this is emptied: it lives in memory.
const LONGEST: u64 = 512 << 10;
/// How long the task that fills the file may take when the machine is gone.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// An open console.
#[derive(Debug)]
pub struct Console {
    file: File,
    vmm: Option<OfVmm>,
}

/// What there is beside the console when a VMM runs the machine.
#[derive(Debug)]
pub struct OfVmm {
    /// Its own log.
    pub log: Option<File>,
    /// Its last events.
    pub events: LastEvents,
    /// Fills the console's file.
    pub follower: JoinHandle<()>,
}

impl Drop for OfVmm {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

impl Console {
    /// Takes a file opened for reading and writing; `None` when it is not a regular one.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn new(file: File) -> io::Result<Option<Self>> {
        Ok(file.metadata()?.is_file().then_some(Self { file, vmm: None }))
    }

    /// A console that a task fills from a VMM.
    pub fn of_vmm(file: File, vmm: OfVmm) -> Self {
        Self { file, vmm: Some(vmm) }
    }

    /// The last words of a machine that is gone.
    pub async fn last_words(mut self) -> String {
        let Some(mut vmm) = self.vmm.take() else { return tail(&mut self.file) };
        // What is still on the way is not worth more waiting.
        let _late = timeout(LAST_WORDS, &mut vmm.follower).await;
        let mut words = vec![tail(&mut self.file)];
        words.extend(
            vmm.log.as_mut().map(tail).filter(|log| !log.is_empty()).map(|log| format!("[VMM] {log}")),
        );
        words.extend(Some(vmm.events.words()).filter(|it| !it.is_empty()).map(|it| format!("[events] {it}")));
        words.retain(|one| !one.is_empty());
        words.join(" | ")
    }

    /// Empties it when it has become long. The machine goes on at its new end.
    pub fn trim(&self) {
        let log = self.vmm.as_ref().and_then(|vmm| vmm.log.as_ref());
        for file in std::iter::once(&self.file).chain(log) {
            if file.metadata().is_ok_and(|meta| meta.len() > LONGEST) {
                // Full is as good as empty: the machine's writes then fail, which it does not mind.
                let _still_long = file.set_len(0);
            }
        }
    }
}

/// A file's last lines as one, without control characters; empty when there are none.
fn tail(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let length = file.metadata().map_or(0, |meta| meta.len());
    let sought = file.seek(SeekFrom::Start(length.saturating_sub(TAIL)));
    // A console that cannot be read has no last words; the death is reported all the same.
    if sought.and_then(|_| (&*file).take(TAIL).read_to_end(&mut bytes)).is_err() {
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn console(text: &str) -> Console {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Console::new(file).unwrap().unwrap()
    }

    #[tokio::test]
    async fn the_last_whole_lines_are_shown_as_one() {
        assert_eq!(console("").last_words().await, "");
        assert_eq!(console("one\n\u{1b}[1mtwo\n").last_words().await, "one | [1mtwo");
        let long = format!("{}\nlast\n", "x".repeat(1000));
        assert_eq!(console(&long).last_words().await, "last");
        assert_eq!(console(&"y".repeat(1000)).last_words().await.len(), 600);
    }

    #[tokio::test]
    async fn a_long_console_is_emptied() {
        let long = console(&"x".repeat(600 << 10));
        long.trim();
        assert_eq!(long.last_words().await, "");
        let short = console("x");
        short.trim();
        assert_eq!(short.last_words().await, "x");
    }

    #[tokio::test]
    async fn a_vmm_adds_its_own_words() {
        let mut log = tempfile::tempfile().unwrap();
        log.write_all(b"vCPU error\n").unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"booting\n").unwrap();
        let follower = tokio::spawn(async {});
        let vmm = OfVmm { log: Some(log), events: LastEvents::default(), follower };
        assert_eq!(Console::of_vmm(file, vmm).last_words().await, "booting | [VMM] vCPU error");
    }
}
