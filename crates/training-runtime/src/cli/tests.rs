use std::ffi::OsString;

use clap::{CommandFactory, Parser};

use training_core::Rules;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    jobs: JobArgs,
    #[command(flatten)]
    runtime: RuntimeArgs,
}

impl Cli {
    fn validate(&self) -> Result<(), UsageError> {
        self.runtime.validate()?;
        self.jobs.validate()
    }
}

fn try_parse(args: &[&str]) -> Result<Cli, clap::Error> {
    let raw = std::iter::once("operator")
        .chain(args.iter().copied())
        .map(OsString::from);
    Cli::try_parse_from(normalise_args(raw))
}

fn both(args: &[&str]) -> Cli {
    try_parse(args).unwrap_or_else(|error| panic!("{args:?}: {error}"))
}

fn parse(args: &[&str]) -> RuntimeArgs {
    both(args).runtime
}

#[test]
fn the_command_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_argument_has_an_environment_variable_and_help() {
    for arg in Cli::command().get_arguments() {
        let id = arg.get_id().as_str();
        if id == "help" {
            continue;
        }
        assert!(arg.get_help().is_some(), "{id} has no help");
        let inert = arg.get_help_heading().is_some();
        assert!(
            inert || arg.get_env().is_some(),
            "{id} has no environment variable"
        );
    }
}

#[test]
fn every_published_flag_parses_with_one_dash_and_with_two() {
    for (flag, value) in [
        ("metrics-bind-address", ":9090"),
        ("health-probe-bind-address", "127.0.0.1:9091"),
        ("leader-elect", "true"),
        (
            "leader-election-id",
            "1ca428e5.training-operator.kubeflow.org",
        ),
        ("enable-scheme", "pytorchjob"),
        ("gang-scheduler-name", ""),
        ("namespace", "team-a"),
        ("controller-threads", "4"),
        ("kube-api-qps", "50"),
        ("kube-api-burst", "100"),
        ("webhook-server-port", "9443"),
        ("webhook-service-name", "training-operator"),
        ("webhook-secret-name", "training-operator-webhook-cert"),
        ("zap-devel", "false"),
        ("zap-encoder", "json"),
        ("zap-log-level", "debug"),
        ("zap-stacktrace-level", "error"),
        ("zap-time-encoding", "rfc3339"),
        ("kubeconfig", "/tmp/config"),
    ] {
        for dashes in ["-", "--"] {
            both(&[&format!("{dashes}{flag}={value}")])
                .validate()
                .unwrap();
            // Like Go, booleans take no separate word as value.
            if !["leader-elect", "zap-devel"].contains(&flag) {
                both(&[&format!("{dashes}{flag}"), value])
                    .validate()
                    .unwrap();
            }
        }
    }
}

#[test]
fn defaults_are_the_documented_ones() {
    let args = parse(&[]);
    args.validate().unwrap();
    assert_eq!(args.metrics_bind_address, Bind::Any(8080));
    assert_eq!(args.health_probe_bind_address, Bind::Any(8081));
    assert!(!args.leader_elect);
    assert_eq!(args.lease_duration, Duration::from_secs(15));
    assert_eq!(args.lease_renew_deadline, Duration::from_secs(10));
    assert_eq!(args.lease_retry_period, Duration::from_secs(3));
    assert_eq!(args.call_deadline, Duration::from_secs(30));
    assert_eq!(args.pass_deadline, Duration::from_mins(1));
    assert_eq!(args.events, EventMode::Folded);
    assert_eq!(args.log_filter(), "info");
    assert_eq!(args.log_format(), LogFormat::Json);
    assert_eq!(
        args.leader_election_id("pytorch-operator"),
        "pytorch-operator.trainyard.dev"
    );
    assert_eq!(both(&[]).jobs.rules(), Rules::default());
    assert!(args.without_effect().is_empty());
}

#[test]
fn what_decisions_depend_on_is_set_by_flags() {
    let rules = both(&["--clean-failed-jobs", "--max-replicas-per-job=50"])
        .jobs
        .rules();
    assert_eq!((rules.clean_failed, rules.max_replicas), (true, 50));
    let off = both(&["--clean-failed-jobs=false"]).jobs;
    assert!(!off.rules().clean_failed);
}

#[test]
fn truth_values_take_all_of_gos_forms() {
    for (text, value) in [
        ("--leader-elect", true),
        ("-leader-elect", true),
        ("--leader-elect=true", true),
        ("--leader-elect=false", false),
        ("-leader-elect=0", false),
        ("--leader-elect=T", true),
    ] {
        assert_eq!(parse(&[text]).leader_elect, value, "{text}");
    }
    assert!(try_parse(&["--leader-elect=maybe"]).is_err());
}

#[test]
fn durations_are_written_as_go_writes_them() {
    for (text, millis) in [
        ("0", 0),
        ("5s", 5_000),
        ("1m30s", 90_000),
        ("500ms", 500),
        ("1.5h", 5_400_000),
        ("2000us", 2),
        ("2000µs", 2),
        ("1h0m0.25s", 3_600_250),
    ] {
        assert_eq!(
            parse_duration(text),
            Ok(Duration::from_millis(millis)),
            "{text}"
        );
    }
    for text in [
        "",
        "5",
        "s",
        "5x",
        "-5s",
        "1m 30s",
        "..s",
        "1e9s",
        "99999999999999999999h",
    ] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
}

#[test]
fn addresses_may_be_a_port_a_host_or_off() {
    for (text, bind) in [
        ("", Bind::Off),
        ("0", Bind::Off),
        (":8080", Bind::Any(8080)),
        ("127.0.0.1:80", Bind::At("127.0.0.1:80".into())),
        ("localhost:80", Bind::At("localhost:80".into())),
        ("[::1]:80", Bind::At("[::1]:80".into())),
    ] {
        assert_eq!(text.parse(), Ok(bind), "{text}");
    }
    for text in ["8080", "host", ":port", ":70000", "::1:80"] {
        assert!(text.parse::<Bind>().is_err(), "{text}");
    }
}

#[test]
fn namespaces_are_repeatable_and_comma_separated() {
    let args = parse(&["--namespace=b,a", "-namespace", "c", "--namespace=a"]);
    assert_eq!(args.namespaces(), ["a", "b", "c"]);
    assert!(parse(&["--namespace="]).namespaces().is_empty());
    assert!(try_parse(&["--namespace=Not_One"]).is_err());
}

#[test]
fn the_gang_scheduler_is_chosen_by_either_flag() {
    let rows: [(&[&str], &str); 12] = [
        (&[], "none"),
        (&["--gang-scheduler-name="], "none"),
        (&["--gang-scheduler-name", "None"], "none"),
        (&["--gang-scheduler-name=Volcano"], "volcano"),
        (&["-gang-scheduler-name=mine"], "scheduler-plugins/mine"),
        (&["--gang=none"], "none"),
        (&["--gang=volcano"], "volcano"),
        (
            &["--gang=VOLCANO", "--gang-scheduler-name=volcano"],
            "volcano",
        ),
        (&["--gang=native"], "native"),
        (&["--gang=kueue"], "kueue"),
        (
            &["--gang=scheduler-plugins"],
            "scheduler-plugins/scheduler-plugins-scheduler",
        ),
        (
            &["--gang=scheduler-plugins", "--gang-scheduler-name=mine"],
            "scheduler-plugins/mine",
        ),
    ];
    for (flags, expected) in rows {
        let args = both(flags).jobs;
        args.validate().unwrap();
        assert_eq!(args.gang().to_string(), expected, "{flags:?}");
    }
}

#[test]
fn gang_flags_that_contradict_each_other_are_refused() {
    let error = both(&["--gang=native", "--gang-scheduler-name=volcano"]).validate();
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("--gang=native and --gang-scheduler-name=volcano"),
        "{error}"
    );
    assert!(try_parse(&["--gang=other"]).is_err());
    assert!(try_parse(&["--gang-scheduler-name=a b"]).is_err());
}

#[test]
fn contradictions_are_refused_by_name() {
    for (flag, named) in [
        ("--controller-threads=0", "--controller-threads"),
        ("--max-replicas-per-job=0", "--max-replicas-per-job"),
        ("--lease-renew-deadline=15s", "--lease-duration"),
        ("--lease-retry-period=10s", "--lease-renew-deadline"),
        ("--lease-retry-period=0", "--lease-retry-period"),
        ("--call-deadline=0", "--call-deadline"),
        ("--backoff-cap=1s", "--backoff-cap"),
        ("--otlp-endpoint=collector:4317", "--otlp-endpoint"),
        ("--otlp-endpoint=https://collector:4317", "--otlp-ca-file"),
    ] {
        let error = both(&[flag]).validate().unwrap_err().to_string();
        assert!(error.contains(named), "{flag}: {error}");
    }
}

#[test]
fn the_published_log_flags_are_taken_over() {
    assert_eq!(parse(&["-zap-log-level=debug"]).log_filter(), "debug");
    assert_eq!(parse(&["-zap-log-level=5"]).log_filter(), "trace");
    assert_eq!(
        parse(&["-zap-log-level=debug", "--log-filter=warn"]).log_filter(),
        "warn"
    );
    assert_eq!(
        parse(&["-zap-encoder=console"]).log_format(),
        LogFormat::Compact
    );
    assert_eq!(
        parse(&["--kube-api-qps=5", "-zap-devel"])
            .without_effect()
            .len(),
        2
    );
}

#[test]
fn words_after_a_double_dash_and_short_flags_stay() {
    let args = ["operator", "-h", "-5", "-ab", "--", "-cd"].map(OsString::from);
    let expected = ["operator", "-h", "-5", "--ab", "--", "-cd"].map(OsString::from);
    assert_eq!(normalise_args(args.into_iter()), expected);
}
