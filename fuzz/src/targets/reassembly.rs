//! `tcp::Reassembly`: pieces of a stream in any order, with conflicting content.

use fairlead_tcp::Reassembly;
use fairlead_tcp::reassembly::{PIECES_MAX, Refusal};

use super::Target;
use crate::novelty::{note, note_size};
use crate::script::Script;

pub(super) const TARGET: Target = Target {
    name: "reassembly",
    about: "pieces in any order: the first copy of each byte wins, memory stays within the limit",
    run,
    bytes_max: 2_048,
    tokens: &[&[0xff; 5], &[0, 0, 1], &[0, 64, 200]],
};

fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let limit = usize::from(script.u16() % 700);
    let mut stream = Reassembly::new(limit as u32);
    let mut model: Vec<Option<u8>> = vec![None; limit];
    while !script.is_empty() {
        // Far offsets now and then, close ones mostly.
        let offset = match script.u8() {
            255 => script.u32(),
            high => u32::from(high & 3) << 8 | u32::from(script.u8()),
        };
        let count = usize::from(script.u8());
        let fill = script.u8();
        let piece: Vec<u8> = (0..count).map(|at| fill.wrapping_add(at as u8)).collect();
        let (held, growth) = (stream.held_bytes(), stream.growth_bytes(offset, count));
        let outcome = stream.insert(offset, &piece);
        let grown = stream.held_bytes() - held;
        match outcome {
            Ok(()) if count > 0 => assert_eq!(grown, growth, "grew otherwise than announced"),
            _ => assert_eq!(grown, 0, "grew for nothing"),
        }
        match outcome {
            Ok(()) => fill_model(&mut model, offset, &piece),
            Err(Refusal::BeyondLimit) => assert!(offset as usize >= limit && count > 0),
            Err(Refusal::TooManyPieces) => assert_eq!(pieces(&model), PIECES_MAX),
        }
        note(
            "reassembly.outcome",
            outcome.map_or_else(|why| why as u64, |()| 9),
        );
        check(&stream, &model, limit);
    }
}

fn fill_model(model: &mut [Option<u8>], offset: u32, piece: &[u8]) {
    for (at, &byte) in piece.iter().enumerate() {
        if let Some(place) = model.get_mut(offset as usize + at) {
            place.get_or_insert(byte);
        }
    }
}

/// Runs of bytes that are there.
fn pieces(model: &[Option<u8>]) -> usize {
    let starts = |at: usize| model[at].is_some() && (at == 0 || model[at - 1].is_none());
    (0..model.len()).filter(|&at| starts(at)).count()
}

fn check(stream: &Reassembly, model: &[Option<u8>], limit: usize) {
    let expected: Vec<u8> = model.iter().map_while(|byte| *byte).collect();
    assert_eq!(stream.in_order(), expected);
    assert_eq!(stream.in_order_len() as usize, expected.len());
    assert_eq!(stream.is_full(), expected.len() >= limit);
    let pieces = pieces(model);
    assert!(pieces <= PIECES_MAX);
    assert!(
        stream.held_bytes() <= limit,
        "{} bytes held",
        stream.held_bytes()
    );
    note_size("reassembly.pieces", pieces);
    note_size("reassembly.in_order", expected.len());
}
