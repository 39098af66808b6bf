//! Tickets that are issued and taken back on one processor while clients take them on two: each is
//! somebody's or nobody's, once, and its keys lead where they should.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fairlead_tcp::{Begun, Preconnect};
use fairlead_wire::http::plain_hash;

use super::processors::stay_on;
use super::unbegun::{PROMISE, Stage, behind, ticket_of};
use super::*;

const LINES: u32 = 64;
const LANES: u16 = 2;
/// Clients, of which each processor has one half.
const CLIENTS: u16 = 512;
const TURNS: u32 = 4_000;

/// A client's first segment. What is behind the host tells clients apart, and is not hashed.
fn first_segment(client: u16) -> Packet {
    let from = endpoint(&format!("10.1.0.9:{}", 20_000 + client));
    behind(from, isn_of(client), PROMISE)
        .payload(payload_of(client))
        .packet()
}

fn payload_of(client: u16) -> Vec<u8> {
    let (lane, pad) = (client % LANES, "x".repeat(usize::from(client) * 2));
    format!("GET /{lane} HTTP/1.1\r\nHost: a.example\r\nX: {client}{pad}\r\n\r\n").into_bytes()
}

fn isn_of(client: u16) -> u32 {
    u32::from(client).wrapping_mul(0x0123_4567)
}

/// What became of the segments of one processor.
#[derive(Debug, Default)]
struct Sent {
    begun: AtomicU64,
    dropped: AtomicU64,
}

/// Sends the segments of one half of the clients again and again, on a processor of its own.
fn send(kernel: &Kernel, interface: u32, which: usize, over: &AtomicBool, sent: &Sent) {
    stay_on(which);
    let clients = (0..CLIENTS).filter(|client| usize::from(client / LANES) % 2 == which);
    let frames = Vec::from_iter(clients.map(|client| frame_of(&first_segment(client))));
    while !over.load(Ordering::Acquire) {
        for frame in &frames {
            let trial = kernel.try_frame(frame, interface, 1).unwrap();
            match trial.fate {
                // A copy of what was joined a moment ago is no SYN.
                Fate::Redirect => match is_syn(&trial.frame) {
                    true => sent.begun.fetch_add(1, Ordering::Relaxed),
                    false => continue,
                },
                Fate::Drop => sent.dropped.fetch_add(1, Ordering::Relaxed),
                fate => {
                    assert_eq!((fate, &trial.frame), (Fate::Pass, frame), "left as it was");
                    continue;
                }
            };
        }
    }
}

fn is_syn(frame: &[u8]) -> bool {
    tcp(&Packet::from_bytes(&frame[14..])).flags == TcpFlags::SYN
}

/// Ends the sending, when a test fails too.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Whose the tickets are, as the engine sees it.
struct Owner {
    stage: Stage,
    /// The lane of each line's ticket while it is out.
    out: [Option<u16>; LINES as usize],
    taken: u64,
    spoilt: u64,
    gone: u64,
}

impl Owner {
    fn issue(&mut self, lane: u16, count: usize) {
        let free = (0..LINES).filter(|line| self.out[*line as usize].is_none());
        for line in Vec::from_iter(free.take(count)) {
            self.stage.issue(lane, line);
            self.out[line as usize] = Some(lane);
        }
    }

    fn comes_back(&mut self, lane: u16, line: Line, place: u32) {
        assert_eq!(place, line.0);
        let was = self.out[line.0 as usize].take();
        assert_eq!(was, Some(lane), "out, in this lane, and once");
    }

    fn revoke(&mut self, lane: u16) {
        let mut gone = Vec::new();
        self.stage.table.revoke(lane, &mut gone);
        for (line, place) in gone {
            self.comes_back(lane, line, place);
            self.forget(line, None);
            self.gone += 1;
        }
        // What is not gone has been taken.
        self.learn(lane);
        assert!(!self.out.contains(&Some(lane)), "all have come back");
    }

    fn learn(&mut self, lane: u16) {
        while let Some(begun) = self.stage.table.next_taken(lane) {
            self.comes_back(lane, begun.line, begun.place);
            self.check(lane, begun);
        }
    }

    /// The connection is one of a client whose head leads to this lane; both keys lead to it.
    fn check(&mut self, lane: u16, Begun { line, taker, .. }: Begun) {
        let Some(taker) = taker else {
            self.spoilt += 1;
            return self.forget(line, None);
        };
        self.taken += 1;
        let client = taker.client.port - 20_000;
        let request = first_segment(client);
        let header = tcp(&request);
        assert_eq!(client % LANES, lane);
        assert_eq!(taker.client, header.key.src);
        assert_eq!(taker.client_isn.0, isn_of(client));
        assert_eq!((taker.dseq, taker.stamps), (header.ack - 1, None));
        assert_eq!(taker.window, header.window);
        assert_eq!(taker.payload, payload_of(client));
        self.stage.joins(line.0, &request);
        self.forget(line, Some(taker.client));
        assert!(!self.stage.forwards(&request), "forgotten");
    }

    fn forget(&mut self, line: Line, client: Option<Endpoint>) {
        let mut record = ticket_of(line.0);
        if let Some(client) = client {
            (record.client_addr, record.client_port) = (client.addr, client.port);
        }
        let (client, server) = (
            record.client_key(&endpoints()),
            record.server_key(&endpoints()),
        );
        self.stage.table.remove(line, &client, &server);
    }

    /// Issues, learns and takes back, each now and then.
    fn keep(&mut self, rng: &mut Rng) {
        for turn in 0..50 * TURNS {
            // A machine that is busy otherwise takes its time.
            if turn >= TURNS && self.taken > 1_000 && self.gone > 500 {
                return;
            }
            let lane = rng.below(u32::from(LANES)) as u16;
            match rng.below(8) {
                0 => self.revoke(lane),
                1..4 => self.learn(lane),
                _ => self.issue(lane, rng.below(12) as usize),
            }
            for _ in 0..rng.below(2_000) {
                std::hint::spin_loop();
            }
        }
    }
}

fn tickets_come_back_once(mode: Mode) {
    on_a_switch(|_, interface| {
        let mut stage = Stage::new(mode, LINES, interface);
        for client in 0..LANES {
            let head = plain_hash(&payload_of(client), 0, COOKIE).unwrap();
            stage.table.learn_head(head, client % LANES);
        }
        let mut owner = Owner {
            stage,
            out: [None; LINES as usize],
            taken: 0,
            spoilt: 0,
            gone: 0,
        };
        let (over, sent) = (AtomicBool::new(false), [Sent::default(), Sent::default()]);
        std::thread::scope(|scope| {
            let (over, sent) = (&over, &sent);
            let kernel = Arc::clone(&owner.stage.kernel);
            for (which, sent) in sent.iter().enumerate() {
                let kernel = Arc::clone(&kernel);
                scope.spawn(move || send(&kernel, interface, which, over, sent));
            }
            let _at_end = AtEnd(over);
            owner.keep(&mut Rng::new(61));
        });
        for lane in 0..LANES {
            owner.revoke(lane);
        }
        let sum = |of: fn(&Sent) -> &AtomicU64| -> u64 {
            sent.iter()
                .map(|sent| of(sent).load(Ordering::Relaxed))
                .sum()
        };
        assert_eq!(sum(|sent| &sent.begun), owner.taken);
        let counted = owner.stage.kernel.counters().unwrap();
        assert_eq!((counted.begun, counted.joins), (owner.taken, owner.taken));
        let dropped = counted.drops.of(DropReason::NoConnection);
        assert_eq!(
            sum(|sent| &sent.dropped),
            dropped,
            "given up while they were filled in"
        );
        assert!(dropped <= owner.spoilt);
        let ends = (owner.taken, owner.gone);
        assert!(ends.0 > 1_000 && ends.1 > 500, "both happen: {ends:?}");
    });
}

#[test]
fn tc_tickets_come_back_once() {
    run(|| tickets_come_back_once(Mode::Tc));
}

#[test]
fn xdp_tickets_come_back_once() {
    run(|| tickets_come_back_once(Mode::XdpNative));
}
