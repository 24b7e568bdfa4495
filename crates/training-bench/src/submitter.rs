//! The floor client of applications: the minimum that a reactive client must do to submit one and to report its state.
//!
//! It watches applications and drivers. For a new application it creates the driver's ConfigMaps and Services, all at once, then the
//! driver, then writes `SUBMITTED` with the address of the web UI's Service. It writes `RUNNING` when the driver runs, `SUCCEEDING`
//! and `COMPLETED` when it has succeeded, and deletes ConfigMaps and Services. It skips a state that is over before it is written.
//! It sends no events, holds no lease, validates nothing, watches neither services nor config maps, stores only what it needs,
//! and ends at the first error.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use http::Method;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use tokio::sync::Semaphore;
use training_testkit::builders::SPARK;

use crate::application::{Bodies, Ids, STATES, Values};
use crate::bodies::{Resource, now};
use crate::child;
use crate::floor::{
    Event, IN_FLIGHT, Identity, SlimJob, SlimPod, Work, beside, deletion, identity, version,
    version_of,
};
use crate::http::{Api, Ask, JSON, Watch};
use crate::kind;

/// The state of one application.
struct App {
    uid: String,
    version: String,
    ids: Ids,
    /// The address of the web UI's Service.
    address: String,
    /// The created ConfigMaps and Services.
    made: Vec<(Resource, Identity)>,
    /// Whether the driver was created.
    born: bool,
    /// The driver's phase.
    phase: String,
    /// The index of the next status.
    next: usize,
    /// Whether a task is writing a status.
    busy: bool,
}

impl App {
    /// Returns whether its last status is written.
    fn has_ended(&self) -> bool {
        self.next == STATES.len()
    }

    /// Returns whether the next status is due. Like the operator, skips `RUNNING` if the driver has already ended.
    fn is_due(&mut self) -> bool {
        let ended = self.phase == "Succeeded";
        if self.next == 1 && ended {
            self.next = 2;
        }
        match self.next {
            0 => self.born,
            1 => self.phase == "Running",
            // `COMPLETED` follows `SUCCEEDING` at once.
            2 | 3 => ended,
            _ => false,
        }
    }
}

struct Submitter {
    api: Api,
    namespace: String,
    bodies: Bodies,
    apps: RefCell<HashMap<String, App>>,
    gate: Semaphore,
}

/// Runs until standard input ends.
pub async fn run(kubeconfig: &std::path::Path, namespace: &str) -> Result<()> {
    let floor = Rc::new(Submitter {
        api: Api::new(kubeconfig).await?,
        namespace: namespace.to_owned(),
        bodies: Bodies::new()?,
        apps: RefCell::default(),
        gate: Semaphore::new(IN_FLIGHT),
    });
    let apps = kind::jobs(&SPARK, namespace);
    let pods = Resource::Pod.path(namespace);
    // Starts before the first application, so there is nothing to list.
    let from = version(&floor.api, &apps).await?;
    let mut app_events = floor.api.watch(&apps, "", &from, JSON).await?;
    let from = version(&floor.api, &pods).await?;
    let selector = kind::selector(&SPARK);
    let mut pod_events = floor.api.watch(&pods, &selector, &from, JSON).await?;
    child::say("ready")?;
    let (run, mut fault) = beside();
    loop {
        tokio::select! {
            line = app_events.next() => {
                floor.app(&line?, &mut app_events)?.into_iter().for_each(&run);
            }
            line = pod_events.next() => {
                floor.pod(&line?, &mut pod_events)?.into_iter().for_each(&run);
            }
            Some(error) = fault.recv() => return Err(error),
        }
    }
}

impl Submitter {
    /// Handles a line of the applications' watch: submits new ones; all other events are caused by our own writes.
    fn app(self: &Rc<Self>, line: &[u8], watch: &mut Watch) -> Result<Option<Work>> {
        let event: Event<SlimJob<'_>> = serde_json::from_slice(line)?;
        anyhow::ensure!(event.kind != "ERROR", "the watch of applications failed");
        let app = event.object;
        watch.seen(&app.metadata.resource_version);
        if event.kind != "ADDED" || app.status.is_some() {
            return Ok(None);
        }
        let new = App {
            ids: Ids::new(&app.metadata.uid, &self.bodies.digest),
            uid: app.metadata.uid.into_owned(),
            version: app.metadata.resource_version.into_owned(),
            address: String::new(),
            made: Vec::new(),
            born: false,
            phase: String::new(),
            next: 0,
            busy: false,
        };
        let name = app.metadata.name.into_owned();
        self.apps.borrow_mut().insert(name.clone(), new);
        let floor = Rc::clone(self);
        Ok(Some(Box::pin(async move {
            floor.submit(&name).await?;
            floor.go_on(&name).await
        })))
    }

    /// Handles a line of the pods' watch, which may make the next status due.
    fn pod(self: &Rc<Self>, line: &[u8], watch: &mut Watch) -> Result<Option<Work>> {
        let event: Event<SlimPod<'_>> = serde_json::from_slice(line)?;
        anyhow::ensure!(event.kind != "ERROR", "the watch of pods failed");
        let pod = event.object;
        watch.seen(&pod.metadata.resource_version);
        if event.kind == "BOOKMARK" {
            return Ok(None);
        }
        let name = pod.metadata.labels.job.into_owned();
        {
            let mut apps = self.apps.borrow_mut();
            let Some(app) = apps.get_mut(&name) else {
                return Ok(None);
            };
            app.phase = pod.status.phase.into_owned();
        }
        let floor = Rc::clone(self);
        Ok(Some(Box::pin(async move { floor.go_on(&name).await })))
    }

    /// Creates all objects of an application.
    async fn submit(&self, name: &str) -> Result<()> {
        let things = 0..self.bodies.things.len();
        try_join_all(things.map(|at| self.make(name, at))).await?;
        let path = Resource::Pod.path(&self.namespace);
        let body = self.filled(name, |_| &self.bodies.driver)?;
        let place = self.gate.acquire().await?;
        self.api.must(Method::POST, &path, Ask::write(body)).await?;
        drop(place);
        if let Some(app) = self.apps.borrow_mut().get_mut(name) {
            app.born = true;
        }
        Ok(())
    }

    /// Creates one of the ConfigMaps or Services.
    async fn make(&self, name: &str, at: usize) -> Result<()> {
        #[derive(Deserialize)]
        struct Service {
            spec: Spec,
        }
        #[derive(Deserialize)]
        struct Spec {
            #[serde(rename = "clusterIP")]
            address: String,
        }
        let (resource, _) = self.bodies.things[at];
        let path = resource.path(&self.namespace);
        let body = self.filled(name, |_| &self.bodies.things[at].1)?;
        let is_ui = at == self.bodies.ui;
        let place = self.gate.acquire().await?;
        let ask = if is_ui {
            Ask::write_and_read(body)
        } else {
            Ask::write(body)
        };
        let answer = self.api.must(Method::POST, &path, ask).await?;
        drop(place);
        if let Some(app) = self.apps.borrow_mut().get_mut(name) {
            app.made.push((resource, identity(&answer)?));
            if is_ui {
                app.address = serde_json::from_slice::<Service>(&answer)?.spec.address;
            }
        }
        Ok(())
    }

    /// Writes the due statuses one after the other.
    async fn go_on(&self, name: &str) -> Result<()> {
        while self.claim(name) {
            let path = format!("{}/{name}/status", kind::jobs(&SPARK, &self.namespace));
            let body = self.filled(name, |app| &self.bodies.statuses[app.next])?;
            let place = self.gate.acquire().await?;
            let answer = self
                .api
                .must(Method::PATCH, &path, Ask::patch(body))
                .await?;
            drop(place);
            if let Some(app) = self.apps.borrow_mut().get_mut(name) {
                app.version = version_of(&answer)?;
                app.next += 1;
                app.busy = false;
            }
        }
        let left = {
            let mut apps = self.apps.borrow_mut();
            let app = apps.get_mut(name).filter(|app| app.has_ended());
            app.map(|app| std::mem::take(&mut app.made))
        };
        let left = left.unwrap_or_default();
        try_join_all(left.iter().map(|(resource, of)| self.delete(*resource, of))).await?;
        Ok(())
    }

    async fn delete(&self, resource: Resource, of: &Identity) -> Result<()> {
        let path = format!("{}/{}", resource.path(&self.namespace), of.name);
        let _place = self.gate.acquire().await?;
        let ask = Ask::write(deletion(&of.uid, r#""propagationPolicy":"Background""#));
        self.api.must(Method::DELETE, &path, ask).await?;
        Ok(())
    }

    /// Claims the next status; returns whether one is due and no other task writes it.
    fn claim(&self, name: &str) -> bool {
        let mut apps = self.apps.borrow_mut();
        let app = apps.get_mut(name).filter(|app| !app.busy);
        app.is_some_and(|app| {
            app.busy = app.is_due();
            app.busy
        })
    }

    /// Fills a template for an application.
    fn filled<'a>(
        &'a self,
        name: &str,
        body: impl FnOnce(&App) -> &'a crate::template::Template,
    ) -> Result<String> {
        let apps = self.apps.borrow();
        let app = apps.get(name).context("one that was never seen")?;
        // Whole seconds in milliseconds, as the operator writes them.
        let millis = format!("{}000", Timestamp::now().as_second());
        let values = Values {
            name,
            namespace: &self.namespace,
            uid: &app.uid,
            version: &app.version,
            time: &now(),
            millis: &millis,
            address: &app.address,
            ids: &app.ids,
        };
        Ok(body(app).fill(&values.in_order()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_follow_the_driver() {
        let ids = Ids::of("22222222-2222-3333-4444-555555555555".to_owned());
        let is_due = |born: bool, phase: &str, next: usize| {
            let mut app = App {
                uid: String::new(),
                version: String::new(),
                ids: ids.clone(),
                address: String::new(),
                made: Vec::new(),
                born,
                phase: phase.to_owned(),
                next,
                busy: false,
            };
            app.is_due().then_some(app.next)
        };
        assert_eq!(is_due(false, "Pending", 0), None);
        assert_eq!(is_due(true, "Pending", 0), Some(0));
        assert_eq!(is_due(true, "Pending", 1), None);
        assert_eq!(is_due(true, "Running", 1), Some(1));
        assert_eq!(is_due(true, "Running", 2), None);
        assert_eq!(is_due(true, "Succeeded", 2), Some(2));
        assert_eq!(is_due(true, "Succeeded", 3), Some(3));
        assert_eq!(is_due(true, "Succeeded", 4), None);
        // The driver was never seen running.
        assert_eq!(is_due(true, "Succeeded", 1), Some(2));
    }
}
