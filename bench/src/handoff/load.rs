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
    /// When each was sent, and how long it took.
    answered: Vec<(Instant, Duration)>,
    /// Answers that said `Connection: close`: their connections end as announced.
    announced: u64,
    /// Requests without a whole answer, by what the client saw.
    closed: u64,
    reset: u64,
    other: u64,
    /// Those of them that were the first of their connection.
    failed_first: u64,
}

/// A time in which nobody listened: from the order to end until somebody listened again.
pub(super) type Down = (Instant, Instant);

impl Outcome {
    fn add(&mut self, other: Self) {
        self.answered.extend(other.answered);
        self.announced += other.announced;
        self.closed += other.closed;
        self.reset += other.reset;
        self.other += other.other;
        self.failed_first += other.failed_first;
    }

    /// Numbers for the record. Waits are also shown without the part in which nobody listened.
    pub(super) fn value(self, downs: &[Down]) -> Value {
        let all = self.answered.iter();
        let waits = sorted_ms(all.clone().map(|(_, took)| *took));
        let beyond = sorted_ms(all.map(|&(began, took)| took - overlap(began, took, downs)));
        json!({
            "answered": waits.len(),
            "closes_announced": self.announced,
            "failed_closed": self.closed,
            "failed_reset": self.reset,
            "failed_other": self.other,
            "failed_first_of_connection": self.failed_first,
            "p50_ms": percentile(&waits, 0.5),
            "p99_ms": percentile(&waits, 0.99),
            "p99_9_ms": percentile(&waits, 0.999),
            "max_ms": percentile(&waits, 1.0),
            "slower_than_20_ms": waits.iter().filter(|&&ms| ms > 20.0).count(),
            "p99_9_ms_beyond_down": percentile(&beyond, 0.999),
            "max_ms_beyond_down": percentile(&beyond, 1.0),
        })
    }
}

fn sorted_ms(times: impl Iterator<Item = Duration>) -> Vec<f64> {
    let mut all: Vec<f64> = times.map(|time| (time.as_micros() as f64) / 1e3).collect();
    all.sort_unstable_by(f64::total_cmp);
    all
}

fn percentile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (share * last as f64).round() as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}

/// The part of a wait in which nobody listened.
fn overlap(began: Instant, took: Duration, downs: &[Down]) -> Duration {
    let ended = began + took;
    let parts = downs.iter().map(|&(from, to)| {
        let (from, to) = (from.max(began), to.min(ended));
        to.saturating_duration_since(from)
    });
    parts.sum()
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// One request and its whole answer. True when the answer says that the connection ends with it.
pub(super) fn ask(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<bool> {
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
        if let Some(head) = head.filter(|head| got >= head + 4 + 1_024) {
            let closes = b"\r\nConnection: close\r\n";
            let mut lines = buffer[..head + 2].windows(closes.len());
            return Ok(lines.any(|line| line == closes));
        }
    }
}

fn one(address: &str, end: &AtomicBool) -> Outcome {
    let mut outcome = Outcome::default();
    let mut buffer = [0; 4_096];
    let mut open: Option<(TcpStream, u64)> = None;
    while !end.load(Ordering::Relaxed) {
        let Some((stream, asked)) = &mut open else {
            // A new connection is no part of what is measured.
            open = connect(address).ok().map(|stream| (stream, 0));
            std::thread::sleep(PAUSE);
            continue;
        };
        let began = Instant::now();
        let answer = ask(stream, &mut buffer);
        let took = began.elapsed();
        *asked += 1;
        let is_first = *asked == 1;
        match answer {
            Ok(closes) => {
                outcome.answered.push((began, took));
                if closes {
                    outcome.announced += 1;
                    open = None;
                }
            }
            Err(error) => {
                match error.kind() {
                    io::ErrorKind::UnexpectedEof => outcome.closed += 1,
                    io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                        outcome.reset += 1;
                    }
                    _ => outcome.other += 1,
                }
                outcome.failed_first += u64::from(is_first);
                open = None;
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
