//! The rules of the house. A rule that a person has to remember is soon forgotten; these are read
//! from the tree itself.
//!
//! | file | rule |
//! |---|---|
//! | `arrows.rs` | who may import whom |
//! | `core_rooms.rs` | core crates know no clock, socket, thread, file or chance |
//! | `unsafety.rs` | `unsafe` only in few rooms, each block with its reason |
//! | `tidy.rs` | lengths of lines, files and functions; no dead files, no left-over marks |
//! | `names.rs` | words that say nothing are not names |
//! | `words.rs` | what no committed text may mention; no unlisted binary files |
//! | `licences.rs` | licences and sources of everything that is linked |
//! | `reasons.rs` | `docs/reasons.md` lists every drop reason |
//! | `phrases.rs` | phrases that `docs/writing.md` advises against |
//! | `front.rs` | README, changelog and writing rules stay short |
//! | `links.rs` | links in documents lead somewhere |
//! | `walls.rs` | the lints that keep core crates pure are in place |
//!
//! Run with `UPDATE=1` to write what can be written: the table of reasons, shorter lists of long
//! functions and of phrases, the lints of core crates.

mod arrows;
mod core_rooms;
mod front;
mod licences;
mod links;
mod metadata;
mod names;
mod phrases;
mod reasons;
mod rust;
mod source;
mod spdx;
mod tidy;
mod tree;
mod unsafety;
mod walls;
mod words;

/// The crates of the core: sans-IO, without `unsafe`, the same in simulation and in service.
const CORE: [&str; 19] = [
    "base",
    "wire",
    "cache",
    "content",
    "check",
    "tcp",
    "splice",
    "datapath",
    "netio",
    "sim",
    "testkit",
    "trace",
    "workload",
    "tcbcache",
    "announce",
    "handoff",
    "offload",
    "http-cache",
    "http-front",
];

/// True when files may be brought up to date.
fn update() -> bool {
    std::env::var_os("UPDATE").is_some_and(|value| value == "1")
}

/// Fails with all complaints at once.
#[track_caller]
fn report(rule: &str, complaints: &[String]) {
    assert!(
        complaints.is_empty(),
        "{rule}\n  {}\n",
        complaints.join("\n  ")
    );
}
