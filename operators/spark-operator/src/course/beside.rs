//! What a driver runs without: the Services and Ingresses through which it is seen, and what keeps it from being evicted.
//!
//! It is made beside the driver, and again while the run goes on. Where it is refused, that is told, and nothing else waits for it.

use training_core::Note;

use super::draft::{Course, SLOW, later};
use super::seen::{Driver, Kind, Object, Withheld};
use super::step::{Make, Step};
use crate::names;
use crate::submission::Submission;

/// What stands before the name of what is missing.
const CANNOT: &str = "can't create the ";
/// What the reasons of events about that begin with.
const FAILED: &str = "FailedCreate";
/// What of a message is told at most, so that the cause beside it has room as well. Units: bytes.
const MOST: usize = 1024;

/// Takes out of a submission what its driver runs without.
pub(super) fn take(made: &mut Submission) -> Vec<Make> {
    let (services, ingresses): (Vec<_>, Vec<_>) = made.driver_ingresses.drain(..).unzip();
    let services = made.ui_service.clone().into_iter().chain(services);
    let ingresses = ingresses.into_iter().flatten();
    let ingresses = made.ui_ingress.clone().into_iter().chain(ingresses);
    let budget = made.disruption_budget.take();
    services
        .map(|s| Make::Service(Box::new(s)))
        .chain(ingresses.map(|i| Make::Ingress(Box::new(i))))
        .chain(budget.map(|b| Make::Budget(Box::new(b))))
        .collect()
}

impl Course<'_> {
    /// An object of the driver's run.
    pub(super) fn object(&self, driver: &Driver, kind: Kind, name: &str) -> Option<&Object> {
        let id = &driver.submission_id;
        let mut objects = self.ask.seen.objects.iter();
        objects.find(|o| o.kind == kind && o.name == name && o.submission_id == *id)
    }

    /// What [`take`] takes, by its names alone: a submission costs too much to be put together at every look.
    fn expected(&self, driver: &Driver) -> Vec<(Kind, String)> {
        let (app, web) = (self.name(), &self.ask.settings.web);
        let mut all = Vec::new();
        if web.service.is_on() {
            all.push((Kind::Service, names::ui_service(&app)));
            if !web.url_format.is_empty() {
                all.push((Kind::Ingress, names::ui_ingress(&app)));
            }
        }
        for options in &self.spec.driver_ingress_options {
            let Some(port) = options.service_port else {
                continue;
            };
            all.push((Kind::Service, names::driver_port(&app, port)));
            let format = options.ingress_url_format.as_ref();
            if format.is_some_and(|format| !format.is_empty()) {
                all.push((Kind::Ingress, names::driver_ingress(&app, port)));
            }
        }
        let budget = self.spec.driver_pod_disruption_budget == Some(true);
        if budget && self.ask.settings.disruption_budget.is_on() {
            all.push((Kind::Budget, driver.name.clone()));
        }
        all
    }

    /// Makes what is missing beside a driver that is there, and records what of it is there now.
    pub(super) fn complete(&mut self, driver: &Driver) {
        // Of a run that another operator began nobody knows what it has.
        if driver.digest.is_none() || driver.leaving {
            return;
        }
        let mut due = Vec::new();
        for (kind, name) in self.expected(driver) {
            if self.is_taken(kind, &name) {
                continue;
            }
            let tried = self.withheld().find(|w| w.kind == kind && w.name == name);
            match tried.map(|w| later(w.at, SLOW)) {
                Some(at) if at > self.ask.now => self.wake(at),
                _ => due.push((kind, name)),
            }
        }
        if !due.is_empty()
            && let Ok(mut made) = self.made(&driver.submission_id)
        {
            let all = take(&mut made).into_iter();
            let all = all.filter(|make| due.contains(&make.id()));
            self.plan.steps.extend(all.map(Step::MakeBeside));
        }
        let app = self.name();
        let info = &self.status.driver_info;
        let is_new = |recorded: &Option<String>, kind, name: String| {
            recorded.is_none() && self.object(driver, kind, &name).is_some()
        };
        if is_new(
            &info.web_ui_service_name,
            Kind::Service,
            names::ui_service(&app),
        ) || is_new(
            &info.web_ui_ingress_name,
            Kind::Ingress,
            names::ui_ingress(&app),
        ) {
            self.status.driver_info = self.driver_info(driver);
        }
    }

    /// What of the present run could not be made, and is not there by now.
    fn withheld(&self) -> impl Iterator<Item = &Withheld> {
        let id = self.status.submission_id.as_deref().unwrap_or_default();
        let withheld = self.ask.seen.withheld.iter();
        withheld.filter(move |w| w.submission_id == id && !self.is_taken(w.kind, &w.name))
    }

    /// True if there is an object of this name, of whatever run.
    fn is_taken(&self, kind: Kind, name: &str) -> bool {
        let mut objects = self.ask.seen.objects.iter();
        objects.any(|o| o.kind == kind && o.name == name)
    }

    /// Says in the status what there is to say of a run that goes on: this, and what of it could not be made.
    pub(super) fn show(&mut self, mut text: Option<String>) {
        if let Some(text) = &mut text {
            text.truncate(text.floor_char_boundary(MOST));
        }
        let missing = self.withheld().count();
        let first = self.withheld().next().map(|w| {
            let message = &w.message[..w.message.floor_char_boundary(MOST)];
            let kind = reason(w.kind).trim_start_matches(FAILED);
            let name = &w.name;
            let others = match missing {
                1 => String::new(),
                n => format!(", nor {} more objects", n - 1),
            };
            let told = format!(
                "{CANNOT}{kind} {name}{others}: {message}: the application runs without, and the operator tries again"
            );
            (w.kind, told)
        });
        if let Some((kind, told)) = first {
            let before = self.status.application_state.error_message.as_ref();
            if !before.is_some_and(|before| before.contains(&told)) {
                self.tell(Note::warning(reason(kind), told.clone()));
            }
            text = Some(text.map_or(told.clone(), |text| format!("{text}; {told}")));
        }
        self.status.application_state.error_message = text;
    }
}

/// A message of [`Course::show`] without what could not be made.
pub(super) fn cause(shown: &str) -> Option<&str> {
    if shown.starts_with(CANNOT) {
        return None;
    }
    let end = shown.find(&format!("; {CANNOT}")).unwrap_or(shown.len());
    Some(&shown[..end])
}

/// The reason of the event that it can't be made. It ends with the kind's name.
fn reason(kind: Kind) -> &'static str {
    match kind {
        Kind::ConfigMap => "FailedCreateConfigMap",
        Kind::Service => "FailedCreateService",
        Kind::Ingress => "FailedCreateIngress",
        Kind::Claim => "FailedCreatePersistentVolumeClaim",
        Kind::NetworkPolicy => "FailedCreateNetworkPolicy",
        Kind::Budget => "FailedCreatePodDisruptionBudget",
        Kind::VolcanoGroup | Kind::CoschedulingGroup => "FailedCreatePodGroup",
    }
}
