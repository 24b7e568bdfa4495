//! Waiting for a state of the world.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::{Instant, sleep};

/// When a wait counts as a hang. Generous: it separates "slow machine" from "never", and no test
/// measures with it.
pub const HANG: Duration = Duration::from_mins(3);

/// How often a condition is looked at. Short against everything that tests wait for, long against
/// the cost of one look.
const POLL: Duration = Duration::from_millis(20);

/// What one look at the world says.
#[derive(Debug)]
pub enum Seen<T> {
    /// What was waited for.
    Yes(T),
    /// Not yet; the text says what is there instead, and ends up in the error.
    NotYet(String),
}

/// Looks until it sees what it waits for, and says at the end of `limit` what it saw last.
///
/// An error of the look itself counts as "not yet", because an API server that is just starting, or
/// a proxy that just refuses, is a normal sight in these tests.
pub async fn eventually<T: Debug>(
    what: &str,
    limit: Duration,
    mut look: impl AsyncFnMut() -> Result<Seen<T>>,
) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        let last = match look().await {
            Ok(Seen::Yes(found)) => return Ok(found),
            Ok(Seen::NotYet(state)) => state,
            Err(error) => format!("{error:#}"),
        };
        if Instant::now() >= end {
            bail!("waited {limit:?} in vain for {what}; last seen: {last}");
        }
        sleep(POLL).await;
    }
}

/// Looks again and again during `time`, and fails as soon as the look fails.
pub async fn holds_for(time: Duration, mut look: impl AsyncFnMut() -> Result<()>) -> Result<()> {
    let end = Instant::now() + time;
    loop {
        look().await?;
        if Instant::now() >= end {
            return Ok(());
        }
        sleep(POLL).await;
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
        let mut looks = 0;
        let seen = eventually("the third look", Duration::from_secs(1), async || {
            looks += 1;
            Ok(if looks == 3 {
                Seen::Yes(looks)
            } else {
                Seen::NotYet(looks.to_string())
            })
        })
        .await
        .unwrap();
        assert_eq!(seen, 3);
    }
}
