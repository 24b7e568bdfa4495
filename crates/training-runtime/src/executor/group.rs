//! Calls about the objects that stand for gangs.

use kube::api::{Patch, PatchParams, PostParams};
use kube::core::Request as Build;
use kube::{Resource, ResourceExt};
use serde_json::Value;
use tokio::time::Instant;
use training_core::{Blocked, Group, GroupKind, Uid};

use super::outcome::{Failure, Stopped, refuse};
use super::{Executor, uid};
use crate::fault::Fault;
use crate::feed::group::group_view;

/// The reason of the event when a group is refused.
const REFUSED: &str = "FailedCreatePodGroup";

/// A kind of group in one version of its API.
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
    ) -> Result<(), Stopped> {
        let params = PostParams {
            field_manager: Some(self.manager.clone()),
            ..PostParams::default()
        };
        let body =
            serde_json::to_vec(wanted).map_err(|e| Stopped::Fault(Fault::Bug(e.to_string())))?;
        match self
            .ask(Build::new(url(job, at)).create(&params, body))
            .await
        {
            Ok(made) => {
                self.knows_group(job, at.0, &made);
                Ok(())
            }
            Err(Failure::Exists(message)) => {
                let seen: Group = self.read_at(&url(job, at), &job.name_any()).await?;
                // One that another operator made for the job is taken in, and gets our label next.
                Self::settle(
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

    /// Writes what of a group follows its job over what it is.
    pub(super) async fn change_group<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        at: Address,
        name: &str,
        patch: &Value,
    ) -> Result<(), Stopped> {
        let params = PatchParams {
            field_manager: Some(self.manager.clone()),
            ..PatchParams::default()
        };
        let request = Build::new(url(job, at)).patch(name, &params, &Patch::Merge(patch));
        match self.ask(request).await {
            Ok(changed) => {
                self.knows_group(job, at.0, &changed);
                Ok(())
            }
            Err(failure) => Err(refuse(failure.into_fault(), REFUSED, Blocked::GangChange)),
        }
    }

    pub(super) async fn delete_group<J: Resource<DynamicType = ()>>(
        &self,
        job: &J,
        at: Address,
        name: &str,
        of: Uid,
    ) -> Result<(), Stopped> {
        let index = self.children.groups.of_kind(at.0);
        let how = training_core::Deletion::Orderly;
        self.delete_at(job, &url(job, at), (name, of), how, index)
            .await
    }

    /// Keeps what was just written, without waiting for the watch.
    fn knows_group<J: Resource<DynamicType = ()>>(&self, job: &J, kind: GroupKind, made: &Group) {
        if let Some(view) = made.view(kind) {
            let owned = Self::owned(job, uid(job), view);
            let index = self.children.groups.of_kind(kind);
            index.written(owned, Instant::now());
        }
    }
}
