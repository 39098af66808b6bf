//! Every capture, in every manner: each packet is accounted for, and each that the switch passes on
//! is what was captured, but for what it has to change.

use std::path::Path;

use fairlead::replay::report::Outcome;

use crate::support::{Manner, Played, all_kept, play, shared};

/// Reasons for which the switch may drop what these captures hold.
const DROPS: [&str; 9] = [
    // Captured damage, and what follows from it: a client whose first segment is lost.
    "bad_tcp_checksum",
    "cookie_invalid",
    "no_connection",
    // The captures of many connections that never ended, joined.
    "idle_timeout",
    "half_closed_timeout",
    // With a header of ours before it, a head is ours to deliver.
    "held_already",
    "preamble_unacked",
    // One-shot: a second request on a kept-alive connection.
    "behind_request",
    // Turned away because we want it so.
    "no_route",
];

fn check(path: &Path, manner: Manner, played: &Played) {
    let name = format!("{} {manner:?}", path.display());
    let Played {
        summary,
        tally,
        comparison,
        connections,
        ..
    } = played;
    assert_eq!(
        tally.packets,
        tally.played + tally.unplayed_total(),
        "{name}: {:?}",
        tally.unplayed
    );
    assert_eq!(comparison.differences, [], "{name}");
    assert_eq!((summary.different, summary.unsound), (0, 0), "{name}");
    assert_eq!(connections.len() as u64, summary.connections, "{name}");
    for drops in &summary.drops {
        assert!(DROPS.contains(&&*drops.name), "{name}: {drops:?}");
        let wanted = match &*drops.name {
            "no_route" => manner == Manner::Refuse,
            "behind_request" => manner == Manner::OneShot,
            _ => true,
        };
        assert!(wanted, "{name}: {drops:?}");
    }
    // Whatever was decided became a splice: the server that answers is the captured one.
    let decisions: u64 = summary.routes.iter().map(|route| route.decisions).sum();
    assert_eq!(decisions, summary.spliced, "{name}");
    let compared = comparison.forward + comparison.reverse;
    assert!(
        comparison.not_comparable * 20 <= compared,
        "{name}: {comparison:?}"
    );
    if summary.spliced > 0 {
        assert!(comparison.forward > 0, "{name}: {comparison:?}");
        // Where nothing is read, nothing of the client's is sent by the switch itself.
        let reads = manner != Manner::Blind && !name.contains("/tcp-");
        assert!(comparison.heads > 0 || !reads, "{name}: {comparison:?}");
    }
    for connection in connections {
        let decided = connection.decision.is_some();
        let passed = matches!(connection.outcome, Outcome::Ended { .. } | Outcome::Open);
        assert_eq!(decided, passed, "{name}: {connection:?}");
        if matches!(connection.outcome, Outcome::Refused { .. }) {
            assert_eq!(manner, Manner::Refuse, "{name}: {connection:?}");
        }
    }
}

#[test]
fn kept_captures_are_played_as_they_were() {
    let mut spliced = 0;
    for path in all_kept() {
        for manner in Manner::ALL {
            let played = play(&path, manner, false);
            check(&path, manner, &played);
            spliced += played.summary.spliced;
        }
    }
    assert!(spliced > 100, "{spliced}");
}

#[test]
fn further_captures_are_played_as_they_were() {
    let mut compared = 0;
    for path in shared("captures::further_captures_are_played_as_they_were") {
        for manner in Manner::ALL {
            let played = play(&path, manner, false);
            check(&path, manner, &played);
            compared += played.summary.compared;
        }
    }
    eprintln!("{compared} translated packets of further captures compared");
}

#[test]
fn what_is_not_played_is_counted_by_reason() {
    let count = |name: &str, reason: &str| {
        let played = play(&crate::support::kept(name), Manner::Splice, false);
        let found = played
            .summary
            .unplayed
            .iter()
            .find(|count| count.name == reason);
        found.map_or(0, |count| count.count)
    };
    let odd = "odd-packets.pcap";
    assert_eq!(count(odd, "protocol_0x0806"), 1);
    assert_eq!(count(odd, "protocol_0x8847"), 16);
    assert_eq!(count(odd, "bad_ip_checksum"), 2);
    assert_eq!(count(odd, "not_tcp"), 31);
    assert_eq!(count(odd, "icmp"), 11);
    assert_eq!(count("tls-midstream-2021.pcap", "midstream"), 35);
    assert_eq!(count("http-loss-2016.pcap.zst", "spare_syn_ack"), 1);
}

#[test]
fn connections_without_their_handshake_are_counted() {
    let played = play(
        &crate::support::kept("tls-midstream-2021.pcap"),
        Manner::Splice,
        false,
    );
    let Played { summary, .. } = played;
    assert_eq!((summary.packets, summary.played), (35, 0));
    assert_eq!((summary.connections, summary.midstream), (0, 3));
    assert_eq!((summary.ip_repaired, summary.tcp_repaired), (6, 15));
}

#[test]
fn snapped_packets_are_played_at_their_full_length() {
    let path = crate::support::kept("tcp-snapped-raw-ip-2025.pcap");
    let played = play(&path, Manner::Splice, false);
    let Played { summary, .. } = &played;
    assert_eq!((summary.snapped, summary.tcp_repaired), (51, 5));
    assert_eq!((summary.played, summary.compared), (160, 154));
    let bulk = &played.connections[1];
    assert_eq!(bulk.packets_in, 51);
    assert!(bulk.bytes_in > 500_000, "{bulk:?}");
}

#[test]
fn the_same_capture_is_always_played_the_same() {
    let path = crate::support::kept("http-2011.pcap");
    let [one, other] = [(); 2].map(|()| play(&path, Manner::Splice, true));
    assert!(one.written == other.written);
    assert_eq!(
        format!("{:?}", one.connections),
        format!("{:?}", other.connections)
    );
}
