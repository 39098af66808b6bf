//! The client: `wrk`, and what it prints.

use std::path::Path;

use anyhow::{Context, Result};
use fairlead_netns::Host;

/// How `wrk` asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load<'a> {
    /// Whom, `address:port`.
    pub(crate) address: &'a str,
    /// The file.
    pub(crate) file: &'a str,
    /// A connection for each request.
    pub(crate) close: bool,
    /// Connections at once.
    pub(crate) connections: u32,
    /// For how long.
    pub(crate) seconds: u32,
    /// A query of its own for each request, so that no two heads are the same.
    pub(crate) distinct: bool,
}

/// What makes heads distinct.
const DISTINCT: &str = "local n = 0\nfunction request()\n  n = n + 1\n  \
                        return wrk.format(nil, wrk.path .. \"?\" .. n)\nend\n";

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Requests a second.
    pub(crate) rate: f64,
    /// The 99th percentile of latency.
    pub(crate) p99_ms: f64,
    /// Answered requests.
    pub(crate) requests: u64,
    /// Socket errors and answers other than 2xx and 3xx.
    pub(crate) errors: u64,
}

/// Runs `wrk` on `host`, by way of `prefix` (a program with arguments that runs another), which may
/// find files in `folder`.
pub(crate) fn run(host: &Host, folder: &Path, prefix: &[&str], load: &Load<'_>) -> Result<Sample> {
    let connections = load.connections.to_string();
    let seconds = format!("{}s", load.seconds);
    let url = format!("http://{}/{}", load.address, load.file);
    let mut words = prefix.to_vec();
    words.extend(["wrk", "-t", "1", "--latency", "--timeout", "5s"]);
    words.extend(["-c", &connections, "-d", &seconds]);
    if load.close {
        words.extend(["-H", "Connection: close"]);
    }
    let script = folder.join("distinct.lua");
    let script = script.to_str().context("a folder's name")?;
    if load.distinct {
        std::fs::write(script, DISTINCT)?;
        words.extend(["-s", script]);
    }
    words.push(&url);
    let output = host.command(words[0]).args(&words[1..]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Sample::parse(&text).with_context(|| format!("reading what wrk printed:\n{text}"))
}

impl Sample {
    fn parse(text: &str) -> Option<Self> {
        let word = |line: &str, at: usize| line.split_whitespace().nth(at).map(str::to_owned);
        let find = |part: &str| text.lines().find(|line| line.contains(part));
        let rate = word(find("Requests/sec:")?, 1)?.parse().ok()?;
        let p99_ms = milliseconds(&word(find("   99%")?, 1)?)?;
        let requests = word(find(" requests in ")?, 0)?.parse().ok()?;
        // "Socket errors: connect 0, read 0, write 0, timeout 0"
        let errors = find("Socket errors").map_or(0, |line| {
            line.split([' ', ','])
                .filter_map(|word| word.parse::<u64>().ok())
                .sum()
        });
        let refused = find("Non-2xx")
            .and_then(|line| word(line, 4)?.parse().ok())
            .unwrap_or(0);
        Some(Self {
            rate,
            p99_ms,
            requests,
            errors: errors + refused,
        })
    }
}

/// `wrk` writes 812.00us, 3.02ms, 1.20s.
fn milliseconds(text: &str) -> Option<f64> {
    let (number, unit) = text.split_at(text.find(|sign: char| sign.is_ascii_alphabetic())?);
    let number: f64 = number.parse().ok()?;
    match unit {
        "us" => Some(number / 1_000.0),
        "ms" => Some(number),
        "s" => Some(number * 1_000.0),
        "m" => Some(number * 60_000.0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wrk_prints_is_read() {
        let text = "  Latency Distribution\n     50%  812.00us\n     99%    3.02ms\n  \
                    9000 requests in 1.00s, 10MB read\n  \
                    Socket errors: connect 1, read 2, write 3, timeout 4\n  \
                    Non-2xx or 3xx responses: 5\nRequests/sec:   9000.50\n";
        let sample = Sample::parse(text).unwrap();
        assert_eq!(
            (sample.rate, sample.p99_ms, sample.requests, sample.errors),
            (9000.5, 3.02, 9000, 15)
        );
        assert!(Sample::parse("nothing").is_none());
    }
}
