//! The arguments of operators whose jobs consist of replicas.

use std::time::Duration;

use clap::{ArgAction, Args};
use k8s_openapi::jiff::SignedDuration;
use training_core::provider::PLUGINS_SCHEDULER;
use training_core::{Provider, Rules};

use super::value::{
    GangMode, UsageError, parse_bool, parse_domain, parse_duration, parse_scheduler,
};

/// The arguments of operators whose jobs consist of replicas.
#[derive(Args, Clone, Debug)]
pub struct JobArgs {
    /// Who schedules the pods of a job together. Concerns jobs that start or resume from now on
    #[arg(long, env = "TRAINYARD_GANG", value_enum, ignore_case = true)]
    gang: Option<GangMode>,

    /// The scheduler of --gang=scheduler-plugins. Without --gang it chooses one, as the Go operator's flag does: "volcano" is
    /// Volcano, any other name is scheduler-plugins in the scheduler of that name
    #[arg(
        long = "gang-scheduler-name",
        env = "TRAINYARD_GANG_SCHEDULER_NAME",
        default_value = "",
        hide_default_value = true,
        value_name = "NAME",
        value_parser = parse_scheduler
    )]
    gang_scheduler_name: String,

    /// Most replicas of one job; a job that asks for more fails
    #[arg(
        long,
        env = "TRAINYARD_MAX_REPLICAS_PER_JOB",
        default_value_t = training_core::rules::MAX_REPLICAS,
        value_name = "COUNT"
    )]
    pub max_replicas_per_job: u32,

    /// Delete the running pods of failed jobs also where their cleanPodPolicy is None
    #[arg(
        long,
        env = "TRAINYARD_CLEAN_FAILED_JOBS",
        action = ArgAction::Set,
        num_args = 0..=1,
        require_equals = true,
        default_value = "false",
        default_missing_value = "true",
        value_name = "true|false",
        value_parser = parse_bool
    )]
    pub clean_failed_jobs: bool,

    /// Delete pods of a node that has not been heard of for so long by force, such as 10m. Dangerous: if the node still runs, so
    /// do the pod's processes, beside their replacement. Default: never
    #[arg(
        long,
        env = "TRAINYARD_FORCE_DELETE_LOST_AFTER",
        value_parser = parse_duration,
        value_name = "DURATION"
    )]
    pub force_delete_lost_after: Option<Duration>,

    /// DNS domain of the cluster, appended to host names where a kind asks for full ones, such as cluster.local
    #[arg(long, env = "CUSTOM_CLUSTER_DOMAIN", value_name = "DOMAIN", value_parser = parse_domain)]
    pub cluster_domain: Option<String>,
}

impl JobArgs {
    /// Rejects invalid and contradictory arguments.
    ///
    /// # Errors
    /// Names the argument and the values it accepts. The process should exit with it.
    pub fn validate(&self) -> Result<(), UsageError> {
        let refuse = |text: String| Err(UsageError(text));
        let (mode, name) = (self.gang, self.gang_scheduler_name.as_str());
        let same = |mode: GangMode| name.eq_ignore_ascii_case(mode.as_str());
        if let Some(mode) = mode.filter(|m| *m != GangMode::SchedulerPlugins)
            && !name.is_empty()
            && !same(mode)
        {
            return refuse(format!(
                "--gang={} and --gang-scheduler-name={name} contradict each other: leave one of them out",
                mode.as_str()
            ));
        }
        if self.max_replicas_per_job == 0 {
            return refuse("--max-replicas-per-job must be at least 1".to_owned());
        }
        if self
            .force_delete_lost_after
            .is_some_and(|d| d.as_secs() == 0)
        {
            return refuse(
                "--force-delete-lost-after must be at least 1s; leave it out, and nothing is forced".to_owned(),
            );
        }
        Ok(())
    }

    /// Returns the gang scheduler of runs that begin now.
    pub fn gang(&self) -> Provider {
        let name = self.gang_scheduler_name.as_str();
        let plugins = |name: &str| Provider::SchedulerPlugins(name.into());
        match self.gang {
            Some(GangMode::None) => Provider::None,
            Some(GangMode::Volcano) => Provider::Volcano,
            Some(GangMode::Native) => Provider::Native,
            Some(GangMode::Kueue) => Provider::Kueue,
            Some(GangMode::SchedulerPlugins) if name.is_empty() => plugins(PLUGINS_SCHEDULER),
            None if name.is_empty() => Provider::None,
            None if name.eq_ignore_ascii_case("volcano") => Provider::Volcano,
            Some(GangMode::SchedulerPlugins) | None => plugins(name),
        }
    }

    /// Returns the rules that decisions depend on. Strict mode is not among these arguments, since every operator has it.
    pub fn rules(&self) -> Rules {
        Rules {
            max_replicas: self.max_replicas_per_job,
            clean_failed: self.clean_failed_jobs,
            force_lost_after: self
                .force_delete_lost_after
                .and_then(|d| SignedDuration::try_from(d).ok()),
            strict: false,
        }
    }

    /// Returns the cluster's DNS domain, if given.
    pub fn cluster_domain(&self) -> Option<&str> {
        self.cluster_domain
            .as_deref()
            .filter(|domain| !domain.is_empty())
    }
}
