//! The operator of a stage, and who takes its place.

use std::path::Path;

use anyhow::Result;
use training_testkit::builders::{Kind, SPARK};
use training_testkit::operator::OperatorProcess;

use crate::World;

/// As short as whole seconds allow: every kill of a leader costs one.
const LEASE: [&str; 3] = ["2s", "1500ms", "300ms"];
/// How long an operator waits for an answer where one may never come: longer than a busy machine takes for one that does come.
const PATIENCE: &str = "15s";

/// Who comes when the operator dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Successor {
    /// It is started again.
    Itself,
    /// A standby that waits for the lease.
    Standby,
}

/// What all stages of a sweep have in common.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The kind of the jobs.
    pub kind: Kind,
    /// The seed of the operator's jitter.
    pub seed: u64,
    /// Who comes when the operator dies.
    pub successor: Successor,
    /// S-09: jobs are gangs of Kubernetes' own.
    pub gangs: bool,
    /// CS-7: reads are broken, and the operator is started anew for every run.
    pub reads: bool,
}

/// One operator that works, and maybe one that waits.
pub(super) struct Crew {
    working: OperatorProcess,
    waiting: Option<OperatorProcess>,
}

impl Crew {
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

    pub(super) fn kill9(&mut self) -> Result<()> {
        self.working.kill9()
    }

    /// Returns when somebody works again.
    pub(super) async fn recover(&mut self) -> Result<()> {
        let Some(waiting) = &mut self.waiting else {
            return self.working.restart().await;
        };
        std::mem::swap(&mut self.working, waiting);
        // The dead one comes back only then, so that it can't be the one that takes over.
        self.working.until_leads(true).await?;
        waiting.restart().await
    }

    /// Starts the one that works again, and does not wait until it is ready.
    pub(super) fn recover_unready(&mut self) -> Result<()> {
        self.working.respawn()
    }

    /// Both, or the one there is.
    pub(super) fn members(&self) -> impl Iterator<Item = &OperatorProcess> {
        std::iter::once(&self.working).chain(&self.waiting)
    }
}
