//! What a VMM tells about its machine's life.
//!
//! In: the file that the VMM appends to: JSON over many lines, an empty line after each. Out: [`Event`]s, in order. Read by the
//! driver while a machine runs and once more when it is dead. A torn or unknown event is passed over: a machine's death is
//! noticed by its process, never by an event (a crash of a vCPU looks exactly like an orderly end there).

use std::{
    fmt,
    fs::File,
    io::{self, Read as _, Seek as _},
};

use serde::Deserialize;

/// More than this is not read at once.
const MOST_BYTES: u64 = 1 << 20;
/// A file of which more than this was read is emptied.
const LONGEST: u64 = 128 << 10;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Event {
    /// vm, vmm, guest or virtio-device.
    pub source: String,
    /// For example booted or panic.
    pub event: String,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.source, self.event)
    }
}

impl Event {
    /// Whether people should see it: what ends or shakes a machine, not each device that comes up. Not `booting`, which is there also before
    /// a boot that fails.
    pub fn is_notable(&self) -> bool {
        matches!(
            (self.source.as_str(), self.event.as_str()),
            ("guest", "panic") | ("vm", "booted" | "rebooting" | "shutdown" | "deleted")
        )
    }
}

/// Reads a file that grows.
#[derive(Debug)]
pub struct Events {
    file: File,
    /// The beginning of an event whose end is not there yet.
    rest: String,
}

impl Events {
    /// From the beginning of a file opened for reading and writing.
    pub fn new(file: File) -> Self {
        Self { file, rest: String::new() }
    }

    /// All events that came since the last time.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&mut self) -> io::Result<Vec<Event>> {
        let mut bytes = Vec::new();
        (&self.file).take(MOST_BYTES).read_to_end(&mut bytes)?;
        self.rest.push_str(&String::from_utf8_lossy(&bytes));
        let mut events = Vec::new();
        while let Some((one, rest)) = self.rest.split_once("\n\n") {
            events.extend(serde_json::from_str(one));
            self.rest = rest.to_owned();
        }
        // It lives in memory that the VMM's log needs too. What comes in between is lost, which hurts nobody.
        if self.file.stream_position()? > LONGEST {
            self.file.set_len(0)?;
            self.file.rewind()?;
            self.rest.clear();
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const BOOTED: &str = "{\n  \"timestamp\": {\n    \"secs\": 0,\n    \"nanos\": 7\n  },\n  \"source\": \"vm\",\n  \
                          \"event\": \"booted\",\n  \"properties\": null\n}\n\n";

    #[test]
    fn events_are_read_as_they_come_also_in_halves_and_torn_ones_are_passed_over() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let mut writer = File::options().append(true).open(named.path()).unwrap();
        let mut events = Events::new(File::options().read(true).write(true).open(named.path()).unwrap());
        let mut read = |text: &str| {
            writer.write_all(text.as_bytes()).unwrap();
            let seen = events.read().unwrap();
            seen.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(read("").is_empty());
        assert_eq!(read(BOOTED), ["vm booted"]);
        let (first, second) = BOOTED.split_at(40);
        assert!(read(first).is_empty());
        assert_eq!(read(second), ["vm booted"]);
        let torn = format!("{first}\n\n{}", BOOTED.replace("vm", "guest").replace("booted", "panic"));
        assert_eq!(read(&torn), ["guest panic"]);
        // A guest that restarts for ever.
        assert_eq!(read(&BOOTED.repeat(2000)).len(), 2000);
        assert_eq!(std::fs::metadata(named.path()).unwrap().len(), 0, "emptied");
        assert_eq!(read(BOOTED), ["vm booted"]);
    }
}
