//! Waiting for facts. In: how to look. Out: what was looked for, or the last thing seen. Used by every test instead of sleeping.

use std::{
    fmt::Debug,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// Between two looks. Short, so that times which tests print are true to a tenth of a second.
const EVERY: Duration = Duration::from_millis(50);

/// Looks until there is something, and answers it with how long that took.
///
/// `look` answers `Ok` with what was waited for, or `Err` with what it saw instead.
///
/// # Errors
/// After `deadline`, with what was seen last.
pub fn wait_until<T, S: Debug>(
    what: &str,
    deadline: Duration,
    mut look: impl FnMut() -> Result<T, S>,
) -> Result<(T, Duration)> {
    let start = Instant::now();
    loop {
        let seen = match look() {
            Ok(found) => return Ok((found, start.elapsed())),
            Err(seen) => seen,
        };
        if start.elapsed() >= deadline {
            bail!("waited {} s for {what}; last seen: {seen:#?}", deadline.as_secs());
        }
        thread::sleep(EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_answered_and_what_is_not_is_told() {
        let mut looks = 0;
        let (found, _) = wait_until("the third look", Duration::from_secs(5), || {
            looks += 1;
            if looks == 3 { Ok("found") } else { Err(looks) }
        })
        .unwrap();
        assert_eq!((found, looks), ("found", 3));
        let late = wait_until("nothing", Duration::ZERO, || Err::<(), _>("a crumb")).unwrap_err();
        assert!(late.to_string().contains("a crumb"), "{late}");
    }
}
