//! `announce`: frames of strangers on the link, and time, for a machine with two addresses.

use core::time::Duration;
use std::collections::BTreeMap;

use fairlead_announce::{Announcer, Hardware, Place, State, frame};
use fairlead_base::{Address, Instant, Seed};

use super::Target;
use crate::novelty::note;

pub(super) const TARGET: Target = Target {
    name: "announce",
    about: "frames and time: bounded answers, own hardware in them, no answer before the probes",
    run,
    bytes_max: 1_024,
    tokens: &[
        &[0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1],
        &[0, 2],
        &[10, 1, 0, 3],
        &[0x86, 0xdd, 0x60],
        &[58, 255],
        &[135, 0],
        &[136, 0],
        &[1, 1],
    ],
};

const OWN: Hardware = [2, 0, 0, 0, 0, 1];

/// Answers at once and frames between two looks at the clock, at most.
const FRAMES_MAX: usize = 256;

fn place(number: u8) -> Place {
    let address = match number {
        0 => Address::v4([10, 1, 0, 3]),
        _ => Address::v6([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]),
    };
    Place {
        address,
        interface: 2,
    }
}

/// A script: a length and that many bytes of a frame, or, with length 0, a byte of time or order.
fn run(bytes: &[u8]) {
    let wanted: BTreeMap<_, _> = [0, 1].map(|number| (place(number), OWN)).into();
    let mut announcer = Announcer::new(3, Seed::new([1, 2]));
    let mut now = Instant::from_millis(1_000);
    announcer.set_wanted(now, &wanted);
    let mut rest = bytes;
    while let Some((&length, tail)) = rest.split_first() {
        let wants = usize::from(length).max(1).min(tail.len());
        let (word, tail) = tail.split_at(wants);
        rest = tail;
        match (length, word.first()) {
            (0, Some(255)) => announcer.set_wanted(now, &BTreeMap::new()),
            (0, Some(254)) => announcer.set_wanted(now, &wanted),
            (0, Some(&steps)) => {
                now = now + Duration::from_millis(u64::from(steps) * 50);
                announcer.handle_timeout(now);
            }
            _ => announcer.handle_frame(now, 2, word),
        }
        check(&mut announcer, now);
    }
}

fn check(announcer: &mut Announcer, now: Instant) {
    let states: BTreeMap<Place, State> = announcer.states().collect();
    assert!(states.len() <= 2, "addresses that nobody wanted");
    let mut frames = 0;
    while let Some((interface, frame)) = announcer.poll_transmit() {
        frames += 1;
        assert_eq!(interface, 2);
        assert_eq!(frame[6..12], OWN, "another's hardware");
        match frame::read(&frame) {
            Some(frame::Heard::Question { sender, from, .. }) => {
                assert_eq!((sender, from), (None, OWN), "only probes ask");
            }
            Some(frame::Heard::Claim { address, from }) => {
                assert_eq!(from, OWN);
                let known = states.keys().any(|place| place.address == address);
                assert!(known, "a claim to an address that nobody wanted");
                let conflict = states
                    .iter()
                    .any(|(place, state)| place.address == address && *state == State::Conflict);
                assert!(!conflict, "a claim to an address that another machine has");
            }
            None => panic!("a frame that we could not read ourselves"),
        }
    }
    assert!(frames <= FRAMES_MAX, "{frames} frames");
    while let Some(event) = announcer.poll_event() {
        note("announce.event", event.state as u64);
    }
    let due = announcer.poll_timeout();
    assert!(states.is_empty() || due.is_none_or(|due| due.since(now) < Duration::from_secs(60)));
    for state in states.values() {
        note("announce.state", *state as u64);
    }
}
