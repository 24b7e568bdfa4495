use super::*;

fn line(metrics: &Metrics, start: &str) -> Option<String> {
    let text = metrics.render().unwrap();
    text.lines()
        .find(|line| line.starts_with(start))
        .map(str::to_owned)
}

#[test]
fn the_published_counters_keep_their_names_and_labels() {
    let metrics = Metrics::new("pytorch");
    for (transition, name) in [
        (Transition::Created, "created"),
        (Transition::Deleted, "deleted"),
        (Transition::Successful, "successful"),
        (Transition::Failed, "failed"),
        (Transition::Restarted, "restarted"),
    ] {
        metrics.job(transition, "team");
        metrics.job(transition, "team");
        let expected = format!(
            "training_operator_jobs_{name}_total{{job_namespace=\"team\",framework=\"pytorch\"}} 2"
        );
        assert_eq!(
            line(&metrics, &expected).as_deref(),
            Some(expected.as_str())
        );
    }
}

#[test]
fn i_41_series_vanish_with_the_last_job_of_a_namespace() {
    let metrics = Metrics::new("pytorch");
    metrics.job(Transition::Created, "team");
    metrics.job(Transition::Failed, "team");
    metrics.job(Transition::Created, "other");
    metrics.forget_namespace("team");
    let text = metrics.render().unwrap();
    assert!(!text.contains("team") && text.contains("other"), "{text}");
}

#[test]
fn i_41_mt_24_strings_of_others_do_not_become_series() {
    let metrics = Metrics::new("pytorch");
    for n in 0..1_000_u16 {
        metrics.request("get", &format!("thing{n}"), Some(n));
    }
    let text = metrics.render().unwrap();
    let series = text
        .lines()
        .filter(|l| l.starts_with("trainyard_requests_total"))
        .count();
    assert!(series <= 33 * 16, "{series}");
    assert!(text.contains("resource=\"other\""));
}

#[test]
fn the_text_is_complete_and_ends() {
    let metrics = Metrics::new("pytorch");
    metrics.reconcile("ok", Duration::from_millis(3));
    metrics.request("create", "pods", Some(201));
    metrics.request("create", "pods", None);
    metrics.queue_depth(4);
    metrics.index_objects("pods", 7);
    metrics.leader(true);
    metrics.panicked();
    metrics.events(EventOutcome::Posted, 3);
    let _wanted = metrics.watches().want("pods", None, "/api/v1/pods");
    metrics.watches().opened("/api/v1/pods");
    let text = metrics.render().unwrap();
    for expected in [
        "trainyard_reconciles_total{outcome=\"ok\"} 1",
        "trainyard_pass_seconds_count 1",
        "trainyard_requests_total{verb=\"create\",resource=\"pods\",code=\"2xx\"} 1",
        "trainyard_requests_total{verb=\"create\",resource=\"pods\",code=\"none\"} 1",
        "trainyard_queue_depth 4",
        "trainyard_index_objects{index=\"pods\"} 7",
        "trainyard_leader 1",
        "trainyard_panics_total 1",
        "trainyard_events_total{outcome=\"posted\"} 3",
        "trainyard_watch_up{watch=\"pods\"} 1",
        "trainyard_watch_age_seconds{watch=\"pods\"} ",
        "process_resident_memory_bytes ",
        "process_cpu_seconds_total ",
        "process_open_fds ",
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
}
