//! The campaign for every kind: full life cycles in which each fault hits once.
//!
//! In a deep run each fault has a life cycle of its own and hits in every phase.

use anyhow::Result;
use training_testkit::builders::{JAX, Kind, MPI, PADDLE, SPARK, TENSORFLOW, XGBOOST};
use training_testkit::is_deep;

use super::campaign::{all_requests, all_watches, requests, watches};
use super::life::Life;
use super::table::{REQUESTS, WATCHES};

async fn asked(kind: Kind) -> Result<()> {
    all_requests(Life(kind), &REQUESTS).await?;
    if is_deep() {
        for fault in REQUESTS {
            requests(Life(kind), fault).await?;
        }
    }
    Ok(())
}

async fn told(kind: Kind) -> Result<()> {
    all_watches(Life(kind), &WATCHES).await?;
    if is_deep() {
        for fault in WATCHES {
            watches(Life(kind), fault).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn f_02_f_03_f_04_f_05_f_06_f_10_f_11_f_12_f_13_f_14_f_15_f_16_f_18_a_tf_job_lives_through_faults_of_requests()
-> Result<()> {
    asked(TENSORFLOW).await
}

#[tokio::test]
async fn f_30_f_31_f_32_f_33_f_34_f_35_f_36_f_37_f_38_f_39_a_tf_job_lives_through_faults_of_watches()
-> Result<()> {
    told(TENSORFLOW).await
}

#[tokio::test]
async fn f_02_f_03_f_04_f_05_f_06_f_10_f_11_f_12_f_13_f_14_f_15_f_16_f_18_an_xgboost_job_lives_through_faults_of_requests()
-> Result<()> {
    asked(XGBOOST).await
}

#[tokio::test]
async fn f_02_f_03_f_04_f_05_f_06_f_10_f_11_f_12_f_13_f_14_f_15_f_16_f_18_a_paddle_job_lives_through_faults_of_requests()
-> Result<()> {
    asked(PADDLE).await
}

#[tokio::test]
async fn f_02_f_03_f_04_f_05_f_06_f_10_f_11_f_12_f_13_f_14_f_15_f_16_f_18_a_jax_job_lives_through_faults_of_requests()
-> Result<()> {
    asked(JAX).await
}

#[tokio::test]
async fn f_30_f_31_f_32_f_33_f_34_f_35_f_36_f_37_f_38_f_39_an_xgboost_job_lives_through_faults_of_watches()
-> Result<()> {
    told(XGBOOST).await
}

#[tokio::test]
async fn f_30_f_31_f_32_f_33_f_34_f_35_f_36_f_37_f_38_f_39_a_paddle_job_lives_through_faults_of_watches()
-> Result<()> {
    told(PADDLE).await
}

#[tokio::test]
async fn f_30_f_31_f_32_f_33_f_34_f_35_f_36_f_37_f_38_f_39_a_jax_job_lives_through_faults_of_watches()
-> Result<()> {
    told(JAX).await
}

#[tokio::test]
async fn f_02_f_03_f_04_f_05_f_06_f_10_f_11_f_12_f_13_f_14_f_15_f_16_f_18_an_mpi_job_lives_through_faults_of_requests()
-> Result<()> {
    asked(MPI).await
}

#[tokio::test]
async fn f_30_f_31_f_32_f_33_f_34_f_35_f_36_f_37_f_38_f_39_an_mpi_job_lives_through_faults_of_watches()
-> Result<()> {
    told(MPI).await
}

#[tokio::test]
async fn f_02_f_03_f_04_f_05_f_06_f_10_f_11_f_12_f_13_f_14_f_15_f_16_f_18_a_spark_application_lives_through_faults_of_requests()
-> Result<()> {
    asked(SPARK).await
}

#[tokio::test]
async fn f_30_f_31_f_32_f_33_f_34_f_35_f_36_f_37_f_38_f_39_a_spark_application_lives_through_faults_of_watches()
-> Result<()> {
    told(SPARK).await
}
