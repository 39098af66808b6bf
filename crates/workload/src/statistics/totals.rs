//! A log in numbers.

use fairlead_trace::{BYTES_UNKNOWN, Requests};
use serde::{Deserialize, Serialize};

use crate::sessions::askers;

/// Totals of a log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Requests.
    pub requests: u64,
    /// Distinct clients.
    pub clients: u64,
    /// Clients whose address stands for a name.
    pub named_clients: u64,
    /// Sessions: requests of one client, and one port where the log has it, without a longer pause
    /// than the timeout.
    pub sessions: u64,
    /// Distinct objects, those that are unknown apart.
    pub objects: u64,
    /// Bytes of all responses whose size is known.
    pub response_bytes: u64,
    /// Responses whose size is known.
    pub sized: u64,
    /// From the first request to the last, microseconds.
    pub span_us: u64,
    /// Requests of the busiest second.
    pub peak_per_second: u64,
    /// The share of the client with the most requests.
    pub top_client_share: f64,
}

/// Counts a log.
pub fn totals(requests: &Requests, session_timeout_s: f64) -> Totals {
    let timeout_us = (session_timeout_s * 1e6) as i64;
    let mut order: Vec<u32> = (0..requests.len() as u32).collect();
    order.sort_by_key(|row| requests.time_us[*row as usize]);
    let (askers, distinct) = askers(requests);
    let mut last = vec![None; distinct];
    let mut of_client = vec![0u64; requests.clients.len()];
    let (mut sessions, mut peak, mut in_second) = (0, 0u64, (i64::MIN, 0u64));
    for row in order {
        let (time, client) = (
            requests.time_us[row as usize],
            requests.client[row as usize],
        );
        let second = time.div_euclid(1_000_000);
        in_second = if in_second.0 == second {
            (second, in_second.1 + 1)
        } else {
            (second, 1)
        };
        peak = peak.max(in_second.1);
        of_client[client as usize] += 1;
        match last[askers[row as usize] as usize].replace(time) {
            Some(before) if time - before <= timeout_us => {}
            _ => sessions += 1,
        }
    }
    let known = requests
        .bytes
        .iter()
        .filter(|bytes| **bytes != BYTES_UNKNOWN);
    let (sized, response_bytes) = known.fold((0, 0u64), |(count, sum), bytes| {
        (count + 1, sum.saturating_add(*bytes))
    });
    let mut objects = requests.object.clone();
    objects.sort_unstable();
    objects.dedup();
    let first = requests.time_us.iter().min().copied().unwrap_or(0);
    let final_time = requests.time_us.iter().max().copied().unwrap_or(0);
    let top = of_client.iter().max().copied().unwrap_or(0);
    Totals {
        requests: requests.len() as u64,
        clients: requests.clients.len() as u64,
        named_clients: requests
            .clients
            .iter()
            .filter(|client| client.named)
            .count() as u64,
        sessions,
        objects: objects.iter().filter(|object| **object != 0).count() as u64,
        response_bytes,
        sized,
        span_us: final_time.wrapping_sub(first) as u64,
        peak_per_second: peak,
        top_client_share: top as f64 / requests.len().max(1) as f64,
    }
}
