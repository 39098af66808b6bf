//! The end of a connection: once no more packets are expected, it is reported and removed.

use core::time::Duration;
use std::collections::HashMap;

use fairlead_base::FlowKey;
use fairlead_datapath::End;

use super::connection::Connection;
use super::player::Player;
use super::report::ConnectionReport;
use super::tally::Unplayed;

/// Delay before an ended connection is reported, in the capture's time, because its last packets
/// may still follow.
const LINGER: Duration = Duration::from_secs(120);

/// When [`CONNECTIONS_MAX`] is reached, connections silent for this long count as ended.
const SILENCE: Duration = Duration::from_secs(3_600);

impl Player {
    /// Schedules a connection for reporting.
    pub(super) fn leave(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id)
            && !std::mem::replace(&mut connection.leaving, true)
        {
            self.leaving.push_back((self.now + LINGER, id));
        }
    }

    /// For an orderly close, the switch's byte counts must equal the capture's.
    fn compare_streams(&mut self, connection: &Connection) {
        let Some(ended) = connection.ended.filter(|ended| ended.end == End::Finished) else {
            return;
        };
        let seen = connection.seen_out.map_or(0, |seen| seen.bytes);
        let counted = (ended.bytes_in, ended.bytes_out);
        let captured = (connection.seen_in.bytes, seen);
        // The switch forwards only the one request of a one-shot connection, and lets a client go
        // that asks again.
        let is_part = counted.0 <= captured.0 && counted.1 <= captured.1;
        if counted != captured && !(connection.behind_request && is_part) {
            let what = format!("{counted:?} stream bytes in and out counted, not {captured:?}");
            let (number, client) = (connection.first_packet, connection.captured.src);
            self.comparison.report(number, client, what);
        }
    }

    /// Reports the connections that are due, except those with packets since.
    pub(super) fn retire_quiet(&mut self) {
        let now = self.now;
        while let Some(&(at, id)) = self.leaving.front().filter(|(at, _)| *at <= now) {
            self.leaving.pop_front();
            let connection = self.connections.get(&id);
            match connection.map(|connection| connection.last_seen + LINGER) {
                Some(later) if later > at && later > now => self.leaving.push_back((later, id)),
                Some(_) => self.retire(id),
                None => {}
            }
        }
    }

    /// Reports connections that have been silent for long.
    pub(super) fn retire_silent(&mut self) {
        let now = self.now;
        let mut silent: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| now.since(connection.last_seen) >= SILENCE)
            .map(|(id, _)| *id)
            .collect();
        silent.sort_unstable();
        for id in silent {
            self.retire(id);
        }
    }

    /// Reports a connection and removes it.
    pub(super) fn retire(&mut self, id: u64) {
        let Some(mut connection) = self.connections.remove(&id) else {
            return;
        };
        let forget = |map: &mut HashMap<FlowKey, u64>, key: &FlowKey| {
            if map.get(key) == Some(&id) {
                map.remove(key);
            }
        };
        forget(&mut self.by_captured, &connection.captured);
        forget(&mut self.by_client, &connection.played);
        for leg in connection.past_legs.iter().chain(&connection.leg) {
            forget(&mut self.by_server, &leg.key);
        }
        let waited = connection.take_waiting().len() as u64;
        self.tally.skip_many(Unplayed::NotConnected, waited);
        self.tally
            .skip_many(Unplayed::SpareSynAck, connection.spare_answers());
        self.compare_streams(&connection);
        let report = ConnectionReport::of(&connection, self.datapath.config());
        self.finished.push(report);
    }
}
