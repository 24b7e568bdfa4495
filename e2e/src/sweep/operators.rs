//! The operator of a stage, and its successor.

use std::path::Path;

use anyhow::Result;
use training_testkit::builders::{Kind, SPARK};
use training_testkit::operator::OperatorProcess;

use crate::World;

/// As short as whole seconds allow: every kill of a leader costs a lease duration.
const LEASE: [&str; 3] = ["2s", "1500ms", "300ms"];
/// The operator's call timeout if a response may never arrive; longer than any response takes on a busy machine.
const PATIENCE: &str = "15s";

/// The successor of a killed operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Successor {
    /// It is restarted.
    Itself,
    /// A standby that waits for the lease.
    Standby,
}

/// The common settings of a sweep's stages.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The kind of the jobs.
    pub kind: Kind,
    /// The seed of the operator's jitter.
    pub seed: u64,
    /// The successor of a killed operator.
    pub successor: Successor,
    /// S-09: jobs are Kubernetes' own gangs.
    pub gangs: bool,
    /// CS-7: reads fail, and the operator is restarted for every run.
    pub reads: bool,
}

/// A leading operator, and possibly a standby.
pub(super) struct Operators {
    working: OperatorProcess,
    waiting: Option<OperatorProcess>,
}

impl Operators {
    pub(super) async fn start(world: &World, kubeconfig: &Path, setting: Setting) -> Result<Self> {
        if setting.gangs {
            world.grant_gang("native").await?;
        }
        let options = || {
            let options = world
                .options(kubeconfig)
                .flag("jitter-seed", &setting.seed.to_string());
            let options = if setting.kind == SPARK {
                options
                    .flag("driver-pod-creation-grace-period", "1s")
                    .flag("ingress-url-format", "{{$appName}}.trainyard.test")
            } else {
                options.flag("gang", if setting.gangs { "native" } else { "none" })
            };
            let options = if setting.reads {
                options.flag("call-deadline", PATIENCE)
            } else {
                options
            };
            match setting.successor {
                Successor::Itself => options,
                Successor::Standby => options.elects(world.namespace(), LEASE),
            }
        };
        let working = OperatorProcess::start(options()).await?;
        let waiting = match setting.successor {
            Successor::Itself => None,
            Successor::Standby => {
                working.until_leads(true).await?;
                Some(OperatorProcess::start(options()).await?)
            }
        };
        Ok(Self { working, waiting })
    }

    pub(super) fn kill(&mut self) -> Result<()> {
        self.working.kill()
    }

    /// Waits until an operator works again.
    pub(super) async fn recover(&mut self) -> Result<()> {
        let Some(waiting) = &mut self.waiting else {
            return self.working.restart().await;
        };
        std::mem::swap(&mut self.working, waiting);
        // The killed one restarts only then, so that it can't take over itself.
        self.working.until_leads(true).await?;
        waiting.restart().await
    }

    /// Restarts the killed operator without waiting until it is ready.
    pub(super) fn recover_unready(&mut self) -> Result<()> {
        self.working.respawn()
    }

    /// Returns all operators.
    pub(super) fn members(&self) -> impl Iterator<Item = &OperatorProcess> {
        std::iter::once(&self.working).chain(&self.waiting)
    }
}
