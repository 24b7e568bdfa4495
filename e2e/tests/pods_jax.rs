//! `JAXJob` with the real JAX: two processes of `jax.distributed` train together.

use anyhow::{Context as _, Result, ensure};
use e2e::pods::{Site, Weight, example};
use training_testkit::builders::JAX;

#[tokio::test]
async fn two_processes_of_jax_train_one_model() -> Result<()> {
    let site = Site::of(JAX, "jax-train", Weight::Heavy).await?;
    site.jobs.create(&example("jax/train.yaml")?).await?;
    site.until_true("regression", "Succeeded").await?;
    let mut results = Vec::new();
    for id in 0..2 {
        let log = site.log(&format!("regression-worker-{id}")).await?;
        let rest = |begin: &str| {
            let mut lines = log.lines();
            let rest = lines.find_map(|line| line.strip_prefix(begin));
            rest.map(str::to_owned)
                .with_context(|| format!("no \"{begin}\" in {log}"))
        };
        let place = rest(&format!("process {id} of 2 on "))?;
        let expected = format!("regression-worker-{id}, coordinator regression-worker-0:6666");
        ensure!(place == expected, "{place}");
        results.push(rest(&format!("process {id}: 128 rows of 2 processes, "))?);
    }
    ensure!(results[0] == results[1], "{results:?}");
    site.finish(&results[0]).await
}
