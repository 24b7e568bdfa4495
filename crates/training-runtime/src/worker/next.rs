//! Decides what to do after each observe-plan-execute round of a reconcile. Pure.

use tokio::time::Instant;

/// What became of a round that may have failed with an `F`.
#[derive(Debug)]
// Each is one answer of the round, and the table below is over their combinations.
#[expect(clippy::struct_excessive_bools)]
pub(super) struct Round<F> {
    /// The API server refused a step in this round.
    pub refused: bool,
    /// What went wrong otherwise.
    pub fault: Option<F>,
    /// The plan is outdated: executing it changed what is known, for instance an existing child was read and cached.
    pub outdated: bool,
    /// The object was refused something, and tries it again at this time.
    pub retry_at: Option<Instant>,
    /// A refusal of an earlier reconcile is still recorded.
    pub stalled: bool,
    /// The plan asks for another round.
    pub requeue: bool,
    /// Steps made room for what the next plan creates.
    pub freed: bool,
    /// The plan had nothing to write.
    pub idle: bool,
    /// The plan wanted to create children.
    pub creates: bool,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<F> {
    /// Plan once more.
    Again,
    /// Forget the recorded refusal, and plan once more: everything that was refused exists, or is no longer wanted.
    Recovered,
    /// Retry with backoff.
    Failed(F),
    /// Wait for the retry of what was refused.
    Held(Instant),
    /// Nothing is left to do.
    Done,
}

pub(super) fn next<F>(round: Round<F>) -> Next<F> {
    if round.refused {
        // The next plan says why in the status.
        return Next::Again;
    }
    if let Some(fault) = round.fault {
        return Next::Failed(fault);
    }
    if round.outdated {
        // For instance, a child that was found may have ended already, and the watch sends no further event.
        return Next::Again;
    }
    if let Some(at) = round.retry_at {
        // Where only refused steps are left, another plan would be the same.
        return if round.requeue && !round.idle {
            Next::Again
        } else {
            Next::Held(at)
        };
    }
    if round.stalled {
        return Next::Recovered;
    }
    // After a plan that neither wrote nor wanted to create anything, the next one would be the same.
    if (round.requeue || round.freed) && (!round.idle || round.creates) {
        Next::Again
    } else {
        Next::Done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A round with these of its answers.
    fn round(answers: &str, at: Instant) -> Round<()> {
        let is = |answer| answers.split(' ').any(|word| word == answer);
        Round {
            refused: is("refused"),
            fault: is("failed").then_some(()),
            outdated: is("outdated"),
            retry_at: is("waits").then_some(at),
            stalled: is("stalled"),
            requeue: is("requeue"),
            freed: is("freed"),
            idle: is("idle"),
            creates: is("creates"),
        }
    }

    #[test]
    fn what_follows_a_round_is_this_table() {
        let at = Instant::now();
        for (answers, wanted) in [
            ("", Next::Done),
            ("idle", Next::Done),
            ("requeue", Next::Again),
            ("freed", Next::Again),
            ("idle requeue", Next::Done),
            ("idle requeue creates", Next::Again),
            ("creates", Next::Done),
            ("stalled", Next::Recovered),
            ("stalled requeue", Next::Recovered),
            ("waits", Next::Held(at)),
            ("waits stalled", Next::Held(at)),
            ("waits requeue", Next::Again),
            ("waits requeue idle", Next::Held(at)),
            ("waits freed", Next::Held(at)),
            ("waits outdated", Next::Again),
            ("idle outdated", Next::Again),
            ("waits outdated failed", Next::Failed(())),
            ("refused failed", Next::Again),
        ] {
            assert_eq!(next(round(answers, at)), wanted, "{answers}");
        }
    }
}
