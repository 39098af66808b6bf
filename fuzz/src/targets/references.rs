//! `trace`: arbitrary traces of references.

use std::io::Cursor;

use fairlead_trace::references::{Event, Reader, SECTION_RECORDS, Writer};

use super::Target;
use crate::corpus::fingerprint;
use crate::novelty::{note, note_size};

pub(super) const TARGET: Target = Target {
    name: "references",
    about: "a trace of references: the same events when read again, and after writing them",
    run,
    bytes_max: 4_096,
    tokens: &[
        b"\x89FLREFS\x01",
        b"RECS",
        b"HEAD",
        b"FLREFEND",
        &[0x28, 0xb5, 0x2f, 0xfd],
        b"\"records\":",
        b"\"objects\":[",
    ],
};

/// Sections looked at: a file of a few bytes can hold many full ones.
const SECTIONS_MAX: usize = 8;

fn run(file: &[u8]) {
    let mut reader = match Reader::new("fuzz", Cursor::new(file)) {
        Ok(reader) => reader,
        Err(error) => return note_shape(&error.to_string()),
    };
    let first = read(&mut reader);
    if reader.rewind().is_err() {
        panic!("memory can be read again");
    }
    assert_eq!(first, read(&mut reader), "read again");
    let (events, error) = first;
    note_size("references.events", events.len());
    if let Some(error) = error {
        return note_shape(&error);
    }
    let mut writer = Writer::new(Vec::new()).expect("to memory");
    for event in &events {
        writer.push(*event).expect("to memory");
    }
    let Ok(file) = writer.finish(reader.header().clone()) else {
        return;
    };
    let mut again = Reader::new("fuzz", Cursor::new(&file[..])).expect("just written");
    assert_eq!((events, None), read(&mut again), "written and read again");
}

/// Everything up to the end, or to the first error and what it says.
fn read<R: std::io::Read + std::io::Seek>(reader: &mut Reader<R>) -> (Vec<Event>, Option<String>) {
    let (mut all, mut chunk) = (Vec::new(), Vec::new());
    for _ in 0..SECTIONS_MAX {
        match reader.next_chunk(&mut chunk) {
            Ok(true) => {
                assert!(chunk.len() <= SECTION_RECORDS, "more than a section");
                all.append(&mut chunk);
            }
            Ok(false) => break,
            Err(error) => {
                assert!(chunk.is_empty(), "events of a damaged section");
                return (all, Some(error.to_string()));
            }
        }
    }
    (all, None)
}

/// Messages have numbers in them; their shape does not.
fn note_shape(said: &str) {
    let shape: String = said.chars().filter(char::is_ascii_alphabetic).collect();
    note("references.error", fingerprint(shape.as_bytes()) % 512);
}
