//! Drivers whose image can't be pulled, or whose volume is missing.

use anyhow::{Result, ensure};
use e2e::pods::spark::{has_ended, state, until_go};
use e2e::pods::{Site, Weight, eventually, said};
use serde_json::{Value, json};
use training_testkit::wait::Seen;

fn with_image(name: &str, image: &str) -> Value {
    let mut app = until_go(name, 1);
    app["spec"]["image"] = json!(image);
    app
}

fn message(app: &Value) -> &str {
    let text = &app["status"]["applicationState"]["errorMessage"];
    text.as_str().unwrap_or_default()
}

async fn until_gone(site: &Site, pod: &str) -> Result<()> {
    let pods = site.pods();
    eventually(&format!("{pod} to be gone"), async || {
        Ok(match pods.get_opt(pod).await? {
            None => Seen::Yes(()),
            Some(pod) => Seen::NotYet(format!("{:?}", pod.status)),
        })
    })
    .await
}

#[tokio::test]
async fn an_image_that_can_not_be_had_is_named_in_the_kubelets_words() -> Result<()> {
    let site = Site::spark("spark-image", Weight::Light).await?;
    site.until_go_file().await?;
    // An image that can never be pulled ends the run.
    site.jobs
        .create(&with_image("wrong", "Not/An:Image:1"))
        .await?;
    // An image that may come later is waited for: a minute, as the tests configure it.
    site.jobs
        .create(&with_image("late", "registry.invalid/spark:1"))
        .await?;
    let app = site
        .until_app("late", "waiting for its image", |app| {
            message(app).contains("ImagePull")
        })
        .await?;
    ensure!(state(&app) == "SUBMITTED", "{}", app["status"]);
    let waits = message(&app).to_owned();
    ensure!(waits.contains("registry.invalid/spark:1"), "{waits}");

    let app = site.until_app("wrong", "over", has_ended).await?;
    ensure!(state(&app) == "FAILED", "{}", app["status"]);
    let why = message(&app).to_owned();
    ensure!(
        why.starts_with("driver pod wrong-driver: InvalidImageName: ")
            && why.contains("Not/An:Image:1"),
        "{why}"
    );
    let events = site.events("wrong", "SparkApplicationFailed").await?;
    let told = said(&events, "Warning", "SparkApplicationFailed")?;
    ensure!(told.contains(&why), "{told}");
    // Its driver would wait for ever.
    until_gone(&site, "wrong-driver").await?;
    site.assert_why("wrong", "FAILED", &["InvalidImageName"])?;

    let app = site.until_app("late", "over", has_ended).await?;
    ensure!(state(&app) == "FAILED", "{}", app["status"]);
    let last = message(&app);
    ensure!(
        last.starts_with("driver pod late-driver: ") && last.contains("ImagePull"),
        "{last}"
    );
    until_gone(&site, "late-driver").await?;
    site.assert_why("late", "FAILED", &["ImagePull"])?;
    site.finish(&format!("{why}; {waits}")).await
}

#[tokio::test]
async fn a_driver_whose_volume_is_missing_names_it_and_fails_its_run_in_time() -> Result<()> {
    let site = Site::spark("spark-volume", Weight::Light).await?;
    // Nobody creates the ConfigMap with the program.
    site.jobs.create(&until_go("mount", 1)).await?;
    let app = site.until_app("mount", "over", has_ended).await?;
    ensure!(state(&app) == "FAILED", "{}", app["status"]);
    let why = message(&app).to_owned();
    ensure!(
        why.starts_with("driver pod mount-driver: PodNotStarting: ")
            && why.contains("ConfigMap programs"),
        "{why}"
    );
    until_gone(&site, "mount-driver").await?;
    site.assert_why("mount", "FAILED", &["PodNotStarting"])?;
    site.finish(&why).await
}
