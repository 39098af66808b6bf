//! The switch's own numbers, held against each other.

use fairlead_datapath::{End, Snapshot};
use fairlead_splice::config::Limits;

/// Checks snapshots against limits and against the ones before.
#[derive(Debug)]
pub(crate) struct Gauges {
    limits: Limits,
    last: Snapshot,
}

impl Gauges {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            last: Snapshot::default(),
        }
    }

    /// Looks at the numbers of this moment.
    pub(crate) fn check(&mut self, now: Snapshot) -> Result<(), String> {
        let limits = &self.limits;
        let last = &self.last;
        let promises = [
            (
                now.live <= now.records,
                "more live connections than records",
            ),
            (
                now.live + now.time_wait <= now.records,
                "live and resting exceed the records",
            ),
            (now.records <= now.records_max, "more records than fit"),
            (
                now.records <= u64::from(limits.connections),
                "more records than allowed",
            ),
            (
                now.setups <= u64::from(limits.setups),
                "more set-ups than allowed",
            ),
            (
                now.half_read <= u64::from(limits.half_read),
                "more half-read heads than allowed",
            ),
            (
                now.half_read <= now.setups,
                "half-read heads without set-ups",
            ),
            (
                now.buffered_bytes <= limits.buffered_bytes,
                "more bytes buffered than allowed",
            ),
            (
                now.setups > 0 || now.buffered_bytes == 0,
                "bytes buffered for nobody",
            ),
            (
                now.fast_packets <= now.rx_packets,
                "more fast packets than packets",
            ),
            (now.spliced <= now.accepted, "more spliced than accepted"),
            (now.live <= now.spliced, "more live than ever spliced"),
            (
                now.rx_packets >= last.rx_packets,
                "the packet counter went back",
            ),
            (
                now.tx_packets >= last.tx_packets,
                "the sent counter went back",
            ),
            (now.spliced >= last.spliced, "the splice counter went back"),
            (
                now.drops.total() >= last.drops.total(),
                "the drop counter went back",
            ),
        ];
        for (kept, what) in promises {
            if !kept {
                return Err(format!("gauges: {what}: {}", summary(&now)));
            }
        }
        self.last = now;
        Ok(())
    }

    /// Everything is closed and has rested: nothing may be left.
    pub(crate) fn check_empty(&self, now: &Snapshot) -> Result<(), String> {
        let ended: u64 = now.ended.iter().map(|(_, count)| count).sum();
        let active: u32 = now
            .pools
            .iter()
            .flat_map(|pool| &pool.servers)
            .map(|server| server.active)
            .sum();
        let left = [
            now.records,
            now.setups,
            now.half_read,
            now.buffered_bytes,
            now.time_wait,
        ];
        if left.iter().any(|&count| count > 0) || active > 0 {
            return Err(format!("a leak: {}, active {active}", summary(now)));
        }
        if ended != now.spliced {
            return Err(format!(
                "{} spliced, {ended} ended: {}",
                now.spliced,
                summary(now)
            ));
        }
        Ok(())
    }
}

/// The numbers that matter, in one line.
pub(crate) fn summary(now: &Snapshot) -> String {
    let mut line = format!(
        "records {}/{} live {} time_wait {} setups {} half_read {} buffered {} accepted {} spliced \
         {} rx {} tx {} fast {}",
        now.records,
        now.records_max,
        now.live,
        now.time_wait,
        now.setups,
        now.half_read,
        now.buffered_bytes,
        now.accepted,
        now.spliced,
        now.rx_packets,
        now.tx_packets,
        now.fast_packets
    );
    for (end, count) in now.ended.iter().filter(|(_, count)| *count > 0) {
        line += &format!(" {}={count}", End::name(*end));
    }
    for (reason, count) in now.drops.iter().filter(|(_, count)| *count > 0) {
        line += &format!(" drop.{reason}={count}");
    }
    line
}
