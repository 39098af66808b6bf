//! Requests to sessions, and their accesses at instants within a session.

use fairlead_base::{Address, Endpoint, Rng};
use fairlead_trace::{
    BYTES_UNKNOWN, HINT_CLOSING, HINT_NONE, HINT_OPENING, NumberTable, Requests, TIME_MAX_US,
};

use crate::draw::{below, exponential};
use crate::expand::WorkloadError;
use crate::expansion::{Expansion, PacketModel, SubSecond};

const SECOND_US: i64 = 1_000_000;
/// Maximum distance of a packet from its request: the span of a log plus twice this fits 64 bits.
const AWAY_MAX_US: i64 = TIME_MAX_US / 2;

/// Sessions with their accesses, each counted from the session's own beginning.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions {
    /// By session: index of its first access; one entry more than sessions.
    pub(crate) from: Vec<usize>,
    /// Its start, microseconds since the log's origin.
    pub(crate) start_us: Vec<i64>,
    pub(crate) key: Vec<Endpoint>,
    /// By access: microseconds since the session's beginning, never stepping back.
    pub(crate) since_us: Vec<u64>,
    pub(crate) hint: Vec<u8>,
    /// The mean pause within ON periods of the log, microseconds.
    pub(crate) on_gap_mean_us: f64,
    /// Responses with truncated acknowledgements.
    pub(crate) responses_cut: u64,
    /// True if any session got a port, because the log lacks some.
    pub(crate) ports_drawn: bool,
}

impl Sessions {
    pub(crate) fn len(&self) -> usize {
        self.start_us.len()
    }

    /// The accesses of a session.
    pub(crate) fn rows(&self, session: usize) -> core::ops::Range<usize> {
        self.from[session]..self.from[session + 1]
    }

    /// How long a session is open, microseconds.
    pub(crate) fn open_us(&self, session: usize) -> u64 {
        let last = self.since_us[self.rows(session)].last();
        last.copied().unwrap_or(0)
    }
}

/// Rows of a log by client, in order of time.
struct Grouped {
    from: Vec<usize>,
    rows: Vec<u32>,
}

/// The client of each row: a number for the client, and its port if the log has it; and the number
/// of such numbers.
pub fn askers(requests: &Requests) -> (Vec<u32>, usize) {
    if requests.port.iter().all(|port| *port == 0) {
        return (requests.client.clone(), requests.clients.len());
    }
    let mut table = NumberTable::default();
    let mut askers = 0u32;
    let mut number = |client: u32, port: u16| {
        let key = u64::from(client) << 16 | u64::from(port);
        let (number, fresh) = table.number(key, askers);
        askers += u32::from(fresh);
        number
    };
    let rows = requests.client.iter().zip(&requests.port);
    let of_rows = rows.map(|(client, port)| number(*client, *port)).collect();
    (of_rows, askers as usize)
}

/// Groups rows by client.
fn grouped(requests: &Requests) -> Grouped {
    let (group, groups) = askers(requests);
    let mut from = vec![0usize; groups + 1];
    for group in &group {
        from[*group as usize + 1] += 1;
    }
    for at in 1..from.len() {
        from[at] += from[at - 1];
    }
    let mut next = from.clone();
    let mut rows = vec![0u32; group.len()];
    for (row, group) in group.iter().enumerate() {
        let place = &mut next[*group as usize];
        rows[*place] = row as u32;
        *place += 1;
    }
    let time = |row: &u32| requests.time_us[*row as usize];
    for pair in from.windows(2) {
        let rows = &mut rows[pair[0]..pair[1]];
        if !rows.is_sorted_by_key(time) {
            rows.sort_by_key(time);
        }
    }
    Grouped { from, rows }
}

/// The mean pause within ON periods, of one client (and port) each; 0 where there is none. Pauses
/// of whole seconds average to the true mean, because stamps are cut off evenly.
fn on_gap_mean_us(requests: &Requests, grouped: &Grouped, max_us: i64) -> f64 {
    let (mut sum, mut count) = (0i128, 0u64);
    for pair in grouped.from.windows(2) {
        for rows in grouped.rows[pair[0]..pair[1]].windows(2) {
            let gap = requests.time_us[rows[1] as usize] - requests.time_us[rows[0] as usize];
            if gap <= max_us {
                sum += i128::from(gap);
                count += 1;
            }
        }
    }
    if count == 0 {
        0.0
    } else {
        sum as f64 / count as f64
    }
}

/// Cuts a log into sessions.
///
/// # Errors
/// When there would be more than `rows_max` accesses.
pub(crate) fn split(
    requests: &Requests,
    expansion: &Expansion,
    seed: u64,
) -> Result<Sessions, WorkloadError> {
    let grouped = grouped(requests);
    let us = |seconds: f64| (seconds * 1e6) as i64;
    let (timeout_us, on_max_us) = (us(expansion.session_timeout_s), us(expansion.on_gap_max_s));
    let whole = || requests.time_us.iter().all(|time| time % SECOND_US == 0);
    let drawn = match expansion.sub_second {
        SubSecond::Auto => whole(),
        SubSecond::Logged => false,
        SubSecond::Drawn => true,
    };
    let mean_us = on_gap_mean_us(requests, &grouped, on_max_us);
    let mut rng = Rng::new(seed);
    let mut writer = Writer {
        requests,
        expansion,
        offsets: Offsets {
            rng: Rng::new(rng.next_u64()),
            drawn,
            mean_us,
            on_max_us,
        },
        sessions: Sessions {
            on_gap_mean_us: mean_us,
            ..Sessions::default()
        },
        times: Vec::new(),
    };
    let mut ports = Rng::new(rng.next_u64());
    for pair in grouped.from.windows(2) {
        let rows = &grouped.rows[pair[0]..pair[1]];
        let Some(row) = rows.first().map(|row| *row as usize) else {
            continue;
        };
        let address = requests.clients[requests.client[row] as usize].address;
        let logged = requests.port[row];
        let first = expansion.ports.first(&mut ports);
        let mut from = 0;
        let mut number = 0;
        for at in 1..=rows.len() {
            let time = |at: usize| requests.time_us[rows[at] as usize];
            if at < rows.len() && time(at) - time(at - 1) <= timeout_us {
                continue;
            }
            writer.sessions.ports_drawn |= logged == 0;
            let port = match logged {
                0 => expansion.ports.port(first, number, &mut ports),
                logged => logged,
            };
            writer.session(&rows[from..at], address, port)?;
            number += 1;
            from = at;
        }
    }
    let mut sessions = writer.sessions;
    sessions.from.push(sessions.since_us.len());
    Ok(sessions)
}

/// Draws what seconds hide.
struct Offsets {
    rng: Rng,
    drawn: bool,
    mean_us: f64,
    on_max_us: i64,
}

impl Offsets {
    /// The instant of a request logged at `logged_us`, after one logged at `before.0` that was
    /// given the instant `before.1`. It stays within its second and never steps back. Behind a
    /// pause it lies evenly in its second; within an ON period it follows its predecessor by an
    /// exponential gap of the mean that the log has.
    fn instant(&mut self, logged_us: i64, before: Option<(i64, i64)>) -> i64 {
        if !self.drawn {
            return logged_us;
        }
        let second = logged_us.div_euclid(SECOND_US) * SECOND_US;
        let end = second + SECOND_US;
        match before {
            Some((before_logged, before_us)) if logged_us - before_logged <= self.on_max_us => {
                let gap = exponential(&mut self.rng, self.mean_us) as i64;
                let at = before_us.saturating_add(gap);
                if at < second {
                    // The log says that it was later: as if the gap were counted from there.
                    second + gap.rem_euclid(SECOND_US)
                } else if at >= end {
                    let from = before_us.max(second);
                    from + below(&mut self.rng, (end - from) as u64) as i64
                } else {
                    at
                }
            }
            before => {
                // A pause may end in the second in which it begins, but not before that.
                let from = before.map_or(second, |(_, before_us)| before_us.max(second));
                from + below(&mut self.rng, (end - from) as u64) as i64
            }
        }
    }
}

struct Writer<'a> {
    requests: &'a Requests,
    expansion: &'a Expansion,
    offsets: Offsets,
    sessions: Sessions,
    /// Of the session at hand.
    times: Vec<(i64, u8)>,
}

impl Writer<'_> {
    fn session(&mut self, rows: &[u32], addr: Address, port: u16) -> Result<(), WorkloadError> {
        let mut before = None;
        self.times.clear();
        for row in rows {
            let row = *row as usize;
            let logged = self.requests.time_us[row];
            let at = self.offsets.instant(logged, before);
            before = Some((logged, at));
            match self.expansion.packets {
                PacketModel::Request => self.push(at, HINT_NONE)?,
                PacketModel::Packets => self.exchange(at, self.requests.bytes[row])?,
            }
        }
        if self.expansion.packets == PacketModel::Packets {
            // Acknowledgements of one response may come after the next request.
            self.times.sort_by_key(|(at, _)| *at);
            let last = self.times.last().map_or(0, |(at, _)| *at);
            self.push(last + self.step_us(), HINT_CLOSING)?;
        }
        let Some((start, _)) = self.times.first().copied() else {
            return Ok(());
        };
        let sessions = &mut self.sessions;
        sessions.from.push(sessions.since_us.len());
        sessions.start_us.push(start);
        sessions.key.push(Endpoint { addr, port });
        for (at, hint) in &self.times {
            sessions.since_us.push((at - start) as u64);
            sessions.hint.push(*hint);
        }
        Ok(())
    }

    /// One more access of the session at hand, as long as there is room: a single response may have
    /// more acknowledgements than memory holds.
    fn push(&mut self, at: i64, hint: u8) -> Result<(), WorkloadError> {
        let rows = self.sessions.since_us.len() + self.times.len();
        if rows as u64 >= self.expansion.rows_max {
            return Err(WorkloadError::TooManyRows(self.expansion.rows_max));
        }
        self.times.push((at, hint));
        Ok(())
    }

    /// Between two acknowledgements: two segments at the client's rate.
    fn step_us(&self) -> i64 {
        let bytes = f64::from(self.expansion.segment_bytes) * 2.0;
        (bytes / self.expansion.client_bytes_per_s * 1e6).min(1e12) as i64
    }

    /// A request and the client's packets for its response.
    fn exchange(&mut self, at: i64, bytes: u64) -> Result<(), WorkloadError> {
        let round_trip = i64::try_from(self.expansion.round_trip_us).unwrap_or(i64::MAX);
        let round_trip = round_trip.min(AWAY_MAX_US);
        if self.times.is_empty() {
            self.push(at - round_trip, HINT_OPENING)?;
        }
        self.push(at, HINT_NONE)?;
        let bytes = if bytes == BYTES_UNKNOWN { 0 } else { bytes };
        // A response without content still has a head.
        let segments = bytes
            .div_ceil(u64::from(self.expansion.segment_bytes))
            .max(1);
        let acks = segments.div_ceil(2);
        let sent = acks.min(u64::from(self.expansion.acks_max));
        self.sessions.responses_cut += u64::from(sent < acks);
        let step = self.step_us();
        for ack in 0..sent as i64 {
            let away = round_trip.saturating_add(ack.saturating_mul(step));
            self.push(at + away.min(AWAY_MAX_US), HINT_NONE)?;
        }
        Ok(())
    }
}
