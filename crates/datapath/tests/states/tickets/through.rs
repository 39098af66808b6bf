//! Many at once: tickets that go fast, a table that fills up, another fast path, and ten thousand
//! connections in any order.

use core::time::Duration;
use std::collections::BTreeSet;

use fairlead_base::Rng;
use fairlead_datapath::State;
use fairlead_tcp::Line;
use fairlead_tcp::ticket::PAYLOAD_BYTES_MAX;
use fairlead_wire::TcpFlags;

use super::outside::{Outside, Taken};
use super::{
    BUSY, WANTED, assert_over, begin, busy, busy_with, come, look, roomy, sweep, under, unreachable,
};
use crate::rig::{Opened, REQUEST, Rig, Sent, http_config, linux, payload, refusal, syn_ack};

/// A client asks, and its connection stays.
fn ask(rig: &mut Rig) -> (Opened, Sent) {
    rig.client.port += 1;
    let (opened, mut sent) = rig.request(1_000, REQUEST);
    assert_eq!(sent[0].header.flags, TcpFlags::SYN, "{sent:?}");
    (opened, sent.remove(0))
}

#[test]
fn tickets_give_way_to_newcomers_in_a_full_table() {
    let mut config = roomy(http_config());
    config.limits.connections = 100;
    let (mut rig, outside) = under(Rig::probed(config, &linux(1)));
    come(&mut rig, BUSY, REQUEST);
    sweep(&mut rig);
    assert_eq!(outside.out(0), WANTED);
    let asked: Vec<_> = (0..100).map(|_| ask(&mut rig)).collect();
    assert_eq!(outside.out(0), 0);
    assert_eq!(rig.datapath.snapshot().records, 100);
    assert_eq!(rig.datapath.live_connections(), 100);
    sweep(&mut rig);
    assert_eq!(outside.told(|told| told.issued), 16, "none in a full table");
    // In one that is nearly full, no more than leave four times as many lines free.
    for (gone, out) in [(0..60, 12), (60..70, 14), (70..100, WANTED)] {
        for (opened, _) in &asked[gone] {
            let end = REQUEST.len() as u32;
            rig.put_one(&opened.at(end).flags(TcpFlags::RST));
        }
        come(&mut rig, BUSY, REQUEST);
        sweep(&mut rig);
        assert_eq!(outside.out(0), out);
    }
}

#[test]
fn tickets_give_way_to_newcomers_where_set_ups_or_bytes_run_out() {
    let payload_bytes = PAYLOAD_BYTES_MAX as u64;
    for (setups, buffered_bytes) in [(12, 1 << 20), (1_000, 12 * payload_bytes)] {
        let mut config = roomy(http_config());
        (config.limits.setups, config.limits.buffered_bytes) = (setups, buffered_bytes);
        let (mut rig, outside) = under(Rig::probed(config, &linux(1)));
        come(&mut rig, BUSY, REQUEST);
        sweep(&mut rig);
        assert_eq!(outside.out(0), 12);
        let mut half = b"GET / HTTP/1.1\r\nHost: example.com\r\nX-Long: ".to_vec();
        half.resize(PAYLOAD_BYTES_MAX, b'x');
        for _ in 0..12 {
            rig.client.port += 1;
            let opened = rig.open(1_000, &linux(5_000));
            rig.put(&opened.data(0, &half));
            let now = rig.datapath.snapshot();
            let out = outside.out(0) as u64;
            assert!(now.setups + out <= u64::from(setups), "{out}");
            let bytes = now.buffered_bytes + out * payload_bytes;
            assert!(bytes <= buffered_bytes, "{bytes} with {out}");
        }
        assert!(rig.datapath.snapshot().setups >= 12, "none was turned away");
    }
}

#[test]
fn who_takes_tickets_fast_is_looked_after_between_sweeps() {
    let (mut rig, outside) = under(Rig::probed(roomy(http_config()), &linux(1)));
    come(&mut rig, 100, REQUEST);
    sweep(&mut rig);
    assert_eq!(outside.out(0), 128);
    // A hundred a sweep: a quarter of 128 is gone after a third of the time.
    let due = rig.datapath.poll_timeout().expect("a look");
    assert_eq!(due, rig.now + Duration::from_millis(50) / 3);
    for _ in 0..33 {
        begin(&mut rig, &outside);
    }
    assert_eq!(outside.out(0), 95);
    rig.now = due;
    rig.datapath.handle_timeout(rig.now);
    assert_eq!(outside.out(0), 128);
    assert_eq!(rig.datapath.live_connections(), 33);
    // Nobody comes any more: sweeps will do.
    for _ in 0..3 {
        sweep(&mut rig);
    }
    assert_eq!(outside.out(0), 0);
    let due = rig.datapath.poll_timeout().expect("a sweep");
    assert_eq!(due, rig.now + Duration::from_millis(50));
}

#[test]
fn there_are_no_more_tickets_than_bytes_that_they_may_hold() {
    let mut config = roomy(http_config());
    config.limits.buffered_bytes = 10 * PAYLOAD_BYTES_MAX as u64;
    let (mut rig, outside) = under(Rig::probed(config, &linux(1)));
    come(&mut rig, BUSY, REQUEST);
    sweep(&mut rig);
    assert_eq!(outside.out(0), 10);
    // What one holds that was taken is no other's.
    begin(&mut rig, &outside);
    look(&mut rig);
    let held = rig.datapath.snapshot().buffered_bytes;
    assert!(held > 0 && held < PAYLOAD_BYTES_MAX as u64, "{held}");
    assert_eq!(outside.out(0), 9);
}

#[test]
fn there_are_no_more_tickets_than_set_ups() {
    let mut config = roomy(http_config());
    config.limits.setups = 12;
    let (mut rig, outside) = under(Rig::probed(config, &linux(1)));
    ask(&mut rig);
    ask(&mut rig);
    come(&mut rig, BUSY, REQUEST);
    sweep(&mut rig);
    assert_eq!(outside.out(0), 10);
    for _ in 0..10 {
        begin(&mut rig, &outside);
    }
    look(&mut rig);
    assert_eq!(rig.datapath.snapshot().setups, 12);
    assert_eq!(outside.out(0), 0);
}

#[test]
fn a_fast_path_that_another_follows_keeps_neither_tickets_nor_places() {
    let (mut rig, before) = busy();
    let (armed, syn) = ask(&mut rig);
    let (known, other) = begin(&mut rig, &before);
    look(&mut rig);
    let (unknown, third) = begin(&mut rig, &before);
    let (_, joined) = begin(&mut rig, &before);
    before.join(joined.line, 70_000);
    let after = Outside::default();
    let fast_path = after.fast_path();
    rig.datapath.set_fast_path(rig.now, fast_path);
    assert_eq!(before.out(0), 0);
    before.told(|told| assert!(told.places.is_empty(), "{:?}", told.places));
    assert_eq!(rig.datapath.snapshot().records, 4);
    assert_eq!(rig.datapath.live_connections(), 4);
    for (opened, syn) in [(armed, syn), (known, other.syn), (unknown, third.syn)] {
        let sent = rig.put(&syn_ack(&syn, 70_000, &linux(900_000)));
        assert_eq!(payload(&sent), REQUEST);
        let acked = rig.put(&opened.data(REQUEST.len() as u32, b"more"));
        assert_eq!(payload(&acked), b"more");
    }
    assert_eq!(rig.datapath.snapshot().live, 4);
    // The double asserts that no place is given twice.
    for _ in 0..5 {
        come(&mut rig, BUSY, REQUEST);
        sweep(&mut rig);
        begin(&mut rig, &after);
    }
    assert_eq!(after.out(0), WANTED - 1);
    rig.datapath.abort_all(rig.now);
    assert_over(&mut rig, &after);
}

/// A connection that was begun, and what its ends may do next.
struct One {
    opened: Opened,
    taken: Taken,
    joined: bool,
}

/// Many connections under way.
struct Crowd {
    rig: Rig,
    outside: Outside,
    rng: Rng,
    under_way: Vec<One>,
    begun: u32,
    ends: [u32; 13],
}

impl Crowd {
    fn new(seed: u64) -> Self {
        let mut config = roomy(http_config());
        config.services[0].timeouts.time_wait = core::time::Duration::from_millis(200);
        config.limits.connections = 4_096;
        let (rig, outside) = busy_with(config);
        Self {
            rig,
            outside,
            rng: Rng::new(seed),
            under_way: Vec::new(),
            begun: 0,
            ends: [0; 13],
        }
    }

    fn begin(&mut self) {
        self.rig.client.port = 1_024 + self.begun as u16;
        self.begun += 1;
        let opened = self.rig.open(self.begun, &linux(5_000));
        let kind = self.rng.below(24);
        if kind < 3 {
            self.ends[10] += 1;
            self.outside.spoil(0);
            return;
        }
        if kind < 6 {
            self.ends[11] += 1;
            self.collide(&opened);
            return;
        }
        let odd = kind < 9;
        let bytes = if odd { b"GET / HTTP/1.1\r\n" } else { REQUEST };
        let taken = self.outside.begin(0, &opened, bytes).expect("a ticket");
        if odd {
            self.ends[12] += 1;
            return; // the engine ends it when it looks
        }
        let joined = self.rng.below(2) == 0;
        if joined {
            self.outside.join(taken.line, self.begun);
        }
        self.under_way.push(One {
            opened,
            taken,
            joined,
        });
    }

    /// The engine looks, and sends what it has to say.
    fn look(&mut self) {
        look(&mut self.rig);
        self.rig.fetch(&mut Vec::new());
    }

    /// The engine admits the same client: a moment before, or the very moment.
    fn collide(&mut self, opened: &Opened) {
        let joined = self.rng.below(2) == 0;
        if self.rng.below(2) == 0 {
            self.outside.begin_by_copy(opened, REQUEST, joined);
            let sent = self.rig.put(&opened.data(0, REQUEST));
            assert_eq!(sent.len(), usize::from(joined), "{sent:?}");
        } else {
            let sent = self.rig.put(&opened.data(0, REQUEST));
            assert_eq!(sent.len(), 1, "{sent:?}");
            self.outside.begin(0, opened, REQUEST).expect("a ticket");
        }
        self.reset(opened);
    }

    fn reset(&mut self, opened: &Opened) {
        let end = REQUEST.len() as u32;
        self.rig.put(&opened.at(end).flags(TcpFlags::RST));
    }

    fn end_outside(&mut self, line: Line, state: State) {
        let now_ms = self.rig.now.as_millis() as u32;
        self.outside.follow(line, state, now_ms);
    }

    /// Something happens to one of those under way, by which it is over, sooner or later.
    fn end_one(&mut self) {
        let at = self.rng.below(self.under_way.len() as u32) as usize;
        let One {
            opened,
            taken,
            joined,
        } = self.under_way.swap_remove(at);
        let what = self.rng.below(5) as usize + if joined { 5 } else { 0 };
        self.ends[what] += 1;
        let answer = syn_ack(&taken.syn, self.begun, &linux(900_000));
        match what {
            0 => self.reset(&opened),
            1 => {
                self.rig.put(&opened.data(0, REQUEST));
                assert_eq!(payload(&self.rig.put(&answer)), REQUEST);
                self.reset_by_server(&taken);
            }
            2 => {
                self.rig.put(&refusal(&taken.syn));
                self.reset(&opened);
            }
            3 => {
                self.rig.put_packet(unreachable(&taken.syn));
                self.reset(&opened);
            }
            4 => {
                look(&mut self.rig);
                if self.outside.is_armed(taken.line) {
                    self.outside.join(taken.line, self.begun);
                    self.end_outside(taken.line, State::TimeWait);
                } else {
                    // Its SYN was sent again since.
                    assert_eq!(payload(&self.rig.put(&answer)), REQUEST);
                    self.reset_by_server(&taken);
                }
            }
            5 | 6 => self.end_outside(taken.line, State::TimeWait),
            7 => self.end_outside(taken.line, State::Reset),
            8 => {
                let end = REQUEST.len() as u32;
                let sent = self.rig.put(&opened.data(end, b"more"));
                assert_eq!(payload(&sent), b"more");
                self.end_outside(taken.line, State::TimeWait);
            }
            _ => {
                self.reset(&opened);
            }
        }
    }

    fn reset_by_server(&mut self, taken: &Taken) {
        let key = taken.syn.header.key;
        let seq = self.begun.wrapping_add(1);
        let reset = fairlead_testkit::segment(key.dst, key.src).seq(seq);
        self.rig.put(&reset.flags(TcpFlags::RST));
    }

    /// Nothing is out that the double does not know, and nothing is there twice.
    fn check(&mut self) {
        self.look();
        let out = self.outside.out(0);
        let now = self.rig.datapath.snapshot();
        let resting = now.time_wait + out as u64;
        assert_eq!(self.rig.datapath.live_connections(), now.records - resting);
        self.outside.told(|told| {
            let lines: BTreeSet<Line> = told.places.values().copied().collect();
            assert_eq!(lines.len(), told.places.len());
            let armed = told.places.len() - out;
            assert!(armed as u64 <= now.setups, "{armed} of {}", now.setups);
        });
    }

    /// The time for the next sweep comes, and perhaps for a probe, which is answered.
    fn sweep(&mut self) {
        for sent in sweep(&mut self.rig) {
            if sent.header.flags == TcpFlags::SYN && sent.whose.is_none() {
                self.rig.put(&syn_ack(&sent, 77_000, &linux(1)));
            }
        }
    }

    /// The lane has tickets again, after it was quiet.
    fn rouse(&mut self) {
        self.sweep();
        self.sweep();
        assert_eq!(self.outside.out(0), 0);
        for _ in 0..BUSY {
            self.rig.client.port = 1_024 + self.begun as u16;
            self.begun += 1;
            let opened = self.rig.open(self.begun, &linux(5_000));
            self.rig.put(&opened.data(0, REQUEST));
            self.reset(&opened);
        }
        self.sweep();
        assert_eq!(self.outside.out(0), WANTED);
    }
}

#[test]
fn ten_thousand_connections_in_any_order_leave_nothing() {
    let mut crowd = Crowd::new(7);
    while crowd.begun < 10_000 {
        for _ in 0..12 {
            crowd.begin();
            while crowd.under_way.len() > 15 || crowd.under_way.len() > 5 && crowd.rng.below(2) == 0
            {
                crowd.end_one();
            }
            crowd.look();
        }
        crowd.check();
        crowd.sweep();
        if crowd.rng.below(8) == 0 {
            crowd.rouse();
        }
    }
    while !crowd.under_way.is_empty() {
        crowd.end_one();
    }
    let (ends, of_tickets) = crowd.ends.split_at(10);
    assert!(ends.iter().all(|count| *count > 200), "{ends:?}");
    let revoked = crowd.outside.told(|told| told.revoked);
    let more = |count: &u32| *count > fairlead_tcp::ticket::TICKETS_MAX;
    let all = more(&revoked) && of_tickets.iter().all(more);
    assert!(all, "more than there are places: {revoked}, {of_tickets:?}");
    let Crowd {
        mut rig, outside, ..
    } = crowd;
    rig.wait_ms(10_000);
    outside.told(|told| assert!(told.places.is_empty(), "{:?}", told.places));
    let now = rig.datapath.snapshot();
    assert_eq!((now.records, now.setups), (0, 0));
    assert_over(&mut rig, &outside);
}
