//! Stored objects that no operator can decode, for example from an older CRD.

use e2e::lives::{Life, has_succeeded};
use e2e::{for_each_kind, loose};
use training_testkit::builders::{EVERY_KIND, SCHEDULED, SPARK, application};
use training_testkit::control_plane::{ADMIN, ControlPlane, Options};
use training_testkit::job::Jobs;
use training_testkit::manifest;

use super::*;

/// An object whose spec has text in place of a field's object.
fn poison(kind: Kind, name: &str) -> Value {
    let field = match kind {
        SPARK => "driver",
        SCHEDULED => "template",
        _ => kind.replica_map,
    };
    let object = kind.job(name).set(&format!("/spec/{field}"), "text");
    object.build()
}

/// A job that decodes but is invalid fails, with the reason in its status.
async fn ends_what_is_invalid(world: &World, kind: Kind) -> Result<()> {
    let job = kind
        .small_job("invalid", 1)
        .run_policy("backoffLimit", -1)
        .build();
    world.jobs.create(&job).await?;
    let job = world.jobs.until_true("invalid", "Failed").await?;
    let failed = condition(&job, "Failed")?;
    ensure!(failed.reason == "InvalidSpec", "{failed:?}");
    ensure!(failed.message.contains("backoffLimit"), "{failed:?}");
    Ok(())
}

/// A schedule creates an application, which runs to completion.
async fn serves_a_schedule(world: &World, schedules: &Jobs) -> Result<()> {
    let schedule = SCHEDULED
        .job("often")
        .set("/spec/schedule", "@every 1s")
        .set("/spec/concurrencyPolicy", "Forbid")
        .set("/spec/template", application("any")["spec"].clone());
    schedules.create(&schedule.build()).await?;
    let run = |schedule: &Value| {
        schedule["status"]["lastRunName"]
            .as_str()
            .map(str::to_owned)
    };
    let made = schedules
        .until("often", "with a run", |schedule| run(schedule).is_some())
        .await?;
    let held = json!({ "spec": { "suspend": true } });
    schedules.merge("often", &held).await?;
    let run = run(&made).context("no run")?;
    let actor = world.actor(&run);
    actor.run_all().await?;
    actor.all_end_well().await?;
    world.jobs.until(&run, "at its end", has_succeeded).await?;
    Ok(())
}

async fn set_aside(control: &'static ControlPlane, kind: Kind) -> Result<()> {
    // A schedule has applications.
    let of = if kind == SCHEDULED { SPARK } else { kind };
    let Some(world) = World::made(of, control, "poison", lockstep()).await? else {
        return Ok(());
    };
    let (client, namespace) = (&world.client, world.namespace());
    let objects = Jobs::of(client.clone(), namespace, &kind.resource());
    // Once in the initial list, and once as an event.
    objects.create(&poison(kind, "before")).await?;
    let operator = world.operator().await?;
    objects.create(&poison(kind, "after")).await?;
    match kind {
        SCHEDULED => serves_a_schedule(&world, &objects).await?,
        _ => Life::shortest(kind).run(&world.actor("pt")).await?,
    }
    if TRAINING.contains(&kind) {
        ends_what_is_invalid(&world, kind).await?;
    }
    for name in ["before", "after"] {
        let events = read::events_with(client, namespace, name, "InvalidSpec").await?;
        ensure!(
            events.iter().all(|event| event.0 == "Warning"),
            "{events:?}"
        );
        let pods = read::pods(client, namespace, name).await?;
        ensure!(pods.is_empty(), "{name}: {:?}", read::names(&pods));
        let object = objects.get(name).await?;
        ensure!(object["status"].is_null(), "{}", object["status"]);
        // The auditor expects a state of every application at rest.
        objects.delete(name).await?;
    }
    world.assert_clean(&operator).await
}

#[tokio::test]
async fn b_024_what_cant_be_read_is_set_aside_and_all_else_is_served() -> Result<()> {
    // A control plane of its own, because its CRDs accept anything. It ends with the process.
    let options = Options {
        controller_manager: true,
        ..Options::default()
    };
    let control: &'static ControlPlane = Box::leak(Box::new(ControlPlane::start(options).await?));
    let kinds = || EVERY_KIND.into_iter().chain([SCHEDULED]);
    for kind in kinds() {
        control.install(kind.operator).await?;
    }
    let definitions: Result<_> = kinds().map(|kind| loose::definition_of(&kind)).collect();
    manifest::apply(&control.client(ADMIN).await?, definitions?).await?;
    for_each_kind(kinds(), |kind| set_aside(control, kind)).await
}
