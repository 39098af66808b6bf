//! Load: many sessions at once, the timing inside each untouched.
//!
//! The sessions of a log are open for a total time; divided by the wanted concurrency it is the
//! *period*. Each session starts at a uniformly random instant of the period, and everything
//! repeats in each period with other clients. That process is stationary: at every instant the mean
//! number of open sessions is the wanted concurrency. Whole periods are counted, so that each
//! access of the log counts equally often; the time before is warm-up.

use fairlead_base::{Address, Endpoint, Rng};
use fairlead_trace::{EndpointTable, TIME_MAX_US, address_of_name, hash64};

use crate::draw::below;
use crate::sessions::Sessions;
use crate::statistics::{Open, circle};

/// One access of the result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) time_us: i64,
    pub(crate) id: u32,
    pub(crate) hint: u8,
}

/// Accesses, not sorted. Those of negative time are warm-up.
#[derive(Debug, Default)]
pub(crate) struct Overlaid {
    pub(crate) rows: Vec<Row>,
    pub(crate) table: EndpointTable,
    /// Sessions in it, repetitions counted.
    pub(crate) sessions: u64,
    pub(crate) period_us: u64,
    pub(crate) open: Open,
}

/// The request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) concurrent: f64,
    pub(crate) warm_up_us: i64,
    pub(crate) periods: u32,
    pub(crate) rows_max: u64,
}

/// Why it cannot be had.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    /// All sessions are open for an instant only.
    NeverOpen,
    /// The accesses would exceed the limit.
    Rows(u64),
    /// It would be longer than [`LONG_MAX_US`].
    Long,
}

const UNSEEN: u32 = u32::MAX;
/// Warm-up and periods are at most so long, microseconds: with how long a session of a log can be
/// open, that fits 64 bits.
const LONG_MAX_US: f64 = (TIME_MAX_US / 2) as f64;

pub(crate) fn overlay(sessions: &Sessions, load: Load, seed: u64) -> Result<Overlaid, Refusal> {
    let open_us: u128 = (0..sessions.len())
        .map(|at| u128::from(sessions.open_us(at)))
        .sum();
    let period = open_us as f64 / load.concurrent;
    if open_us == 0 {
        return Err(Refusal::NeverOpen);
    }
    if period < 1.0 {
        return Err(Refusal::Rows(load.rows_max));
    }
    if period * f64::from(load.periods) + load.warm_up_us as f64 > LONG_MAX_US {
        return Err(Refusal::Long);
    }
    let period = period as i64;
    let end = period * i64::from(load.periods);
    let stretch = (end as f64 + load.warm_up_us as f64) / period as f64;
    let expected = stretch * sessions.since_us.len() as f64;
    if expected > load.rows_max as f64 {
        return Err(Refusal::Rows(load.rows_max));
    }
    let mut rng = Rng::new(seed);
    let mut overlaid = Overlaid {
        rows: Vec::with_capacity(expected as usize + expected as usize / 16),
        period_us: period as u64,
        ..Overlaid::default()
    };
    let mut ids = Vec::new();
    let mut stretches = Vec::with_capacity(sessions.len());
    for session in 0..sessions.len() {
        let phase = below(&mut rng, period as u64) as i64;
        let open = sessions.open_us(session) as i64;
        stretches.push((phase as u64, open as u64));
        // The repetitions that can overlap the interval.
        let lowest = (-load.warm_up_us - phase - open).div_euclid(period);
        let highest = (end - phase).div_euclid(period);
        let copies = (highest - lowest + 1).max(0) as u64;
        // This many are open at once, even if each has hardly any access.
        if copies > load.rows_max {
            return Err(Refusal::Rows(load.rows_max));
        }
        ids.clear();
        ids.resize(copies as usize, UNSEEN);
        for row in sessions.rows(session) {
            let at = phase + sessions.since_us[row] as i64;
            // The first repetition with an access not before the warm-up.
            let first = -(load.warm_up_us + at).div_euclid(period);
            let mut time_us = at + first * period;
            let mut copy = first;
            while time_us < end {
                let id = &mut ids[(copy - lowest) as usize];
                if *id == UNSEEN {
                    let key = repeated(sessions.key[session], copy);
                    overlaid.sessions += 1;
                    // Fewer than rows, which are fewer than numbers.
                    *id = overlaid.table.number(key, UNSEEN - 1).unwrap_or(0);
                }
                let (id, hint) = (*id, sessions.hint[row]);
                overlaid.rows.push(Row { time_us, id, hint });
                time_us += period;
                copy += 1;
            }
        }
    }
    overlaid.open = circle(&stretches, period as u64);
    Ok(overlaid)
}

/// The identifier of a session's repetition; number 0 is the client of the log, all others are
/// other clients with the same port.
fn repeated(key: Endpoint, copy: i64) -> Endpoint {
    if copy == 0 {
        return key;
    }
    let mut name = [0u8; 24];
    name[..16].copy_from_slice(&key.addr.0);
    name[16..].copy_from_slice(&copy.to_le_bytes());
    let addr = if key.addr.is_v4() {
        address_of_name(&name)
    } else {
        let mut octets = key.addr.0;
        octets[8..].copy_from_slice(&hash64(&name).to_be_bytes());
        Address::v6(octets)
    };
    Endpoint { addr, ..key }
}
