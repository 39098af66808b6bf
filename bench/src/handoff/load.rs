//! Clients that keep their connections and ask at a pace, while something happens to the server.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use fairlead_netns::Host;
use serde_json::{Value, json};

/// How many clients there are, and how long each waits before it asks again.
const CLIENTS: usize = 32;
const PAUSE: Duration = Duration::from_millis(10);
/// A request that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// What became of the requests.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    latencies_us: Vec<u64>,
    /// Requests without a whole answer, by what the client saw.
    closed: u64,
    reset: u64,
    other: u64,
}

impl Outcome {
    fn add(&mut self, other: Self) {
        self.latencies_us.extend(other.latencies_us);
        self.closed += other.closed;
        self.reset += other.reset;
        self.other += other.other;
    }

    fn percentile_ms(&self, share: f64) -> f64 {
        let last = self.latencies_us.len().saturating_sub(1);
        let at = (share * last as f64).round() as usize;
        let micros = self.latencies_us.get(at).copied().unwrap_or(0);
        micros as f64 / 1_000.0
    }

    /// Numbers for the record.
    pub(super) fn value(mut self) -> Value {
        self.latencies_us.sort_unstable();
        let slow = self.latencies_us.iter().filter(|&&us| us > 20_000).count();
        json!({
            "answered": self.latencies_us.len(),
            "failed_closed": self.closed,
            "failed_reset": self.reset,
            "failed_other": self.other,
            "p50_ms": self.percentile_ms(0.5),
            "p99_ms": self.percentile_ms(0.99),
            "p99_9_ms": self.percentile_ms(0.999),
            "max_ms": self.percentile_ms(1.0),
            "slower_than_20_ms": slow,
        })
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// One request and its whole answer.
pub(super) fn ask(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<()> {
    stream.write_all(b"GET /1KiB HTTP/1.1\r\nHost: bench\r\n\r\n")?;
    let mut got = 0;
    loop {
        match stream.read(&mut buffer[got..])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => got += more,
        }
        let head = buffer[..got]
            .windows(4)
            .position(|four| four == b"\r\n\r\n");
        // The file has 1 KiB.
        if head.is_some_and(|head| got >= head + 4 + 1_024) {
            return Ok(());
        }
    }
}

fn one(address: &str, end: &AtomicBool) -> Outcome {
    let mut outcome = Outcome::default();
    let mut buffer = [0; 4_096];
    let mut stream = None;
    while !end.load(Ordering::Relaxed) {
        let Some(open) = &mut stream else {
            // A new connection is no part of what is measured.
            stream = connect(address).ok();
            std::thread::sleep(PAUSE);
            continue;
        };
        let began = Instant::now();
        match ask(open, &mut buffer) {
            Ok(()) => outcome
                .latencies_us
                .push(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX)),
            Err(error) => {
                match error.kind() {
                    io::ErrorKind::UnexpectedEof => outcome.closed += 1,
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                        outcome.reset += 1;
                    }
                    _ => outcome.other += 1,
                }
                stream = None;
            }
        }
        std::thread::sleep(PAUSE);
    }
    outcome
}

/// Has clients ask `address` while `work` is done.
pub(super) fn during(
    client: &Host,
    address: &str,
    work: impl FnOnce() -> Result<()>,
) -> Result<Outcome> {
    let end = AtomicBool::new(false);
    let all = Mutex::new(Outcome::default());
    let worked = std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            let (end, all) = (&end, &all);
            let asking = move || one(address, end);
            scope.spawn(move || {
                if let Ok(outcome) = client.enter(asking) {
                    let mut all = all
                        .lock()
                        .unwrap_or_else(std::sync::PoisonError::into_inner);
                    all.add(outcome);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(500));
        let worked = work();
        std::thread::sleep(Duration::from_millis(500));
        end.store(true, Ordering::Relaxed);
        worked
    });
    worked?;
    Ok(all
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// Opens connections that have asked once, and keeps them.
pub(super) fn idle(client: &Host, address: &str, count: usize) -> Result<Vec<TcpStream>> {
    let open = || -> io::Result<Vec<TcpStream>> {
        let mut buffer = [0; 4_096];
        let mut all = Vec::with_capacity(count);
        for _ in 0..count {
            let mut stream = connect(address)?;
            ask(&mut stream, &mut buffer)?;
            all.push(stream);
        }
        Ok(all)
    };
    Ok(client.enter(open)??)
}
