//! A separate namespace for every test.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Namespace as Object;
use kube::Client;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;

use crate::control_plane::{ADMIN, ControlPlane, client_from};
use crate::is_deep;

/// A namespace for one test. It is deleted when the test ends, however it ends. Except in a deep run, it stays on a control plane
/// that this process started, which ends soon: a deletion takes some 150 requests, two for each resource.
#[derive(Debug)]
pub struct Namespace {
    /// Its name: the prefix, the process id and a number.
    pub name: String,
    /// The kubeconfig file for the deletion; `None` if the namespace stays.
    kubeconfig: Option<PathBuf>,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Namespace {
    /// Creates a namespace whose name starts with a prefix.
    pub async fn create(control_plane: &ControlPlane, prefix: &str) -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{prefix}-{}-{number}", std::process::id());
        let kubeconfig = control_plane.kubeconfig(ADMIN).await?;
        let client = client_from(&kubeconfig).await?;
        let object = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
        Api::<Object>::all(client)
            .create(&PostParams::default(), &object)
            .await?;
        // A deep run makes so many that they would fill the memory.
        let stays = control_plane.is_temporary() && !is_deep();
        let kubeconfig = (!stays).then_some(kubeconfig);
        Ok(Self { name, kubeconfig })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let Some(kubeconfig) = self.kubeconfig.take() else {
            return;
        };
        let name = self.name.clone();
        // The test's runtime may be shutting down, and a destructor can't wait in it, so a thread with its own runtime does it. An
        // error here doesn't fail the test.
        let thread = std::thread::spawn(move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
            else {
                return;
            };
            runtime.block_on(async move {
                let _ =
                    tokio::time::timeout(Duration::from_secs(5), delete(&kubeconfig, &name)).await;
            });
        });
        let _ = thread.join();
    }
}

async fn delete(kubeconfig: &std::path::Path, name: &str) -> Result<()> {
    let client: Client = client_from(kubeconfig).await?;
    Api::<Object>::all(client)
        .delete(name, &DeleteParams::background())
        .await?;
    Ok(())
}
