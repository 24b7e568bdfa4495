//! Requests for the group objects of gangs.

use kube::api::DeleteParams;
use kube::{Resource, ResourceExt};
use serde_json::Value;
use tokio::time::Instant;
use training_core::{Blocked, Group, GroupKind, GroupView, Uid};

use super::outcome::{StepError, refuse};
use super::{Executor, deleted, key, uid};
use crate::caller::Response;
use crate::fault::Fault;
use crate::feed::group::{group_view, is_shown, seen_view};
use crate::feed::slim::Owned;
use crate::requests::ChildRequests;

/// The event reason of a rejected group.
const REFUSED: &str = "FailedCreatePodGroup";

/// A kind of group and its API version.
pub(super) type Address = (GroupKind, &'static str);

fn url<J: Resource<DynamicType = ()>>(job: &J, (kind, version): Address) -> String {
    Group::url_path(&kind.resource(version), job.meta().namespace.as_deref())
}

impl Executor {
    pub(super) async fn create_group<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        at: Address,
        wanted: &Value,
    ) -> Result<(), StepError> {
        let requests = self.group_requests(job, at);
        let created = |made: &Group| self.entry(job, at.0, made);
        // Adopts a group that another operator created for the job or that lost our label; the label is set next.
        let existing = |seen: &Group| group_view(seen, at.0, self.owner_kind);
        let object = (&*job.name_any(), wanted);
        let result = requests.create(object, Response::Object, created, existing);
        result.await.map_err(|error| {
            let refusal = (REFUSED, Blocked::Gang);
            self.not_created(uid(job), error, refusal)
        })
    }

    /// Patches the fields of a group that follow its job.
    pub(super) async fn change_group<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        at: Address,
        name: &str,
        patch: &Value,
    ) -> Result<(), StepError> {
        let requests = self.group_requests(job, at);
        let changed = |answer: &Group| self.entry(job, at.0, answer);
        let result = requests.patch((name, None), patch, Response::Object, changed);
        let Err(fault) = result.await else {
            return Ok(());
        };
        if matches!(fault, Fault::Conflict(_) | Fault::Missing { .. }) {
            self.reread(job, at).await?;
        }
        Err(refuse(fault, REFUSED, Blocked::GangChange))
    }

    /// Reads a group that the watch doesn't show, before a retry.
    async fn reread<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        at: Address,
    ) -> Result<(), StepError> {
        let index = self.children.groups.of_kind(at.0);
        let known = index.of(uid(job)).pop();
        let Some(known) = known.filter(|g| !is_shown(g)) else {
            return Ok(());
        };
        match self.read_group(job, at).await? {
            Some(now) if now.view.uid == known.uid => {
                index.found(now);
            }
            Some(_) | None => index.record_gone(uid(job), known.uid, Instant::now()),
        }
        Ok(())
    }

    /// Searches for a group of the job that the watch doesn't show.
    pub(super) async fn find_group<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        at: Address,
    ) -> Result<(), StepError> {
        let existing = |seen: &Group| group_view(seen, at.0, self.owner_kind);
        let requests = self.group_requests(job, at);
        let found = requests.find(&job.name_any(), existing).await;
        found.map_err(StepError::Fault)?;
        let groups = &self.children.groups;
        groups.sought(&key(job), uid(job), at.0);
        Ok(())
    }

    /// Reads the job's group by name; `None` if it does not exist or is not the job's.
    async fn read_group<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        at: Address,
    ) -> Result<Option<Owned<GroupView>>, StepError> {
        let (url, name) = (url(job, at), job.name_any());
        let seen = self.caller.find::<Group>(&url, &name);
        let seen = seen.await.map_err(StepError::Fault)?;
        let view = seen.and_then(|seen| group_view(&seen, at.0, self.owner_kind));
        Ok(view.filter(|v| v.owner == uid(job)))
    }

    pub(super) async fn delete_group<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        at: Address,
        name: &str,
        of: Uid,
    ) -> Result<(), StepError> {
        let requests = self.group_requests(job, at);
        deleted(requests.delete(name, of, DeleteParams::default()).await)
    }

    fn group_requests<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        at: Address,
    ) -> ChildRequests<'_, GroupView> {
        self.requests_at(job, url(job, at), self.children.groups.of_kind(at.0))
    }

    /// Returns the index's entry of a written group.
    fn entry<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        kind: GroupKind,
        made: &Group,
    ) -> Option<Owned<GroupView>> {
        Some(Self::owned(job, seen_view(made, kind, self.owner_kind)?))
    }
}
