//! The parameters of the expansion, each with its default and the reason for it.

use serde::{Deserialize, Serialize};

use crate::ports::PortModel;

/// How a log's whole seconds become instants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubSecond {
    /// Drawn if all time stamps are whole seconds, otherwise as logged.
    #[default]
    Auto,
    /// As logged.
    Logged,
    /// Drawn, whatever the log has.
    Drawn,
}

/// Which packets of a request reach the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PacketModel {
    /// One: the request.
    #[default]
    Request,
    /// A SYN that opens the session, each request, an acknowledgement for every two segments of
    /// its response, a FIN that closes the session.
    Packets,
}

/// From requests to accesses: parameters. What is not written has its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Expansion {
    /// Silence of a client after which its next request starts a new session, seconds. 1,800: half
    /// an hour, as in studies of web sessions.
    pub session_timeout_s: f64,
    /// How clients choose ports where the log has none. Default: as in 1995, because the traces
    /// that the figures are compared with are of 1995.
    #[serde(deserialize_with = "crate::ports::deserialize")]
    pub ports: PortModel,
    /// How whole seconds become instants. Default: drawn where the log has whole seconds only.
    pub sub_second: SubSecond,
    /// The longest pause between two requests of one ON period, seconds. 1: an ON line of the TCB
    /// cache falls OFF after one second, and Fig. 3a has nearly all gaps below.
    pub on_gap_max_s: f64,
    /// Which packets reach the server. Default: requests, which need no model of responses.
    pub packets: PacketModel,
    /// Bytes of a segment's content, for `packets`. 1,460: Ethernet without options.
    pub segment_bytes: u32,
    /// What a client takes in, bytes a second, for `packets`: spaces its acknowledgements.
    /// 125,000 (1 Mbit/s).
    pub client_bytes_per_s: f64,
    /// Time from a SYN to the request after it, for `packets`, microseconds. 100,000: a wide-area
    /// path.
    pub round_trip_us: u64,
    /// Maximum acknowledgements per response, for `packets`. 1,024, about 3 MB: otherwise a few
    /// large downloads would dominate; the number of truncated responses is reported.
    pub acks_max: u32,
    /// How many sessions are open at once, in steady state. None: the log's own pace.
    #[serde(deserialize_with = "crate::count::deserialize_open")]
    pub concurrent_sessions: Option<f64>,
    /// With `concurrent_sessions`: duration of the steady state before counting, seconds. `None`:
    /// the longest possible silence of a session, so that every session open at the start of
    /// counting has been seen, and no older one returns ([`Expansion::warm_up`]).
    pub warm_up_s: Option<f64>,
    /// With `concurrent_sessions`: how many times over the accesses of the log are measured.
    /// 1: each access of the log once.
    pub periods: u32,
    /// The most accesses, warm-up included. 2²⁸, which take 3.5 GiB.
    #[serde(deserialize_with = "crate::count::deserialize")]
    pub rows_max: u64,
}

impl Default for Expansion {
    fn default() -> Self {
        Self {
            session_timeout_s: 1_800.0,
            ports: PortModel::SEQUENTIAL,
            sub_second: SubSecond::Auto,
            on_gap_max_s: 1.0,
            packets: PacketModel::Request,
            segment_bytes: 1_460,
            client_bytes_per_s: 125_000.0,
            round_trip_us: 100_000,
            acks_max: 1_024,
            concurrent_sessions: None,
            warm_up_s: None,
            periods: 1,
            rows_max: 1 << 28,
        }
    }
}

/// By how much drawing instants within seconds can lengthen a silence, seconds.
const DRAWN_S: f64 = 1.0;

impl Expansion {
    /// Duration of the steady state before counting, seconds: as given, or the longest possible
    /// silence of a session.
    pub fn warm_up(&self) -> f64 {
        self.warm_up_s.unwrap_or_else(|| self.silence_max_s())
    }

    /// No session is silent for longer in its accesses, seconds.
    pub fn silence_max_s(&self) -> f64 {
        self.session_timeout_s + DRAWN_S
    }

    /// The given warm-up, if it is shorter than the longest silence: some sessions open at the
    /// start of counting then look new.
    pub fn short_warm_up(&self) -> Option<f64> {
        let given = self
            .warm_up_s
            .filter(|_| self.concurrent_sessions.is_some());
        given.filter(|given| *given < self.session_timeout_s)
    }

    /// Without ineffective parameters: expansions with the same effect are equal.
    #[must_use]
    pub fn used(&self) -> Self {
        let usual = Self::default();
        let mut used = self.clone();
        if self.concurrent_sessions.is_none() {
            used.warm_up_s = usual.warm_up_s;
            used.periods = usual.periods;
        }
        if self.packets == PacketModel::Request {
            used.segment_bytes = usual.segment_bytes;
            used.client_bytes_per_s = usual.client_bytes_per_s;
            used.round_trip_us = usual.round_trip_us;
            used.acks_max = usual.acks_max;
        }
        used
    }

    /// What keeps these parameters from being used: the name of one, and what to write.
    pub fn complaint(&self) -> Option<String> {
        let positive = |value: f64| value > 0.0 && value.is_finite();
        let not_negative = |value: f64| value >= 0.0 && value.is_finite();
        if !positive(self.session_timeout_s) {
            return Some("session_timeout_s must be above 0".to_owned());
        }
        if !positive(self.on_gap_max_s) {
            return Some("on_gap_max_s must be above 0".to_owned());
        }
        if self.segment_bytes == 0 {
            return Some("segment_bytes must be 1 or more".to_owned());
        }
        if !positive(self.client_bytes_per_s) {
            return Some("client_bytes_per_s must be above 0".to_owned());
        }
        if self
            .concurrent_sessions
            .is_some_and(|sessions| !positive(sessions))
        {
            return Some("concurrent_sessions must be above 0".to_owned());
        }
        if !self.warm_up_s.is_none_or(not_negative) {
            return Some("warm_up_s must be 0 or more".to_owned());
        }
        if self.periods == 0 {
            return Some("periods must be 1 or more".to_owned());
        }
        self.ports.complaint()
    }
}
