//! The proxy in front of a small server that responds with its own request count.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::BodyExt as _;
use tokio::time::timeout;

use super::exchange::{with_parameter, with_query};
use super::*;

struct Server {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
    events: tokio::sync::broadcast::Sender<String>,
}

/// Watches get the lines that the test sends; other requests get their number.
async fn server() -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let (events, _) = tokio::sync::broadcast::channel::<String>(256);
    let (counter, sender) = (Arc::clone(&asked), events.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (counter, sender) = (Arc::clone(&counter), sender.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let number = counter.fetch_add(1, Ordering::SeqCst) + 1;
                let lines = sender.subscribe();
                async move {
                    let authorization = request.headers().get("authorization").cloned();
                    let body = if request.uri().query() == Some("watch=true") {
                        let lines = futures::stream::unfold(lines, |mut lines| async move {
                            let line = lines.recv().await.ok()?;
                            Some((Ok(hyper::body::Frame::data(Bytes::from(line))), lines))
                        });
                        let lines: std::pin::Pin<Box<dyn futures::Stream<Item = _> + Send + Sync>> =
                            Box::pin(lines);
                        http_body_util::StreamBody::new(lines).boxed()
                    } else {
                        let who = authorization.and_then(|a| a.to_str().ok().map(str::to_owned));
                        stream::full(format!("{number} {}", who.unwrap_or_default()))
                    };
                    Ok::<_, Broken>(Response::new(body))
                }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(hyper_util::rt::TokioIo::new(stream), service),
            );
        }
    });
    Server {
        address,
        asked,
        events,
    }
}

type Plain = Client<hyper_util::client::legacy::connect::HttpConnector, Full<Bytes>>;

struct Setup {
    server: Server,
    proxy: Proxy,
    client: Plain,
}

async fn setup() -> Setup {
    let server = server().await;
    let proxy = Proxy::before_plain(server.address).await.unwrap();
    Setup {
        server,
        proxy,
        client: connections(hyper_util::client::legacy::connect::HttpConnector::new()),
    }
}

impl Setup {
    async fn send(&self, method: &str, path: &str, body: &str) -> Result<Response<Incoming>> {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.proxy.address()))
            .header("authorization", "Bearer t")
            .body(Full::new(Bytes::from(body.to_owned())))?;
        Ok(timeout(Duration::from_secs(5), self.client.request(request)).await??)
    }

    async fn text(&self, method: &str, path: &str) -> Result<(u16, String)> {
        let answer = self.send(method, path, "{}").await?;
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await?.to_bytes();
        Ok((code, String::from_utf8(bytes.to_vec())?))
    }
}

const PODS: &str = "/api/v1/namespaces/a/pods";

async fn next_line(body: &mut Incoming) -> Option<String> {
    let frame = timeout(Duration::from_secs(5), body.frame())
        .await
        .unwrap()?
        .unwrap();
    Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
}

#[tokio::test]
async fn what_no_rule_concerns_passes_with_its_credentials() {
    let setup = setup().await;
    assert_eq!(
        setup.text("GET", PODS).await.unwrap(),
        (200, "1 Bearer t".into())
    );
    assert_eq!(
        setup.proxy.counts(),
        BTreeMap::from([("list pods".to_owned(), 1)])
    );
    assert_eq!(setup.proxy.records()[0].code, Some(200));
}

#[tokio::test]
async fn a_reset_before_leaves_no_trace_and_a_reset_after_does() {
    let setup = setup().await;
    let before = Rule::new("before", Action::ResetBefore, |call| {
        call.is("create", "pods")
    })
    .nth(1);
    let after = Rule::new("after", Action::ResetAfter, |call| {
        call.is("create", "pods")
    })
    .nth(1);
    setup.proxy.add(&before);
    setup.proxy.add(&after);
    setup.text("POST", PODS).await.unwrap_err();
    assert_eq!(
        (before.hits(), setup.server.asked.load(Ordering::SeqCst)),
        (1, 0)
    );
    setup.text("POST", PODS).await.unwrap_err();
    assert_eq!(
        (after.hits(), setup.server.asked.load(Ordering::SeqCst)),
        (1, 1)
    );
    assert_eq!(setup.text("POST", PODS).await.unwrap().0, 200);
    assert_eq!(setup.proxy.records()[1].rule.as_deref(), Some("after"));
}

#[tokio::test]
async fn a_wrong_answer_comes_with_or_without_effect() {
    let setup = setup().await;
    let mut busy = Answer::new(429, "TooManyRequests", "later");
    busy.retry_after = Some("3600".into());
    let without = Rule::new(
        "without",
        Action::Answer(Effect::Without, busy),
        Call::is_write,
    )
    .nth(1);
    let late = Answer::new(504, "Timeout", "etcdserver: request timed out");
    let with = Rule::new("with", Action::Answer(Effect::With, late), Call::is_write).nth(1);
    setup.proxy.add(&without);
    setup.proxy.add(&with);
    let answer = setup.send("POST", PODS, "{}").await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["retry-after"]),
        (429, &"3600".parse().unwrap())
    );
    assert_eq!(setup.server.asked.load(Ordering::SeqCst), 0);
    let (code, body) = setup.text("POST", PODS).await.unwrap();
    assert!(code == 504 && body.contains("timed out"), "{code} {body}");
    assert_eq!(setup.server.asked.load(Ordering::SeqCst), 1);
    assert_eq!((without.hits(), with.hits()), (1, 1));
}

#[tokio::test]
async fn a_cut_answer_is_an_error_and_no_short_answer() {
    let setup = setup().await;
    let rule = Rule::new("cut", Action::CutAnswer, |call| call.verb == "list");
    setup.proxy.add(&rule);
    setup.text("GET", PODS).await.unwrap_err();
    assert_eq!(rule.hits(), 1);
}

#[tokio::test]
async fn a_garbled_answer_is_an_error_or_another_answer() {
    let setup = setup().await;
    let only = |action| Rule::new("garbled", action, |call: &Call| call.verb == "list");
    let length = only(Action::WrongLength);
    setup.proxy.add(&length);
    setup.text("GET", PODS).await.unwrap_err();
    let silence = only(Action::Silence(Effect::With));
    setup.proxy.clear_rules();
    setup.proxy.add(&silence);
    let asked = setup.server.asked.load(Ordering::SeqCst);
    let url = format!("http://{}{PODS}", setup.proxy.address());
    let request = setup.client.get(url.parse().unwrap());
    timeout(Duration::from_millis(200), request)
        .await
        .unwrap_err();
    assert_eq!(setup.server.asked.load(Ordering::SeqCst), asked + 1);
    let slow = only(Action::Trickle(Duration::from_millis(20)));
    setup.proxy.clear_rules();
    setup.proxy.add(&slow);
    let begin = Instant::now();
    let (code, text) = setup.text("GET", PODS).await.unwrap();
    assert_eq!((code, text.len()), (200, "3 Bearer t".len()));
    assert!(begin.elapsed() >= Duration::from_millis(200));
    let other = only(Action::AlterAnswer(Change::text("Bearer", "Beggar")));
    setup.proxy.clear_rules();
    setup.proxy.add(&other);
    assert_eq!(setup.text("GET", PODS).await.unwrap().1, "4 Beggar t");
    let hits = [&length, &silence, &slow, &other].map(Rule::hits);
    assert_eq!(hits, [1; 4]);
}

#[tokio::test]
async fn an_announced_write_is_applied_and_its_answer_waits() {
    let setup = setup().await;
    let mut applied = setup
        .proxy
        .announce("first", |call| call.is("create", "pods"));
    let (answer, ()) = tokio::join!(setup.text("POST", PODS), async {
        let write = applied.recv().await.unwrap();
        assert_eq!(
            (write.code, setup.server.asked.load(Ordering::SeqCst)),
            (200, 1)
        );
        write.release();
    });
    assert_eq!(answer.unwrap().0, 200);
    let (answer, ()) = tokio::join!(setup.text("POST", PODS), async {
        drop(applied.recv().await.unwrap());
    });
    answer.unwrap_err();
}

#[tokio::test]
async fn events_pass_at_once_and_are_dropped_doubled_and_ended_on_demand() {
    let setup = setup().await;
    let watch = |call: &Call| call.is_watch();
    let rules = [
        Rule::new("none", Action::Delay(Duration::ZERO), watch).nth(1),
        Rule::new("drop", Action::DropEvent(2), watch).nth(1),
        Rule::new("double", Action::DuplicateEvent(1), watch).nth(1),
        Rule::new("close", Action::CloseWatchAfter(1), watch).nth(1),
        Rule::new("inject", Action::InjectEvent(2, "x\n".into()), watch).nth(1),
        Rule::new("every", Action::DropEvery(3), watch).nth(1),
        Rule::new("other", Action::AlterEvents(Change::text("2", "7")), watch).nth(1),
        Rule::new(
            "where",
            Action::DropWhere(Filter::new(|line| line == b"1\n")),
            watch,
        )
        .nth(1),
    ];
    for (rule, expected) in rules.iter().zip([
        &["1\n", "2\n", "3\n"][..],
        &["1\n", "3\n"],
        &["1\n", "1\n", "2\n", "3\n"],
        &["1\n"],
        &["1\n", "x\n", "2\n", "3\n"],
        &["1\n", "2\n"],
        &["1\n", "7\n", "3\n"],
        &["2\n", "3\n"],
    ]) {
        setup.proxy.clear_rules();
        setup.proxy.add(rule);
        let answer = setup
            .send("GET", &format!("{PODS}?watch=true"), "")
            .await
            .unwrap();
        let mut body = answer.into_body();
        for line in ["1\n", "2\n", "3\n"] {
            setup.server.events.send(line.into()).unwrap();
        }
        for line in expected {
            assert_eq!(
                next_line(&mut body).await.as_deref(),
                Some(*line),
                "{}",
                rule.name()
            );
        }
        assert_eq!(rule.hits(), 1, "{}", rule.name());
    }
}

#[tokio::test]
async fn a_refusing_proxy_can_be_opened_again() {
    let setup = setup().await;
    setup.text("GET", PODS).await.unwrap();
    setup.proxy.refuse();
    eventually("the refusal", HANG, async || {
        let answer = setup.text("GET", PODS).await;
        Ok(if answer.is_err() {
            Seen::Yes(())
        } else {
            Seen::NotYet("an answer".into())
        })
    })
    .await
    .unwrap();
    setup.proxy.accept().await.unwrap();
    setup.text("GET", PODS).await.unwrap();
}

#[tokio::test]
async fn a_write_whose_turn_has_not_come_does_not_outlive_its_author() {
    let setup = setup().await;
    let mut applied = setup
        .proxy
        .announce_in_turn("turns", |call| call.is("create", "pods"));
    let writes = async { tokio::join!(setup.text("POST", PODS), setup.text("POST", PODS)) };
    let (answers, ()) = tokio::join!(writes, async {
        let first = applied.recv().await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(setup.server.asked.load(Ordering::SeqCst), 1);
        setup.proxy.refuse();
        setup.proxy.accept().await.unwrap();
        drop(first);
    });
    answers.0.unwrap_err();
    answers.1.unwrap_err();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(setup.server.asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn events_come_several_times_or_not_at_all() {
    let setup = setup().await;
    let thrice = Rule::new("thrice", Action::RepeatEvents(3), Call::is_watch).nth(1);
    let stalled = Rule::new("stalled", Action::StallWatch, Call::is_watch);
    setup.proxy.add(&thrice);
    setup.proxy.add(&stalled);
    let path = format!("{PODS}?watch=true");
    let mut first = setup.send("GET", &path, "").await.unwrap().into_body();
    let mut second = setup.send("GET", &path, "").await.unwrap().into_body();
    setup.server.events.send("1\n".into()).unwrap();
    for _ in 0..3 {
        assert_eq!(next_line(&mut first).await.as_deref(), Some("1\n"));
    }
    timeout(Duration::from_millis(200), second.frame())
        .await
        .unwrap_err();
    assert_eq!((thrice.hits(), stalled.hits()), (1, 1));
    setup.proxy.cut().await.unwrap();
    eventually("the cut to be seen", HANG, async || {
        Ok(match second.frame().await {
            Some(Err(_)) => Seen::Yes(()),
            other => Seen::NotYet(format!("{other:?}")),
        })
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn f34_events_are_late_by_their_delay_and_not_by_each_others() {
    const EVENTS: u32 = 200;
    let setup = setup().await;
    let late = Duration::from_millis(200);
    setup.proxy.add(&Rule::new(
        "late",
        Action::DelayEvents(late),
        Call::is_watch,
    ));
    let answer = setup
        .send("GET", &format!("{PODS}?watch=true"), "")
        .await
        .unwrap();
    let mut body = answer.into_body();
    let begin = Instant::now();
    for number in 0..EVENTS {
        setup.server.events.send(format!("{number}\n")).unwrap();
    }
    for number in 0..EVENTS {
        let line = next_line(&mut body).await.unwrap();
        assert_eq!(line, format!("{number}\n"));
        assert!(begin.elapsed() >= late);
    }
    // The sum of the delays is far above the time of a few lines on loopback.
    assert!(begin.elapsed() < late * EVENTS, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_reply_and_a_longer_query_are_what_they_say() {
    let setup = setup().await;
    let empty = serde_json::json!({ "kind": "PodList", "items": [] });
    setup
        .proxy
        .add(&Rule::new("empty", Action::Reply(empty.clone()), |c| c.verb == "list").nth(1));
    assert_eq!(
        setup.text("GET", PODS).await.unwrap(),
        (200, empty.to_string())
    );
    assert_eq!(setup.server.asked.load(Ordering::SeqCst), 0);
    let uri: Uri = "/api/v1/pods?limit=5".parse().unwrap();
    assert_eq!(with_query(&uri, "a=b").unwrap(), "/api/v1/pods?limit=5&a=b");
    let pages = with_parameter(&uri, "limit", "2").unwrap();
    assert_eq!(pages, "/api/v1/pods?limit=2");
}
