use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use fairlead_base::Endpoint;
use fairlead_http_front::FrontCounters;
use fairlead_splice::config::{CacheRule, Pool, PoolId, Protocol, Route, Server, Service};

use super::*;

fn endpoint(at: SocketAddr) -> Endpoint {
    Endpoint {
        addr: at.ip().into(),
        port: at.port(),
    }
}

/// A server that numbers its answers, which may be kept.
fn numbering() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut head = [0; 1_000];
            let _ = stream.read(&mut head);
            let answer = format!(
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nConnection: close\r\n\
                 Content-Length: 1\r\n\r\n{number}"
            );
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    at
}

fn ask(stream: &mut TcpStream, path: &str) -> io::Result<String> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let mut all = Vec::new();
    let mut some = [0; 1_000];
    while !String::from_utf8_lossy(&all).contains("\r\n\r\n") || all.ends_with(b"\n") {
        match stream.read(&mut some)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            got => all.extend_from_slice(&some[..got]),
        }
    }
    Ok(String::from_utf8(all).unwrap())
}

fn connect(at: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(at).unwrap();
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).unwrap();
    stream
}

/// Waits until these numbers of failures and clients are counted.
fn wait_for(running: &Running, wanted: (u64, u64)) -> FrontCounters {
    let until = Clock::now() + Duration::from_secs(60);
    loop {
        let counts = running.take().counts.numbers;
        if (counts.front_failures, counts.front_clients) == wanted {
            return counts;
        }
        assert!(Clock::now() < until, "{counts:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn after_a_failure_connections_are_reset_and_the_cache_is_kept() {
    let pool = Pool::new("one", vec![Server::new(endpoint(numbering()))]);
    // Where it listens is not known yet.
    let mut service = Service::new("web", Vec::new(), Protocol::Http);
    let mut route = Route::new("#1", Vec::new(), PoolId(0));
    route.cache = Some(CacheRule::new(1 << 20));
    service.routes.push(route);
    let mut switch = Config::new(vec![service], vec![pool]);
    let ready = Ready::open(&mut switch).unwrap();
    let at = switch.services[0].routes[0].listeners.v4.unwrap();
    switch.services[0].listen.push(at);
    let instance = format!("front-test-{}", std::process::id());
    let at = at.to_socket();
    let running = start(
        ready,
        (&instance, "lo"),
        &switch,
        Seed::new([1, 2]),
        None,
        None,
    )
    .unwrap();

    let mut old = connect(at);
    let first = ask(&mut old, "/a").unwrap();
    assert!(
        first.ends_with("\r\n\r\n0") && first.contains("stored"),
        "{first}"
    );
    let mut part = connect(at);
    part.write_all(b"GET /b HTTP/1.1\r\n").unwrap();
    wait_for(&running, (0, 2));
    for failures in 1..=2 {
        let desk = Arc::clone(running.desk());
        let hit = desk.call(|_, _| -> () { panic!("a test has the front fail") });
        assert!(hit.is_none());
        if failures == 1 {
            for mut one in [old.try_clone().unwrap(), part.try_clone().unwrap()] {
                let ended = one.read(&mut [0; 10]).unwrap_err();
                assert_eq!(ended.kind(), io::ErrorKind::ConnectionReset);
            }
        }
        let mut new = connect(at);
        let again = ask(&mut new, "/a").unwrap();
        assert!(again.contains("fairlead; hit"), "{again}");
        let other = ask(&mut new, &format!("/{failures}")).unwrap();
        assert!(other.ends_with(&format!("\r\n\r\n{failures}")), "{other}");
        drop(new);
        let counts = wait_for(&running, (failures, 0));
        assert!(counts.front_served > failures, "those before count");
    }
    running.forget();
    drop(running);
    assert!(remove_of(&instance).unwrap().is_empty(), "nothing is left");
}
