//! F-02 to F-06 and F-70: faults of the connection.

use anyhow::Result;
use training_testkit::builders::PYTORCH;

use super::campaign::requests;
use super::life::Life;
use super::table::{F_02, F_03, F_04, F_04_DONE, F_05, F_06_CUT, F_06_JSON, F_06_LENGTH};

const LIFE: Life = Life(PYTORCH);

#[tokio::test]
async fn f_02_a_request_that_was_never_sent_is_sent_again() -> Result<()> {
    requests(LIFE, &F_02).await
}

#[tokio::test]
async fn f_03_a_lost_answer_makes_no_second_object() -> Result<()> {
    requests(LIFE, &F_03).await
}

#[tokio::test]
async fn f_04_f_70_a_request_without_an_answer_ends_by_our_deadline() -> Result<()> {
    requests(LIFE, &F_04).await
}

#[tokio::test]
async fn f_04_f_70_so_does_one_that_was_done_and_never_answered() -> Result<()> {
    requests(LIFE, &F_04_DONE).await
}

#[tokio::test]
async fn f_05_an_answer_that_trickles_ends_by_our_deadline() -> Result<()> {
    requests(LIFE, &F_05).await
}

#[tokio::test]
async fn f_06_a_cut_answer_is_an_error_for_this_call_only() -> Result<()> {
    requests(LIFE, &F_06_CUT).await
}

#[tokio::test]
async fn f_06_an_answer_of_the_wrong_length_is_an_error_for_this_call_only() -> Result<()> {
    requests(LIFE, &F_06_LENGTH).await
}

#[tokio::test]
async fn f_06_an_answer_that_is_no_json_is_an_error_for_this_call_only() -> Result<()> {
    requests(LIFE, &F_06_JSON).await
}
