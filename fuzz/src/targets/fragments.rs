//! `datapath::fragments`: fragments in any order, true and false ones.

use fairlead_base::{DropReason, Instant, Packet};
use fairlead_datapath::fragments::{BYTES_MAX, DATAGRAMS_MAX, Fragments, PATIENCE, Taken};
use fairlead_wire::{Fragment, checksum};

use super::Target;
use crate::novelty::{note, note_size};
use crate::script::Script;

pub(super) const TARGET: Target = Target {
    name: "fragments",
    about: "IP fragments in any order: whole packets have the bytes of theirs, limits hold",
    run,
    bytes_max: 2_048,
    tokens: &[&[0, 0, 0, 0, 8], &[1, 0, 0, 1, 16], &[0xff; 4]],
};

fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let mut fragments = Fragments::new();
    let mut now = Instant::ZERO;
    let mut sent = 0;
    let (mut whole, mut refused) = (0, 0);
    while !script.is_empty() {
        now = now + core::time::Duration::from_millis(u64::from(script.u8()) * 16);
        let raw = script.u8();
        let mut packet = match raw {
            255 => Packet::from_bytes(script.take(60)),
            _ => fragment(&mut script, raw),
        };
        let parsed = match Fragment::parse(&packet.bytes) {
            Ok(parsed) => parsed,
            Err(reason) => {
                note("fragments.unparsed", reason as u64);
                continue;
            }
        };
        let payload = parsed.payload(&packet.bytes).to_vec();
        assert_eq!(payload.len(), parsed.len() as usize);
        sent += 1;
        let taken = fragments.take(now, &parsed, &mut packet);
        match taken {
            Taken::Kept => note("fragments.taken", 0),
            Taken::Whole => {
                whole += 1;
                check_whole(&packet.bytes);
            }
            Taken::Refused(reason) => {
                refused += 1;
                note("fragments.taken", reason as u64);
            }
        }
        let (datagrams, bytes) = fragments.held();
        assert!(datagrams <= DATAGRAMS_MAX && bytes <= BYTES_MAX);
        note_size("fragments.datagrams", datagrams);
    }
    fragments.expire(now + PATIENCE);
    assert_eq!(fragments.held(), (0, 0), "something is left for ever");
    assert_eq!(fragments.reassembled(), whole);
    assert!(fragments.drops().total() >= refused && fragments.drops().total() <= sent);
}

/// The byte at an offset of a true packet.
fn byte(host: u8, at: usize) -> u8 {
    (at as u8).wrapping_mul(31) ^ host
}

/// A fragment of one of a few packets; now and then with other bytes.
fn fragment(script: &mut Script<'_>, host: u8) -> Packet {
    let id = script.u8() & 3;
    let place = script.u16() & 0x3fff;
    let len = usize::from(script.u8());
    let start = usize::from(place & 0x1fff) * 8;
    let mut payload: Vec<u8> = (start..start + len).map(|at| byte(host, at)).collect();
    if host & 0xf0 == 0xe0 {
        payload.fill(host);
    }
    let mut bytes = vec![
        0x45, 0, 0, 0, 0, id, 0, 0, 64, 6, 0, 0, 10, 0, 0, host, 10, 1, 0, 3,
    ];
    bytes[2..4].copy_from_slice(&(20 + len as u16).to_be_bytes());
    bytes[6..8].copy_from_slice(&place.to_be_bytes());
    let sum = checksum::ipv4_header(&bytes);
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend_from_slice(&payload);
    Packet::from_bytes(&bytes)
}

/// A reassembled packet is not a fragment; from a host that sends true bytes only, it has those.
fn check_whole(bytes: &[u8]) {
    assert!(matches!(Fragment::parse(bytes), Err(reason) if reason != DropReason::BadIpChecksum));
    if bytes[0] >> 4 != 4 || bytes[12..15] != [10, 0, 0] || bytes[15] & 0xf0 == 0xe0 {
        return;
    }
    let payload = &bytes[usize::from(bytes[0] & 15) * 4..];
    note_size("fragments.whole", payload.len());
    for (at, &found) in payload.iter().enumerate() {
        assert_eq!(found, byte(bytes[15], at), "byte {at}");
    }
}
