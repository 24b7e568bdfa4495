//! Objects that a driver doesn't depend on: Services and Ingresses that expose it, and its PodDisruptionBudget.
//!
//! The operator creates them along with the driver, and retries during the run. A refusal is reported and blocks nothing else.

use training_core::Note;
use training_core::plan::draft::shorten;

use super::draft::{Draft, SLOW, later};
use super::observed::{Driver, Kind, MissingObject, Object};
use super::step::{NewObject, Step};
use crate::names;
use crate::submission::Submission;

/// The prefix of messages about missing objects.
const CANNOT: &str = "can't create the ";
/// The prefix of event reasons about missing objects.
const FAILED: &str = "FailedCreate";
/// What follows the cause.
const REMEDY: &str = ": the application runs without, and the operator tries again";
/// The longest message of an event. Units: bytes.
const MAX_MESSAGE: usize = 1024;

/// Takes the objects that the driver doesn't depend on out of a submission.
pub(super) fn take(submission: &mut Submission) -> Vec<NewObject> {
    let (services, ingresses): (Vec<_>, Vec<_>) = submission.driver_ingresses.drain(..).unzip();
    let services = submission.ui_service.clone().into_iter().chain(services);
    let ingresses = ingresses.into_iter().flatten();
    let ingresses = submission.ui_ingress.clone().into_iter().chain(ingresses);
    let budget = submission.disruption_budget.take();
    services
        .map(|s| NewObject::Service(Box::new(s)))
        .chain(ingresses.map(|i| NewObject::Ingress(Box::new(i))))
        .chain(budget.map(|b| NewObject::Budget(Box::new(b))))
        .collect()
}

impl Draft<'_> {
    /// Returns an object of the driver's run.
    pub(super) fn object(&self, driver: &Driver, kind: Kind, name: &str) -> Option<&Object> {
        let id = &driver.submission_id;
        let mut objects = self.input.observed.objects.iter();
        objects.find(|o| o.kind == kind && o.name == name && o.submission_id == *id)
    }

    /// Returns the ids of the objects that [`take`] takes. Building a whole submission on every reconcile costs too much.
    fn expected(&self, driver: &Driver) -> Vec<(Kind, String)> {
        let (app, web) = (self.name(), &self.input.settings.web);
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
        if budget && self.input.settings.disruption_budget.is_on() {
            all.push((Kind::Budget, driver.name.clone()));
        }
        all
    }

    /// Creates the missing optional objects of a driver that has not ended.
    pub(super) fn create_missing_optional(&mut self, driver: &Driver) {
        // The objects of a run that another operator started are unknown.
        if driver.digest.is_none() || driver.terminating {
            return;
        }
        let mut due = Vec::new();
        for (kind, name) in self.expected(driver) {
            if self.is_taken(kind, &name) {
                continue;
            }
            let tried = self
                .missing_objects()
                .find(|w| w.kind == kind && w.name == name);
            match tried.map(|w| later(w.at, SLOW)) {
                Some(at) if at > self.input.now => self.requeue_at(at),
                _ => due.push((kind, name)),
            }
        }
        if !due.is_empty()
            && let Ok(mut submission) = self.build(&driver.submission_id)
        {
            let all = take(&mut submission).into_iter();
            let all = all.filter(|object| due.contains(&object.id()));
            self.plan.steps.extend(all.map(Step::CreateOptional));
        }
    }

    /// Records the web UI's objects that exist, also if the driver ended before the reconcile that would have recorded them.
    pub(super) fn record_web_ui(&mut self, driver: &Driver) {
        if driver.digest.is_none() {
            return;
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

    /// Objects of the present run that could not be created and still don't exist.
    fn missing_objects(&self) -> impl Iterator<Item = &MissingObject> {
        let id = self.status.submission_id.as_deref().unwrap_or_default();
        let missing_objects = self.input.observed.missing_objects.iter();
        missing_objects.filter(move |w| w.submission_id == id && !self.is_taken(w.kind, &w.name))
    }

    /// True if an object has this name, from any run.
    fn is_taken(&self, kind: Kind, name: &str) -> bool {
        let mut objects = self.input.observed.objects.iter();
        objects.any(|o| o.kind == kind && o.name == name)
    }

    /// Sets the message of a running application to `text` plus the objects that could not be created.
    pub(super) fn set_message(&mut self, mut text: Option<String>) {
        let missing = self.missing_objects().count();
        let first = self.missing_objects().next().map(|w| {
            let kind = reason(w.kind).trim_start_matches(FAILED);
            let name = &w.name;
            let others = match missing {
                1 => String::new(),
                n => format!(", nor {} more objects", n - 1),
            };
            let object = format!("{CANNOT}{kind} {name}{others}: ");
            // Only the API server's words are shortened.
            let most = MAX_MESSAGE.saturating_sub(object.len() + REMEDY.len());
            let notice = format!("{object}{}{REMEDY}", shorten(&w.message, most));
            (w.kind, notice)
        });
        if let Some((kind, notice)) = first {
            let before = self.status.application_state.error_message.as_ref();
            if !before.is_some_and(|before| before.contains(&notice)) {
                self.record_event(Note::warning(reason(kind), notice.clone()));
            }
            text = Some(text.map_or(notice.clone(), |text| format!("{text}; {notice}")));
        }
        self.status.application_state.error_message = text;
    }
}

/// Returns a message of [`Draft::set_message`] without the part about missing objects.
pub(super) fn cause(message: &str) -> Option<&str> {
    if message.starts_with(CANNOT) {
        return None;
    }
    let end = message
        .find(&format!("; {CANNOT}"))
        .unwrap_or(message.len());
    Some(&message[..end])
}

/// The reason of the event for an object that can't be created. It ends with the kind's name.
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
