//! Kills the operator repeatedly while it submits applications: none may get a second driver.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join;
use http::Method;
use serde::Deserialize;
use training_testkit::operator::OperatorProcess;

use crate::bodies::Resource;
use crate::http::Ask;
use crate::kind;
use crate::load::{Load, Processes};
use crate::runs::{HANG, SETTLE, USUAL, names, number};
use crate::size::Setting;
use crate::stage::{Audit, Client, Stage};
use crate::store::{Pair, Side};

/// How long the operator runs between becoming ready and being killed.
const LIFE: Duration = Duration::from_millis(500);

/// Counts superfluous drivers and other objects.
pub async fn killed(setting: &Setting, say: &dyn Fn(&str)) -> Result<Pair> {
    let (count, kills) = setting.size.killed;
    let stage = Stage::start(setting.kind, Audit::Off, Side::Ours).await?;
    let load = Load::start(&stage).await?;
    let mut driver = stage.driver(USUAL).await?;
    // Without election: the operator would wait for the dead leader's lease and be idle at the next kill.
    let options = stage.operator().await?.flag("leader-elect", "false");
    let mut operator = OperatorProcess::start(options).await?;
    let apps = names("job", count);
    let ended = || {
        let done = |name: &&String| load.seen(name, |app| app.succeeded.is_some()) == Some(true);
        apps.iter().filter(done).count()
    };
    let killing = async {
        let mut hit = 0;
        for _ in 0..kills {
            tokio::time::sleep(LIFE).await;
            hit += usize::from(ended() < count);
            operator.kill()?;
            operator.restart().await?;
        }
        Ok(hit)
    };
    let ((), hit) = try_join(load.create_all(&apps), killing).await?;
    ensure!(hit > 0, "every application had ended before the first kill");
    say(&format!(
        "{hit} of {kills} kills hit; {} of {count} applications had ended by then",
        ended()
    ));
    let mut client = Client::Ours(operator);
    let mut processes = Processes {
        client: &mut client,
        driver: &mut driver,
        stage: &stage,
    };
    load.until_succeeded(&apps, HANG, &mut processes).await?;
    tokio::time::sleep(SETTLE).await;
    if let Client::Ours(operator) = &client {
        operator.assert_no_panic()?;
    }
    let doubles = load.uids(&apps) - apps.len();
    load.verify(&apps, doubles).await?;
    let mut things = 0;
    for resource in [Resource::ConfigMap, Resource::Service] {
        things += self::count(&stage, resource).await?;
    }
    let figures = [
        ("kills", hit),
        ("applications", count),
        ("doubles", doubles),
        ("left_over", things),
    ];
    let ours = figures.map(|(name, value)| (name.to_owned(), number(value)));
    Ok(Pair {
        ours: ours.into(),
        ..Pair::default()
    })
}

/// Counts objects of runs in the namespace.
async fn count(stage: &Stage, resource: Resource) -> Result<usize> {
    #[derive(Deserialize)]
    struct List {
        items: Option<Vec<serde::de::IgnoredAny>>,
    }
    let (path, query) = (resource.path(&stage.namespace), kind::of_jobs(&stage.kind));
    let list = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let path = format!("{path}?resourceVersion=0{query}");
    let body = stage.api.must(Method::GET, &path, Ask::read(list)).await?;
    let list: List = serde_json::from_slice(&body)?;
    // Lists of metadata say null where there is nothing.
    Ok(list.items.map_or(0, |items| items.len()))
}
