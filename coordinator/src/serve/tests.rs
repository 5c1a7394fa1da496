//! Clients that say nothing, stop in the middle, or vanish; and the stop of a member.

use std::time::Duration;

use axum::{body::Body, routing::get};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};

use super::*;

const SOON: Duration = Duration::from_secs(20);

const SHORT: Patience = Patience {
    first_request: Duration::from_millis(400),
    head: SOON,
    ask: Duration::from_millis(300),
    answer: Duration::from_millis(700),
    drain: Duration::from_millis(700),
};

struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    served: JoinHandle<io::Result<()>>,
    /// Falls to none when the last endless answer is dropped.
    endless: Arc<()>,
}

async fn running() -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let endless = Arc::new(());
    let held = endless.clone();
    let routes = Router::new().route("/", get(|| async { "here" })).route(
        "/endless",
        get(move || async move {
            let first = tokio_stream::once(Ok::<_, Infallible>(Bytes::from_static(b"first")));
            // The answer holds the handle for as long as somebody is served.
            let rest = futures::stream::once(async move {
                std::future::pending::<()>().await;
                drop(held);
                Ok(Bytes::new())
            });
            Body::from_stream(futures::StreamExt::chain(first, rest))
        }),
    );
    let (stop, stopped) = oneshot::channel();
    let served = tokio::spawn(serve_with(listener, routes, SHORT, async {
        let _ = stopped.await;
    }));
    Running { address, stop, served, endless }
}

async fn closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    // A reset is an end as well.
    let _ = timeout(SOON, stream.read_to_end(&mut all)).await.expect("the connection stays open");
    all
}

#[tokio::test]
async fn a_connection_without_a_request_is_closed_whatever_it_began_with() {
    let running = running().await;
    for beginning in ["", "P", "GET / HT", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut stream = TcpStream::connect(running.address).await.unwrap();
        stream.write_all(beginning.as_bytes()).await.unwrap();
        let all = closed(&mut stream).await;
        assert!(!all.starts_with(b"HTTP/1.1 200"), "{beginning:?}");
    }
}

#[tokio::test]
async fn a_connection_that_was_used_may_rest() {
    let running = running().await;
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    for _ in 0..2 {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut some = [0; 512];
        let mut seen = Vec::new();
        while !seen.ends_with(b"here") {
            let length = timeout(SOON, stream.read(&mut some)).await.unwrap().unwrap();
            assert!(length > 0, "the connection was closed");
            seen.extend_from_slice(&some[..length]);
        }
        let more = timeout(SHORT.first_request * 2, stream.read(&mut some)).await;
        assert!(more.is_err(), "{more:?}");
    }
}

/// A proxy that passes everything on until it is told to go silent, like a network that eats packets.
async fn through_silence(to: SocketAddr) -> (SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (silence, silent) = watch::channel(false);
    tokio::spawn(async move {
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = TcpStream::connect(to).await.unwrap();
        let mut heard = silent.clone();
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut near, &mut far) => return,
            _ = heard.wait_for(|silent| *silent) => {}
        }
        std::future::pending::<()>().await;
        drop((near, far));
    });
    (address, silence)
}

#[tokio::test]
async fn a_stream_whose_client_vanished_is_dropped() {
    let running = running().await;
    let (address, silence) = through_silence(running.address).await;
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http::<Empty<Bytes>>();
    let mut answer = client.get(format!("http://{address}/endless").parse().unwrap()).await.unwrap();
    let first = timeout(SOON, answer.frame()).await.unwrap().unwrap().unwrap();
    assert_eq!(first.data_ref().map(AsRef::as_ref), Some(&b"first"[..]));
    // The client is there and answers: nothing ends.
    assert!(timeout((SHORT.ask + SHORT.answer) * 2, answer.frame()).await.is_err());
    assert_eq!(Arc::strong_count(&running.endless), 3);
    silence.send_replace(true);
    let dropped = async {
        while Arc::strong_count(&running.endless) > 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, dropped).await.expect("the stream is still served");
}

#[tokio::test]
async fn a_stop_ends_idle_connections_at_once_and_takes_no_new_ones() {
    let running = running().await;
    let mut idle = TcpStream::connect(running.address).await.unwrap();
    idle.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut some = [0; 512];
    assert!(timeout(SOON, idle.read(&mut some)).await.unwrap().unwrap() > 0);
    running.stop.send(()).unwrap();
    closed(&mut idle).await;
    timeout(SOON, running.served).await.unwrap().unwrap().unwrap();
    assert!(TcpStream::connect(running.address).await.is_err());
}

#[tokio::test]
async fn a_stop_does_not_wait_for_ever() {
    let running = running().await;
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .http2_only(true)
        .build_http::<Empty<Bytes>>();
    let mut answer =
        client.get(format!("http://{}/endless", running.address).parse().unwrap()).await.unwrap();
    assert!(answer.frame().await.unwrap().is_ok());
    running.stop.send(()).unwrap();
    timeout(SOON, running.served).await.expect("it waits for an endless answer").unwrap().unwrap();
}
