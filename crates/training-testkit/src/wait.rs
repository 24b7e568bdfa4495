//! Waiting for a condition.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// The time after which a wait counts as a hang. It is generous, to distinguish "slow machine" from "never"; no test measures with
/// it.
pub const HANG: Duration = Duration::from_mins(3);

/// The shortest poll interval: short compared with what tests wait for, long compared with the cost of a check. At 20 ms, a third of
/// all requests of the crash sweep were checks.
const POLL: Duration = Duration::from_millis(50);
/// The interval of checks of a condition that must hold: a short violation must not fall between two of them.
const CHECK: Duration = Duration::from_millis(20);
/// The longest poll interval: many tests that wait at once must not keep the API server busy.
const LONGEST_POLL: Duration = Duration::from_millis(100);

/// The result of one check.
#[derive(Debug)]
pub enum Seen<T> {
    /// The awaited value.
    Yes(T),
    /// Not yet; the error message includes this text about the present state.
    NotYet(String),
}

/// Polls until the check succeeds; the error at the end of `limit` includes the last result. The longer it waits, the less often it
/// polls.
///
/// An error of the check counts as "not yet", because a starting API server or a refusing proxy is normal in these tests.
pub async fn eventually<T: Debug>(
    what: &str,
    limit: Duration,
    mut poll: impl AsyncFnMut() -> Result<Seen<T>>,
) -> Result<T> {
    let begin = Instant::now();
    loop {
        let last = match poll().await {
            Ok(Seen::Yes(found)) => return Ok(found),
            Ok(Seen::NotYet(state)) => state,
            Err(error) => format!("{error:#}"),
        };
        let waited = begin.elapsed();
        if waited >= limit {
            bail!("waited {limit:?} in vain for {what}; last seen: {last}");
        }
        sleep((waited / 10).clamp(POLL, LONGEST_POLL)).await;
    }
}

/// Repeats the check for `time`, and fails as soon as it fails.
pub async fn holds_for(time: Duration, mut poll: impl AsyncFnMut() -> Result<()>) -> Result<()> {
    let end = Instant::now() + time;
    loop {
        poll().await?;
        if Instant::now() >= end {
            return Ok(());
        }
        sleep(CHECK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_end_of_patience_tells_what_was_seen_last() {
        let error = eventually::<()>("snow", Duration::from_millis(50), async || {
            Ok(Seen::NotYet("rain".into()))
        })
        .await
        .unwrap_err();
        assert!(error.to_string().contains("last seen: rain"), "{error}");
    }

    #[tokio::test]
    async fn what_comes_late_is_still_seen() {
        let mut polls = 0;
        let seen = eventually("the third poll", Duration::from_secs(1), async || {
            polls += 1;
            Ok(if polls == 3 {
                Seen::Yes(polls)
            } else {
                Seen::NotYet(polls.to_string())
            })
        })
        .await
        .unwrap();
        assert_eq!(seen, 3);
    }
}
