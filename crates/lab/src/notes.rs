//! What is to be known of a stream before its numbers are believed, in words.

use fairlead_trace::format::oracle_general;
use fairlead_trace::{Accesses, Format, HINT_NONE, Passed, Report};
use fairlead_workload::{Expanded, Expansion};

use crate::load::StreamSpec;
use crate::table::grouped;

/// What is to be known of an expansion before its numbers are believed.
pub fn expansion_notes(expansion: &Expansion, expanded: &Expanded) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(given) = expansion.short_warm_up() {
        notes.push(format!(
            "a warm-up of {given} s is shorter than the silence that ends a session ({} s): \
             sessions in a longer pause look new, so first accesses, all bounds and the misses of \
             large caches are too high; omit --warm-up (warm_up_s)",
            expansion.session_timeout_s
        ));
    }
    notes.extend(without_effect(expansion, expanded));
    if expanded.rows == 0 {
        notes.push(nothing_counts());
    }
    if expanded.responses_cut > 0 {
        notes.push(format!(
            "{} responses were acknowledged only partly (acks_max)",
            expanded.responses_cut
        ));
    }
    notes
}

/// That all of a stream is warm-up.
pub(crate) fn nothing_counts() -> String {
    "no access is left after the warm-up".to_owned()
}

/// What was set and decides nothing, beside the rest of the settings or for this log.
fn without_effect(expansion: &Expansion, expanded: &Expanded) -> Vec<String> {
    let (usual, used) = (Expansion::default(), expansion.used());
    let named = |names: &[(bool, &'static str)]| -> Option<String> {
        let set = names.iter().filter(|(is_set, _)| *is_set);
        let set: Vec<&str> = set.map(|(_, name)| *name).collect();
        (!set.is_empty()).then(|| set.join(", "))
    };
    let of_a_load = named(&[
        (
            expansion.warm_up_s != used.warm_up_s,
            "--warm-up (warm_up_s)",
        ),
        (expansion.periods != used.periods, "--periods (periods)"),
    ]);
    let of_packets = named(&[
        (
            expansion.segment_bytes != used.segment_bytes,
            "segment_bytes",
        ),
        (
            expansion.client_bytes_per_s != used.client_bytes_per_s,
            "client_bytes_per_s",
        ),
        (
            expansion.round_trip_us != used.round_trip_us,
            "round_trip_us",
        ),
        (expansion.acks_max != used.acks_max, "acks_max"),
    ]);
    let of_ports = expansion.ports != usual.ports && !expanded.ports_drawn;
    let mut notes = Vec::new();
    notes.extend(of_a_load.map(|names| {
        format!(
            "no effect at the log's own pace: {names}; add --concurrency (concurrent_sessions), or \
             omit it"
        )
    }));
    notes.extend(of_packets.map(|names| {
        format!(
            "no effect with one access per request: {names}; add --packets packets (packets = \
             \"packets\"), or omit it"
        )
    }));
    if of_ports {
        notes.push(
            "no effect because every row has its own port: --ports (ports); omit it".to_owned(),
        );
    }
    notes
}

/// What is to be known of how a trace was read.
pub fn reading_notes(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    let bad = report.bad_rows();
    if let Some((number, reason)) = report.first_bad {
        let place = match report.format {
            Format::Pcap => "packet",
            Format::WorldCupBinary | Format::Vscsi | Format::OracleGeneral => "row",
            _ => "line",
        };
        notes.push(format!(
            "{bad} of {} rows could not be read and were skipped; the first is {place} {number}: \
             {reason}",
            report.seen()
        ));
    }
    let passed = |what: Passed| report.passed.get(&what).copied().unwrap_or(0);
    let unknown = passed(Passed::NoClient);
    if unknown > 0 {
        notes.push(format!(
            "{} of {} requests have no client (`-` or `unix:`) and were left out",
            grouped(unknown),
            grouped(unknown + report.seen())
        ));
    }
    let copies = passed(Passed::Copy);
    if copies > 0 {
        notes.push(format!(
            "{} packets are copies of packets less than 1 ms before, and were left out; capture \
             on one interface",
            grouped(copies)
        ));
    }
    if report.guessed > 0 {
        notes.push(format!(
            "the clients of {} connections were guessed by port numbers, the lower being the \
             server's: the capture has neither their SYN nor anything else that tells",
            grouped(report.guessed)
        ));
    }
    if report.stepped_back > 0 {
        notes.push(format!(
            "time steps back {} in the file; rows were sorted by time",
            times(report.stepped_back)
        ));
    }
    notes
}

/// Why there is only one session: the capture may have one connection, or the format no clients.
pub(crate) fn one_session(format: Option<&Format>) -> String {
    let why = match format {
        None => "the workload has one",
        Some(Format::Pcap) => "the capture has one connection with segments from its client",
        Some(Format::Vscsi) => "the format names no clients",
        Some(Format::Csv(columns)) if columns.client.is_none() => {
            "no client column was given (--format csv:time=1,client=2)"
        }
        Some(_) => {
            "the trace has only one client; if that is wrong, clients are in another column \
             (--format csv:time=1,client=2)"
        }
    };
    format!("all accesses belong to one session: {why}")
}

/// A note that settings of the expansion have no effect.
pub(crate) fn unused_expansion(made: &StreamSpec) -> Option<String> {
    let is_set = made.expansion != Expansion::default();
    is_set.then(|| {
        "rows are accesses: --concurrency and other settings of the expansion are not used"
            .to_owned()
    })
}

pub(crate) fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        more => format!("{more} times"),
    }
}

/// What `oracleGeneral` cannot hold of these accesses, so that they are others when they are read
/// back.
pub fn lost_in_oracle_general(accesses: &Accesses) -> Vec<String> {
    let mut notes = Vec::new();
    let rows = accesses.len() as u64;
    let is_between = |time: &&u64| !time.is_multiple_of(1_000_000);
    let between = accesses.time_us.iter().filter(is_between).count() as u64;
    if between > 0 {
        notes.push(format!(
            "oracleGeneral has whole seconds; the times of {} of {} accesses are truncated",
            grouped(between),
            grouped(rows)
        ));
    }
    let keys = accesses.keys.iter();
    let others =
        keys.filter(|key| oracle_general::endpoint_of(oracle_general::object_of(key)) != **key);
    let others = others.count() as u64;
    if others > 0 {
        notes.push(format!(
            "oracleGeneral has 64-bit identifiers; {} of {} sessions have IPv6 addresses that do \
             not fit and are hashed, so that reading the file gives other addresses and other \
             misses",
            grouped(others),
            grouped(accesses.keys.len() as u64)
        ));
    }
    notes.extend(lost_hints(accesses));
    notes
}

/// That a format without hints does not hold these.
pub fn lost_hints(accesses: &Accesses) -> Option<String> {
    let hints = accesses.hint.iter().filter(|hint| **hint != HINT_NONE);
    let hints = hints.count() as u64;
    (hints > 0).then(|| {
        format!(
            "the format cannot represent which accesses open and close connections; {} of {} do",
            grouped(hints),
            grouped(accesses.len() as u64)
        )
    })
}
