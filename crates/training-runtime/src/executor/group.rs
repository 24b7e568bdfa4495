//! Requests for the group objects of gangs.

use kube::api::Patch;
use kube::core::Request as Build;
use kube::{Resource, ResourceExt};
use serde_json::Value;
use tokio::time::Instant;
use training_core::{Blocked, Group, GroupKind, GroupView, Uid};

use super::outcome::{StepError, refuse};
use super::{Executor, key, uid};
use crate::caller::Failure;
use crate::fault::Fault;
use crate::feed::group::{group_view, is_shown, seen_view};
use crate::feed::slim::Owned;

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
        let params = self.caller.post();
        let body =
            serde_json::to_vec(wanted).map_err(|e| StepError::Fault(Fault::Bug(e.to_string())))?;
        match self
            .caller
            .ask(Build::new(url(job, at)).create(&params, body))
            .await
        {
            Ok(made) => {
                self.cache_group(job, at.0, &made);
                Ok(())
            }
            Err(Failure::Exists(message)) => {
                let seen: Group = self.read_at(&url(job, at), &job.name_any()).await?;
                // Adopt a group that another operator created for the job or that lost our label; the label is set next.
                self.resolve_conflict(
                    uid(job),
                    group_view(&seen, at.0, self.parent),
                    &seen.metadata,
                    &message,
                    (REFUSED, Blocked::Gang),
                    self.children.groups.of_kind(at.0),
                )
            }
            Err(Failure::Fault(fault)) => Err(refuse(fault, REFUSED, Blocked::Gang)),
        }
    }

    /// Patches the fields of a group that follow its job.
    pub(super) async fn change_group<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        at: Address,
        name: &str,
        patch: &Value,
    ) -> Result<(), StepError> {
        let params = self.caller.patch();
        let request = Build::new(url(job, at)).patch(name, &params, &Patch::Merge(patch));
        match self.caller.ask(request).await {
            Ok(changed) => {
                self.cache_group(job, at.0, &changed);
                Ok(())
            }
            Err(failure) => {
                let fault = failure.into_fault();
                if matches!(fault, Fault::Conflict(_) | Fault::Missing { .. }) {
                    self.reread(job, at).await?;
                }
                Err(refuse(fault, REFUSED, Blocked::GangChange))
            }
        }
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
        let groups = &self.children.groups;
        if let Some(view) = self.read_group(job, at).await? {
            groups.of_kind(at.0).found(view);
        }
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
        let view = seen.and_then(|seen| group_view(&seen, at.0, self.parent));
        Ok(view.filter(|v| v.owner == uid(job)))
    }

    pub(super) async fn delete_group<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        at: Address,
        name: &str,
        of: Uid,
    ) -> Result<(), StepError> {
        let index = self.children.groups.of_kind(at.0);
        let how = training_core::Deletion::Graceful;
        self.delete_at(super::uid(job), &url(job, at), (name, of), how, index)
            .await
    }

    /// Stores the written group without waiting for the watch.
    fn cache_group<J: Resource<DynamicType = ()>>(&self, job: &J, kind: GroupKind, made: &Group) {
        if let Some(view) = seen_view(made, kind, self.parent) {
            let owned = Self::owned(job, uid(job), view);
            let index = self.children.groups.of_kind(kind);
            index.written(owned, Instant::now());
        }
    }
}
