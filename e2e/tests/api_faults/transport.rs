//! F-02 to F-06 and F-70: what can happen to a request on its way.

use std::time::Duration;

use anyhow::Result;
use training_testkit::proxy::{Action, Change, Effect};

use super::campaign::{requests, targets, writes};
use super::driver::Phase;

/// Short enough to wait for, long against an answer of a busy machine.
const DEADLINE: [(&str, &str); 1] = [("call-deadline", "3s")];

fn all(phase: Phase) -> Vec<(&'static str, &'static str)> {
    targets(phase).to_vec()
}

#[tokio::test]
async fn f_02_a_request_that_was_never_sent_is_sent_again() -> Result<()> {
    requests("f02", &[], all, || Action::ResetBefore).await
}

#[tokio::test]
async fn f_03_a_lost_answer_makes_no_second_object() -> Result<()> {
    requests("f03", &[], listed, || Action::ResetAfter).await
}

#[tokio::test]
async fn f_04_f_70_a_request_without_an_answer_ends_by_our_deadline() -> Result<()> {
    requests("f04", &DEADLINE, all, || Action::Silence(Effect::Without)).await
}

#[tokio::test]
async fn f_04_f_70_so_does_one_that_was_done_and_never_answered() -> Result<()> {
    requests("f04b", &DEADLINE, writes, || Action::Silence(Effect::With)).await
}

#[tokio::test]
async fn f_05_an_answer_that_trickles_ends_by_our_deadline() -> Result<()> {
    let targets = |phase| {
        let mut targets = writes(phase);
        if phase == Phase::Creating {
            targets.push(("list", "pods"));
        }
        targets
    };
    let slow = || Action::Trickle(Duration::from_secs(1));
    requests("f05", &DEADLINE, targets, slow).await
}

#[tokio::test]
async fn f_06_a_cut_answer_is_an_error_for_this_call_only() -> Result<()> {
    requests("f06cut", &[], listed, || Action::CutAnswer).await
}

#[tokio::test]
async fn f_06_an_answer_of_the_wrong_length_is_an_error_for_this_call_only() -> Result<()> {
    requests("f06length", &[], listed, || Action::WrongLength).await
}

#[tokio::test]
async fn f_06_an_answer_that_is_no_json_is_an_error_for_this_call_only() -> Result<()> {
    requests("f06json", &[], listed, || {
        Action::AlterAnswer(Change::new(|body| Some(body[..body.len() / 2].to_vec())))
    })
    .await
}

/// Answers that have an end: a watch has none that could be cut off from it.
fn listed(phase: Phase) -> Vec<(&'static str, &'static str)> {
    let all = targets(phase).iter().copied();
    all.filter(|(verb, _)| *verb != "watch").collect()
}
