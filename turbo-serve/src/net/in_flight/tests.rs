//! Bodies and answers within their limits.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant},
};

use axum::{
    Extension,
    body::{Bytes, to_bytes},
    http::StatusCode,
    routing::{get, post},
};
use futures_util::{FutureExt, StreamExt, stream};
use metrics::Gauge;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tower::ServiceExt;

use super::{framing::Ended, messages::Messages, *};
use crate::net::{GRACE, serve};

fn tally(limit: usize) -> Arc<Tally> {
    Tally::new(limit, "things", "--most", Gauge::noop())
}

#[test]
fn what_is_dropped_is_given_back() {
    let tally = tally(10);
    let mut held = tally.take(7).unwrap();
    assert!(tally.take(4).is_err() && !tally.is_full());
    held.join(tally.take(3).unwrap());
    assert!(tally.is_full());
    let part = held.split(4);
    drop(held);
    assert_eq!(tally.held.load(Relaxed), 4);
    drop((part, tally.add(100)));
    assert_eq!(tally.held.load(Relaxed), 0);
}

#[test]
fn messages_end_where_their_heads_say_however_they_are_cut() {
    let bytes = [&[1, 0, 0, 0, 3][..], b"abc", &[0, 0, 0, 0, 0], &[0, 0, 0, 1, 0], &[7; 256]].concat();
    let expected = [(8, true), (5, false), (261, false)].map(|(bytes, is_packed)| Ended { bytes, is_packed });
    for piece in [1, 2, 7, bytes.len()] {
        let mut framing = Framing::default();
        let ends: Vec<Ended> = bytes.chunks(piece).flat_map(|data| framing.ends(data)).collect();
        assert_eq!(ends, expected, "in pieces of {piece}");
    }
}

#[tokio::test]
async fn a_body_that_comes_byte_by_byte_is_held_as_one() {
    let (tally, messages) = (tally(2000), Arc::new(Messages::default()));
    let planned = Planned::among(&tally);
    let arrived = Arrived { messages: Arc::clone(&messages), bodies: Arc::clone(&tally), planned };
    let bytes = stream::iter(vec![Ok::<_, Infallible>(&b"a"[..]); 1000]);
    let body = Incoming::new(Body::from_stream(bytes), &tally, &messages, None);
    assert_eq!(to_bytes(Body::new(body), usize::MAX).await.unwrap().len(), 1000);
    (0..500).for_each(|_| arrived.unpacked(1).unwrap());
    let held = messages.lock().len();
    assert_eq!((held, tally.held.load(Relaxed)), (1, 1000 + 500));
    drop((arrived, messages));
    assert_eq!(tally.held.load(Relaxed), 0);
}

/// A gRPC call.
fn incoming(body: Body, tally: &Arc<Tally>, messages: &Arc<Messages>) -> Incoming {
    Incoming::new(body, tally, messages, Some(Framing::default()))
}

#[test]
fn a_packed_message_counts_as_all_that_it_may_become_until_it_is_known() {
    let sent = || Body::from([[1, 0, 0, 0, 1, b'a'], [1, 0, 0, 0, 1, b'b']].concat());
    let next = |body: &mut Incoming| {
        poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).now_or_never().unwrap().unwrap()
    };
    let tally = tally(5000);
    let (bodies, planned) = (|| Arc::clone(&tally), || Planned::among(&tally));
    let arrived = || Arrived { messages: Arc::default(), bodies: bodies(), planned: planned() };
    let (arrived, of_a_stream) = (arrived(), arrived());
    let held = || tally.held.load(Relaxed);
    let mut body = incoming(sent(), &tally, &arrived.messages);
    arrived.unpacks_to(6000);
    assert!(next(&mut body).unwrap_err().to_string().contains("--most"), "six times 1032 are too many");
    drop(body);
    arrived.unpacks_to(2000);
    let mut body = incoming(sent(), &tally, &arrived.messages);
    next(&mut body).unwrap();
    assert_eq!(held(), 6 + 6 + 2000);
    arrived.unpacked_message(100).unwrap();
    assert_eq!(held(), 100 + 6 + 2000);
    drop(arrived.message());
    assert!(arrived.unpacked_message(3007).is_err());
    assert_eq!(held(), 6 + 2000);
    drop((body, arrived.message()));
    assert_eq!(held(), 0);

    let one = stream::iter([Ok::<_, Infallible>(&[1, 0, 0, 0, 1, b'a'][..])]);
    let mut body = incoming(Body::from_stream(one.chain(stream::pending())), &tally, &of_a_stream.messages);
    of_a_stream.unpacks_to(2000);
    next(&mut body).unwrap();
    of_a_stream.unpacked_message(100).unwrap();
    drop(of_a_stream.message());
    assert!(poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).now_or_never().is_none());
    assert_eq!(held(), 100, "what it became is known by now");
}

/// The number of seconds after which a call is cancelled whose client sends a piece every 20 s and then nothing; `None`
/// if it never is. Complete messages are taken as a stream's are, or wait for the end of the call.
async fn given_up_after(pieces: &[&'static [u8]], are_taken: bool, room_is_scarce: bool) -> Option<u64> {
    let (tally, messages) = (tally(100), Arc::new(Messages::default()));
    let others = tally.add(if room_is_scarce { 50 } else { 0 });
    let sent = stream::iter(pieces.to_vec()).then(|piece| async move {
        tokio::time::sleep(Duration::from_secs(20)).await;
        Ok::<_, Infallible>(piece)
    });
    let mut body = incoming(Body::from_stream(sent.chain(stream::pending())), &tally, &messages);
    let began = tokio::time::Instant::now();
    let read = async {
        loop {
            match poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await.unwrap() {
                Ok(_) if are_taken => messages.lock().clear(),
                Ok(_) => {}
                Err(error) => return error.to_string(),
            }
        }
    };
    let error = tokio::time::timeout(Duration::from_secs(600), read).await.ok()?;
    assert!(error.contains("the call is unfinished"), "{error}");
    messages.lock().clear(); // as the handler does when it is dropped
    assert_eq!(tally.held.load(Relaxed), others.bytes);
    Some(began.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_finish_what_it_sends_is_not_waited_for() {
    const HALF: &[u8] = &[0, 0, 0, 0, 9, b'a'];
    const WHOLE: &[u8] = &[0, 0, 0, 0, 1, b'a'];
    const WHOLE_AND_HALF: &[u8] = &[0, 0, 0, 0, 1, b'a', 0, 0, 0];
    for (pieces, are_taken, expected) in [
        (&[HALF][..], true, Some(50)),
        (&[WHOLE], false, Some(50)),
        (&[WHOLE, WHOLE, WHOLE], false, Some(50)),
        (&[HALF, b"b", b"c"], true, Some(50)), // it drips
        (&[WHOLE_AND_HALF], true, Some(50)),
        (&[WHOLE, WHOLE, WHOLE], true, None),
    ] {
        assert_eq!(given_up_after(pieces, are_taken, true).await, expected, "{pieces:?}, {are_taken}");
    }
    assert_eq!(given_up_after(&[HALF], true, false).await, None, "nobody needs the room");
}

#[tokio::test(start_paused = true)]
async fn a_stream_for_whose_end_much_is_kept_does_not_rest_for_ever() {
    let (tally, messages) = (tally(200_000), Arc::new(Messages::default()));
    let planned = Planned::among(&tally);
    let arrived = Arrived { messages: Arc::clone(&messages), bodies: Arc::clone(&tally), planned };
    let silent = stream::pending::<Result<Bytes, Infallible>>();
    let mut body = incoming(Body::from_stream(silent), &tally, &messages);
    let others = tally.add(60_000);
    for (bytes, expected) in [(50_000, None), (50_000, Some("nothing came for 30 s"))] {
        arrived.keep_for_end(bytes).unwrap();
        let next = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let next = tokio::time::timeout(Duration::from_secs(600), next).await.ok();
        let given_up = next.map(|frame| frame.unwrap().unwrap_err().to_string());
        assert_eq!(given_up.is_some(), expected.is_some(), "{given_up:?}");
        assert!(expected.is_none_or(|why| given_up.unwrap().contains(why)));
    }
    assert!(arrived.keep_for_end(50_000).is_err());
    drop((arrived, messages));
    assert_eq!(tally.held.load(Relaxed), others.bytes);
}

#[tokio::test]
async fn small_answers_over_http2_that_are_not_read_have_nobody_refused() {
    let router = Router::new().route("/", post(|| async { "here" }));
    for (version, then) in
        [(Version::HTTP_11, StatusCode::TOO_MANY_REQUESTS), (Version::HTTP_2, StatusCode::OK)]
    {
        let router = bounded(router.clone(), InFlightLimits { bodies: 10, answers: 4 });
        let ask = async || {
            let request = Request::post("/").version(version).body(Body::empty()).unwrap();
            router.clone().oneshot(request).await.unwrap()
        };
        let unread = ask().await;
        assert_eq!((unread.status(), ask().await.status()), (StatusCode::OK, then), "{version:?}");
    }
}

#[tokio::test]
async fn answers_that_become_more_than_was_planned_are_given_up_where_there_is_no_room() {
    let went_out = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&went_out);
    let answer = async move |Extension(arrived): Extension<Arrived>, asked: Bytes| {
        arrived.planned().when_it_goes_out(move || {
            count.fetch_add(1, Relaxed);
        });
        vec![0_u8; asked.len() << 20]
    };
    let router = Router::new().route("/", post(answer));
    let router = router.layer(middleware::from_fn(request_span::span));
    let router = bounded(router, InFlightLimits { bodies: 10, answers: 5 << 19 });
    let ask = async |megabytes: usize| {
        let request = Request::post("/").body(Body::from(vec![0; megabytes])).unwrap();
        router.clone().oneshot(request).await.unwrap()
    };
    let (one, another) = (ask(1).await, ask(1).await);
    let refused = [ask(1).await, ask(3).await].map(|answer| {
        assert!(request_span::id(answer.headers()).is_some(), "{:?}", answer.headers());
        answer.status()
    });
    assert_eq!([one.status(), another.status()], [StatusCode::OK; 2]);
    assert_eq!(refused, [StatusCode::TOO_MANY_REQUESTS, StatusCode::UNPROCESSABLE_ENTITY]);
    assert_eq!(went_out.load(Relaxed), 2);
    drop(one);
    assert_eq!(ask(1).await.status(), StatusCode::OK, "what was given up is not held");
    assert_eq!(went_out.load(Relaxed), 3);
}

/// Far more than the system buffers.
const LARGE: usize = 64 << 20;

async fn ask(client: &mut TcpStream, request: &str) {
    let head = "HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    client.write_all(format!("{request} {head}").as_bytes()).await.unwrap();
}

#[tokio::test]
async fn while_answers_are_not_read_nothing_new_is_taken_in() {
    let router = Router::new()
        .route("/large", post(|| async { vec![0_u8; LARGE] }))
        .route("/small", post(|| async { "here" }))
        .route("/health", get(|| async { "well" }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = bounded(router, InFlightLimits { bodies: 10, answers: LARGE });
    tokio::spawn(serve([listener.into()], router, std::future::pending(), GRACE));
    let answer = async |request: &str| {
        let mut client = TcpStream::connect(address).await.unwrap();
        ask(&mut client, request).await;
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let becomes = async |request: &str, said: &str| {
        let started = Instant::now();
        loop {
            let answer = answer(request).await;
            if answer.contains(said) {
                return answer;
            }
            assert!(started.elapsed() < Duration::from_secs(30), "{request}: {answer}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(answer("POST /small").await.ends_with("here"));
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = TcpStream::connect(address).await.unwrap();
        ask(&mut client, "POST /large").await;
        clients.push(client);
    }
    let refused = becomes("POST /small", "HTTP/1.1 429").await;
    assert!(
        ["retry-after: 1\r\n", "x-request-id: ", "--max-answer-bytes"]
            .iter()
            .all(|said| refused.contains(said)),
        "{refused}"
    );
    assert!(answer("GET /health").await.ends_with("well"));
    drop(clients);
    becomes("POST /small", "here").await;
}
