//! The power button: how a VMM asks a machine to stop when the link to it is not there.
//!
//! In: the input devices of the machine. Out: a word on a channel for each press. Started by `run`; a thread waits at each device.

use std::{fs::File, io::Read as _, path::PathBuf, thread};

use tokio::sync::mpsc::{Receiver, Sender, channel};

/// `struct input_event` of linux/input.h on 64 bit: two words of time, then type, code and value.
const EVENT: usize = 24;
const EV_KEY: u16 = 1;
const KEY_POWER: u16 = 116;
const PRESSED: i32 = 1;

/// Listens at every button of the machine: presses from now on are heard. Without any, the receiver hears nothing.
pub fn watch() -> Receiver<()> {
    let (press, presses) = channel(1);
    let buttons = devices();
    if buttons.is_empty() {
        tracing::warn!("this machine has no power button; it can be stopped through its link only");
    }
    for (path, device) in buttons {
        let press = press.clone();
        thread::spawn(move || {
            if let Err(error) = listen(device, &press) {
                tracing::warn!(device = %path.display(), %error, "no longer hears an input device");
            }
        });
    }
    presses
}

fn devices() -> Vec<(PathBuf, File)> {
    let all = std::fs::read_dir("/dev/input").into_iter().flatten().flatten();
    let events = all.filter(|entry| entry.file_name().to_string_lossy().starts_with("event"));
    events.filter_map(|entry| Some((entry.path(), File::open(entry.path()).ok()?))).collect()
}

/// Ends with Ok when nobody takes presses any more.
fn listen(mut device: File, press: &Sender<()>) -> std::io::Result<()> {
    let mut event = [0; EVENT];
    loop {
        // The kernel hands out whole events only, and keeps those of the time since the device was opened.
        device.read_exact(&mut event)?;
        if is_press(&event) && press.blocking_send(()).is_err() {
            return Ok(());
        }
    }
}

fn is_press(event: &[u8; EVENT]) -> bool {
    let [.., a, b, c, d, e, f, g, h] = *event;
    u16::from_ne_bytes([a, b]) == EV_KEY
        && u16::from_ne_bytes([c, d]) == KEY_POWER
        && i32::from_ne_bytes([e, f, g, h]) == PRESSED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_press_of_the_power_key_counts() {
        let event = |kind: u8, code: u8, value: u8| {
            let mut event = [0; EVENT];
            (event[0], event[16], event[18], event[20]) = (0x65, kind, code, value);
            event
        };
        assert!(is_press(&event(1, 116, 1)));
        assert!(!is_press(&event(1, 116, 0)), "let go");
        assert!(!is_press(&event(1, 30, 1)), "another key");
        assert!(!is_press(&event(0, 0, 0)), "the end of a report");
    }
}
