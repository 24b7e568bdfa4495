//! Whether an object whose delete was refused is gone.

use kube::api::GetParams;
use kube::core::Request as Build;
use training_core::Uid;

use super::Executor;
use super::outcome::{Answer, Failure, Stopped};
use crate::fault::Fault;

impl Executor {
    /// A conflict mostly says that the name belongs to another object by now. But whoever stands in front of the API server
    /// may answer so for a while as well, and an object that is wrongly taken for gone is never asked to go again: so look.
    pub(super) async fn is_gone(&self, url: &str, name: &str, uid: Uid) -> Result<bool, Stopped> {
        let request = Build::new(url).get(name, &GetParams::default());
        match self.call::<Answer>(request).await {
            Ok(answer) => Ok(answer.identity().is_some_and(|(there, _)| there != uid)),
            Err(Failure::Fault(Fault::Missing { .. })) => Ok(true),
            Err(failure) => Err(Stopped::Fault(failure.into_fault())),
        }
    }
}
