//! Steps that run concurrently.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt;
use futures::stream;

/// The maximum number of concurrent requests of one object's plan.
pub const WINDOW: usize = 16;

/// Runs the steps of a plan in order, several at a time: `first` at the beginning, then twice as many with each batch, at most
/// [`WINDOW`]. After a result that `is_last`, no further step begins; those that have begun end. `is_last` gets each result as soon as
/// it is known. Returns the results of all steps that have begun, in the order of the steps.
///
/// Steps are indices: the compiler can't prove a closure general enough for references.
pub async fn run_steps<T, E, F>(
    steps: usize,
    first: usize,
    step: impl Fn(usize) -> F,
    mut is_last: impl FnMut(usize, &Result<T, E>) -> bool,
) -> Vec<(usize, Result<T, E>)>
where
    F: Future<Output = Result<T, E>>,
{
    let stopped = AtomicBool::new(false);
    let mut results = Vec::with_capacity(steps);
    let (mut from, mut window) = (0, first.clamp(1, WINDOW));
    while from < steps && !stopped.load(Ordering::Relaxed) {
        // A full window needs no pause between batches.
        let count = if window == WINDOW { steps } else { window };
        let until = from.saturating_add(count).min(steps);
        let mut running = stream::iter(from..until)
            .map(|at| {
                let (stopped, step) = (&stopped, &step);
                async move {
                    if stopped.load(Ordering::Relaxed) {
                        return None;
                    }
                    Some((at, step(at).await))
                }
            })
            .buffer_unordered(window);
        while let Some(ended) = running.next().await {
            let Some((at, result)) = ended else {
                continue;
            };
            if is_last(at, &result) {
                stopped.store(true, Ordering::Relaxed);
            }
            results.push((at, result));
        }
        from = until;
        window = (window * 2).min(WINDOW);
    }
    results.sort_unstable_by_key(|(at, _)| *at);
    results
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Runs so many steps, the `wrong` ones of which stop the rest. Returns those that have begun, and the most that ran at once.
    async fn begun(steps: usize, first: usize, wrong: &[usize]) -> (Vec<usize>, usize) {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let step = async |at: usize| {
            let now = running.fetch_add(1, Ordering::Relaxed) + 1;
            most.fetch_max(now, Ordering::Relaxed);
            // The steps of a window end in the reverse order.
            for _ in 0..=(WINDOW - at % WINDOW) {
                tokio::task::yield_now().await;
            }
            running.fetch_sub(1, Ordering::Relaxed);
            if wrong.contains(&at) { Err(()) } else { Ok(()) }
        };
        let results = run_steps(steps, first, step, |_, result| result.is_err()).await;
        let begun = results.into_iter().map(|(at, _)| at).collect();
        (begun, most.into_inner())
    }

    #[tokio::test]
    async fn all_steps_run_at_most_a_window_at_a_time_and_results_are_in_order() {
        let (begun, most) = begun(3 * WINDOW, WINDOW, &[]).await;
        assert_eq!(begun, (0..3 * WINDOW).collect::<Vec<_>>());
        assert_eq!(most, WINDOW);
    }

    #[tokio::test]
    async fn no_step_begins_after_one_that_stops_the_rest() {
        let (all, _) = begun(3 * WINDOW, WINDOW, &[WINDOW - 1]).await;
        assert_eq!(all, (0..WINDOW).collect::<Vec<_>>());
        let (all, most) = begun(3 * WINDOW, 1, &[2]).await;
        assert_eq!((all, most), (vec![0, 1, 2], 2));
    }
}
