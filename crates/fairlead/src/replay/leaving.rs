//! The end of a connection: when nothing more is expected of it, it is reported and forgotten.

use core::time::Duration;
use std::collections::HashMap;

use fairlead_base::FlowKey;
use fairlead_datapath::End;

use super::connection::Connection;
use super::player::Player;
use super::report::ConnectionReport;
use super::tally::Unplayed;

/// A connection that is over is reported this long after, in the capture's time: until then its
/// last packets may come.
const LINGER: Duration = Duration::from_secs(120);

/// When [`CONNECTIONS_MAX`] is reached, connections silent for this long are taken to be over.
const SILENCE: Duration = Duration::from_secs(3_600);

impl Player {
    /// Reports a connection after a while.
    pub(super) fn leave(&mut self, id: u64) {
        if let Some(connection) = self.connections.get_mut(&id)
            && !std::mem::replace(&mut connection.leaving, true)
        {
            self.leaving.push_back((self.now + LINGER, id));
        }
    }

    /// Of a connection that closed in order the switch must have counted what the capture has.
    fn compare_streams(&mut self, connection: &Connection) {
        let Some(ended) = connection.ended.filter(|ended| ended.end == End::Finished) else {
            return;
        };
        let seen = connection.seen_out.map_or(0, |seen| seen.bytes);
        let counted = (ended.bytes_in, ended.bytes_out);
        let captured = (connection.seen_in.bytes, seen);
        if counted != captured {
            let what = format!("{counted:?} stream bytes in and out counted, not {captured:?}");
            let (number, client) = (connection.first_packet, connection.captured.src);
            self.comparison.report(number, client, what);
        }
    }

    /// Reports the connections that were to be reported by now, but for those of which something
    /// came since.
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

    /// Reports the connections of which nothing was seen for long.
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

    /// Reports a connection and forgets it.
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
