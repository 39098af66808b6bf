//! Machines on one link, which hear what the others send.

use proptest::prelude::*;

use super::*;

const LINK: u32 = 2;

fn hardware(number: u8) -> Hardware {
    [2, 0, 0, 0, 0, number]
}

fn place(text: &str) -> Place {
    Place {
        address: Address::from(text.parse::<core::net::IpAddr>().unwrap()),
        interface: LINK,
    }
}

fn machine(number: u8, places: &[Place], now: Instant) -> Announcer {
    let mut one = Announcer::new(2, Seed::new([number.into(), 7]));
    let own = places.iter().map(|place| (*place, hardware(number)));
    one.set_wanted(now, &own.collect());
    one
}

/// Lets time pass; each machine hears the others. Returns all frames that were sent.
fn run(machines: &mut [Announcer], from: Instant, time: Duration) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut now = from;
    while now < from + time {
        for at in 0..machines.len() {
            machines[at].handle_timeout(now);
            while let Some((_, frame)) = machines[at].poll_transmit() {
                for (other, machine) in machines.iter_mut().enumerate() {
                    if other != at {
                        machine.handle_frame(now, LINK, &frame);
                    }
                }
                all.push(frame);
            }
        }
        now = now + Duration::from_millis(10);
    }
    all
}

fn states(machine: &Announcer) -> Vec<State> {
    machine.states().map(|(_, state)| state).collect()
}

const PLACES: [&str; 2] = ["10.1.0.3", "2001:db8::3"];

#[test]
fn an_unused_address_is_probed_then_announced_within_two_seconds() {
    for text in PLACES {
        let start = Instant::from_millis(0);
        let mut one = [machine(1, &[place(text)], start)];
        assert_eq!(states(&one[0]), [State::Probing]);
        let asker = frame::probe(place(text).address, hardware(9));
        let sent = run(&mut one, start, Duration::from_secs(2));
        assert_eq!(states(&one[0]), [State::Announced], "{text}");
        let probes = sent.iter().filter(|frame| {
            matches!(
                frame::read(frame),
                Some(Heard::Question { sender: None, .. })
            )
        });
        assert_eq!(probes.count(), 3, "{text}");
        one[0].handle_frame(Instant::from_millis(2_000), LINK, &asker);
        let (interface, answer) = one[0].poll_transmit().expect("an answer");
        let claim = Heard::Claim {
            address: place(text).address,
            from: hardware(1),
        };
        assert_eq!((interface, frame::read(&answer)), (LINK, Some(claim)));
    }
}

#[test]
fn nobody_answers_for_an_address_before_it_is_announced_or_on_another_link() {
    let start = Instant::from_millis(0);
    let mut one = machine(1, &[place("10.1.0.3")], start);
    let question = frame::probe(place("10.1.0.3").address, hardware(9));
    one.handle_frame(start, LINK + 1, &question);
    assert_eq!(states(&one), [State::Probing]);
    assert!(one.poll_transmit().is_none());
}

#[test]
fn a_second_machine_stays_silent_and_takes_over_when_the_first_is_gone() {
    for text in PLACES {
        let start = Instant::from_millis(0);
        let first = machine(1, &[place(text)], start);
        let mut both = [first, Announcer::new(2, Seed::new([2, 2]))];
        run(&mut both, start, Duration::from_secs(3));
        let later = start + Duration::from_secs(3);
        both[1].set_wanted(later, &BTreeMap::from([(place(text), hardware(2))]));
        run(&mut both, later, Duration::from_secs(60));
        assert_eq!(states(&both[0]), [State::Announced], "{text}");
        assert_ne!(states(&both[1]), [State::Announced], "{text}");
        assert!(both[1].conflicts() > 3);
        let gone = later + Duration::from_secs(60);
        both[0].set_wanted(gone, &BTreeMap::new());
        run(&mut both, gone, Duration::from_secs(10));
        assert_eq!(states(&both[1]), [State::Announced], "{text}");
    }
}

#[test]
fn a_claim_is_defended_once_and_yielded_the_next_time() {
    for text in PLACES {
        let start = Instant::from_millis(0);
        let mut one = [machine(1, &[place(text)], start)];
        run(&mut one, start, Duration::from_secs(8));
        let now = start + Duration::from_secs(8);
        let claim = frame::announcement(place(text).address, hardware(9));
        one[0].handle_frame(now, LINK, &claim);
        let (_, defence) = one[0].poll_transmit().expect("a defence");
        assert!(matches!(frame::read(&defence), Some(Heard::Claim { .. })));
        assert_eq!(states(&one[0]), [State::Announced]);
        one[0].handle_frame(now + Duration::from_secs(1), LINK, &claim);
        assert_eq!(states(&one[0]), [State::Conflict]);
        let last = std::iter::from_fn(|| one[0].poll_event()).last().unwrap();
        assert_eq!(last.with, Some(hardware(9)));
        assert!(one[0].poll_transmit().is_none(), "silent");
    }
}

#[test]
fn what_is_wanted_no_more_is_answered_for_no_more() {
    let start = Instant::from_millis(0);
    let mut one = [machine(1, &[place("10.1.0.3")], start)];
    run(&mut one, start, Duration::from_secs(3));
    one[0].set_wanted(start + Duration::from_secs(3), &BTreeMap::new());
    let question = frame::probe(place("10.1.0.3").address, hardware(9));
    one[0].handle_frame(start + Duration::from_secs(3), LINK, &question);
    assert!(one[0].poll_transmit().is_none());
    assert_eq!(one[0].poll_timeout(), None);
}

proptest! {
    /// Two that begin at any two moments: never do both announce, and in the end one does.
    #[test]
    fn of_two_machines_one_announces(between_ms in 0..3_000_u64, seed: u64, v6: bool) {
        let place = place(PLACES[usize::from(v6)]);
        let start = Instant::from_millis(0);
        let mut both = [1, 2].map(|number| Announcer::new(2, Seed::new([number, seed])));
        both[0].set_wanted(start, &BTreeMap::from([(place, hardware(1))]));
        let second = start + Duration::from_millis(between_ms);
        run(&mut both, start, Duration::from_millis(between_ms));
        both[1].set_wanted(second, &BTreeMap::from([(place, hardware(2))]));
        let mut now = second;
        let announced = |both: &[Announcer; 2]| {
            both.iter().filter(|one| states(one) == [State::Announced]).count()
        };
        for _ in 0..300 {
            run(&mut both, now, Duration::from_millis(200));
            now = now + Duration::from_millis(200);
            prop_assert!(announced(&both) <= 1);
        }
        prop_assert_eq!(announced(&both), 1);
    }

    /// A flood of anything grows no queue without bound.
    #[test]
    fn floods_are_answered_within_bounds(frames in 0..2_000_usize) {
        let start = Instant::from_millis(0);
        let mut one = [machine(1, &[place("10.1.0.3")], start)];
        run(&mut one, start, Duration::from_secs(4));
        let question = frame::probe(place("10.1.0.3").address, hardware(9));
        for _ in 0..frames {
            one[0].handle_frame(start + Duration::from_secs(4), LINK, &question);
        }
        let sent = std::iter::from_fn(|| one[0].poll_transmit()).count();
        prop_assert_eq!(sent, frames.min(FRAMES_MAX));
    }
}
