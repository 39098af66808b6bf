//! `wire::options`: arbitrary TCP option lists.

use fairlead_wire::options::{self, KIND_TIMESTAMPS, OPTIONS_BYTES_MAX};
use fairlead_wire::{SynOptions, Timestamps};

use super::Target;
use crate::novelty::{note, note_size};

pub(super) const TARGET: Target = Target {
    name: "options",
    about: "a TCP option list: walks end, stay inside, agree; what is parsed can be emitted",
    run,
    bytes_max: 64,
    tokens: &[
        &[2, 4, 5, 0xb4],
        &[1, 3, 3, 7],
        &[1, 1, 4, 2],
        &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
        &[4, 2, 8, 10],
        &[1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 9],
        &[5, 34],
        &[0],
        &[254, 4, 0, 0],
    ],
};

fn run(list: &[u8]) {
    let walked = walk(list);
    let mut edited = list.to_vec();
    let mut seen = Vec::new();
    let outcome = options::edit(&mut edited, |kind, at, body| {
        seen.push((kind, at, body.to_vec()));
        body.reverse();
        body.reverse();
    });
    assert_eq!(seen, walked.0, "edit and walk see the same");
    assert_eq!(outcome.is_err(), walked.1);
    assert_eq!(edited, list);

    let by_walk = walked
        .0
        .iter()
        .find(|(kind, _, body)| *kind == KIND_TIMESTAMPS && body.len() == 8);
    let expected = by_walk.map(|(_, _, body)| {
        let word =
            |at: usize| u32::from_be_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
        Timestamps {
            value: word(0),
            echo: word(4),
        }
    });
    assert_eq!(options::timestamps(list), expected);
    let at = options::timestamps_at(list);
    assert_eq!(at, by_walk.map(|(_, at, _)| at + 2));

    match SynOptions::parse(list) {
        Ok(parsed) => check_parsed(&parsed, &walked.0),
        Err(reason) => note("options.refused", reason as u64),
    }
}

type Found = (u8, usize, Vec<u8>);

/// Every option, and whether the list is malformed.
fn walk(list: &[u8]) -> (Vec<Found>, bool) {
    let mut walk = options::walk(list);
    let mut found = Vec::new();
    let mut reached = 0;
    for (kind, at, body) in &mut walk {
        assert!(at >= reached && at + 2 + body.len() <= list.len());
        assert_eq!(
            (list[at], usize::from(list[at + 1])),
            (kind, body.len() + 2)
        );
        let padding = &list[reached..at];
        assert!(padding.iter().all(|byte| *byte == options::KIND_NOP));
        reached = at + 2 + body.len();
        note(
            "options.kind",
            u64::from(kind.min(9)) << 8 | body.len().min(40) as u64,
        );
        found.push((kind, at, body.to_vec()));
    }
    note_size("options.count", found.len());
    assert_eq!(walk.next(), None, "the end is the end");
    (found, walk.malformed())
}

fn check_parsed(parsed: &SynOptions, walked: &[Found]) {
    assert!(parsed.mss != Some(0));
    assert!(parsed.window_scale.is_none_or(|scale| scale <= 14));
    let has = |kind: u8| walked.iter().any(|(found, ..)| *found == kind);
    assert_eq!(parsed.sack_permitted, has(options::KIND_SACK_PERMITTED));
    assert_eq!(
        parsed.window_scale.is_some(),
        has(options::KIND_WINDOW_SCALE)
    );
    assert_eq!(parsed.timestamps.is_some(), has(KIND_TIMESTAMPS));
    let mut out = Vec::new();
    parsed.emit(&mut out);
    assert!(out.len() <= OPTIONS_BYTES_MAX && out.len().is_multiple_of(4));
    assert_eq!(SynOptions::parse(&out), Ok(*parsed));
    assert_eq!(options::timestamps(&out), parsed.timestamps);
    let shape = u64::from(parsed.mss.is_some())
        | u64::from(parsed.window_scale.is_some()) << 1
        | u64::from(parsed.sack_permitted) << 2
        | u64::from(parsed.timestamps.is_some()) << 3;
    note("options.shape", shape);
}
