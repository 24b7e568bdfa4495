//! The objects beside the pods: Secret, ConfigMap and Services.

use serde_json::{Value, json};
use training_core::{Census, Draft, Object, ObjectView, Step, Urgency};

use super::workers::runs;
use super::{Reconcile, change, replacing};
use crate::api::Origin;
use crate::common::Common;
use crate::names::{self, SECRET};
use crate::objects;

impl<'a> Reconcile<'a> {
    /// Returns the name of the job's Secret once it exists. Until then this creates the other objects that pods mount and withholds
    /// the status, so that the first status written names the Secret.
    ///
    /// `retried`: the launcher has failed since the last reconcile.
    pub(super) fn secret(
        &self,
        census: &Census<'a>,
        retried: bool,
        draft: &mut Draft,
    ) -> Option<String> {
        if let Some(name) = draft.state.made_once.get(SECRET).cloned() {
            // Somebody may have deleted it. The operator never reads it, so it requests it again when a run starts.
            if draft.starts || retried {
                let object = Object::Secret(objects::secret(&self.common(&name)));
                draft.steps.push(Step::RecreateSecret(Box::new(object)));
            }
            return Some(name);
        }
        let known = &self.observed.secret;
        // A job of v1 without a Job was started by an operator without keys.
        let keyless = self.setup.origin == Origin::V1 && self.batch.is_none();
        let begun = self.batch.is_some() || !self.observed.pods.is_empty() && !keyless;
        let name = match &known.made {
            Some(name) => name.to_string(),
            // Another operator started the job, under the published name.
            None if begun => names::secret(self.setup.name, 0),
            None => {
                let name = names::secret(self.setup.name, known.taken);
                let common = self.common("");
                self.ensure_objects(&common, census, draft);
                let mut secret = objects::secret(&common);
                secret.metadata.name = Some(name);
                draft
                    .steps
                    .push(Step::CreateObject(Box::new(Object::Secret(secret))));
                // If the creation keeps failing, the status at least shows that the job was seen.
                (draft.withheld, draft.requeue) = (!self.observed.failing, true);
                return None;
            }
        };
        draft
            .state
            .made_once
            .insert(SECRET.to_owned(), name.clone());
        draft.urgency(if begun {
            Urgency::Batched
        } else {
            Urgency::First
        });
        Some(name)
    }

    /// Creates or updates the Services and the ConfigMap. Returns true once all of them exist: pods need them.
    pub(super) fn ensure_objects(
        &self,
        common: &Common<'_>,
        census: &Census<'a>,
        draft: &mut Draft,
    ) -> bool {
        let mut complete = true;
        let running = self.workers(census).filter(|s| runs(s));
        let running: Vec<u32> = running.map(|s| s.index).collect();
        let services =
            std::iter::once(objects::service(common)).chain(objects::launcher_service(common));
        let config = objects::config(common, running);
        let wanted = services
            .map(|service| Object::Service(Box::new(service)))
            .chain([Object::ConfigMap(config)]);
        for object in wanted {
            let Some(kind) = object.watched() else {
                continue;
            };
            match self.observed.object(kind, &object.name()) {
                None => {
                    complete = false;
                    draft.steps.push(Step::CreateObject(Box::new(object)));
                }
                Some(view) if view.terminating || view.digest == object.digest() => {}
                Some(view) => draft.steps.push(change(view, body(&object, view))),
            }
        }
        complete
    }
}

/// Returns the patch for an existing Service or ConfigMap.
fn body(object: &Object, view: &ObjectView) -> Value {
    match object {
        Object::Service(service) => {
            let spec = service.spec.as_ref();
            let unready = spec.and_then(|s| s.publish_not_ready_addresses);
            json!({"spec": {
                "selector": replacing(spec.and_then(|s| s.selector.as_ref()), view),
                "publishNotReadyAddresses": unready == Some(true),
            }})
        }
        Object::ConfigMap(config) => json!({"data": replacing(config.data.as_ref(), view)}),
        Object::Job(_) | Object::Secret(_) => json!({}),
    }
}
