//! The meter's report: a table with bars, and JSON.

use fairlead_content::bus::ByKind;
use fairlead_content::meter::Report;
use serde_json::{Value, json};

use super::MeterArgs;
use crate::screen::Side::{Left, Right};
use crate::screen::{bytes, columns, grouped, plural};

/// What a meter saw.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    pub(super) report: Report,
    pub(super) seconds: f64,
    pub(super) lost_packets: u64,
    pub(super) lost_bytes: u64,
}

/// Characters of a bar that stands for all bytes without a cache.
/// With it a line fits a terminal of 80.
const BAR: u64 = 12;
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// Kinds of bytes, in the order of figure 7.
const KINDS: [&str; 5] = [
    "content",
    "application headers",
    "network headers",
    "descriptors",
    "other",
];

fn each(bytes: &ByKind) -> [u64; 5] {
    [
        bytes.content,
        bytes.application_headers,
        bytes.network_headers,
        bytes.descriptors,
        bytes.other,
    ]
}

/// A bar of this share of [`BAR`]; something that is there has at least an eighth.
fn bar(part: u64, of: u64) -> String {
    if of == 0 || part == 0 {
        return String::new();
    }
    let eighths = u128::from(part) * u128::from(BAR * 8) / u128::from(of);
    let eighths = (eighths as usize).clamp(1, 2 * BAR as usize * 8);
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// Change from one number to another, in percent.
fn change(from: u64, to: u64) -> String {
    match (from, to) {
        (0, 0) => String::new(),
        (0, _) => "new".to_owned(),
        (from, to) => {
            let percent = (to as f64 / from as f64 - 1.0) * 100.0;
            match percent.abs() < 0.05 {
                true => String::new(),
                false => format!("{percent:+.1} %"),
            }
        }
    }
}

/// The table, as it is shown live and at the end.
pub(super) fn table(args: &MeterArgs, measured: &Measured) -> String {
    let report = &measured.report;
    let caches = match args.devices {
        1 => format!("a cache of {}", args.size),
        devices => format!("{devices} caches of {}", args.size),
    };
    let mut out = format!(
        "{}: {} in {:.1} s; {caches}, {}\n\n",
        args.interface,
        plural_of(report.packets, "packet"),
        measured.seconds,
        args.policy
    );
    let (without, with) = (&report.without.bytes, &report.with.bytes);
    let all = without.total();
    let head = ["", "without", "", "with", "", "change"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let names = KINDS.into_iter().chain(["all"]);
    let before = each(without).into_iter().chain([all]);
    let after = each(with).into_iter().chain([with.total()]);
    for ((name, before), after) in names.zip(before).zip(after) {
        rows.push(vec![
            name.to_owned(),
            bytes(before),
            bar(before, all),
            bytes(after),
            bar(after, all),
            change(before, after),
        ]);
    }
    out += &columns(2, &[Left, Right, Left, Right, Left, Right], &rows);
    let counts = report.counts;
    out += &format!(
        "\nblocks: {} from the cache, {} inserted ({} of them changed), {} evicted\n",
        grouped(counts.hits),
        grouped(counts.inserts),
        grouped(counts.stale),
        grouped(counts.evictions),
    );
    if report.dirty_bytes > 0 {
        out += &format!(
            "not cacheable: {} of content from pages that were not written back yet\n",
            bytes(report.dirty_bytes)
        );
    }
    if measured.lost_packets > 0 {
        out += &format!(
            "lost: {} ({}), not counted above: the meter was too slow\n",
            plural_of(measured.lost_packets, "packet"),
            bytes(measured.lost_bytes)
        );
    }
    out
}

fn plural_of(count: u64, what: &str) -> String {
    let words = plural(usize::try_from(count).unwrap_or(usize::MAX), what);
    let (_, what) = words.split_once(' ').unwrap_or(("", what));
    format!("{} {what}", grouped(count))
}

/// The document of `--json`.
pub(super) fn json(args: &MeterArgs, measured: &Measured) -> Value {
    let report = &measured.report;
    let (without, with) = (&report.without.bytes, &report.with.bytes);
    json!({
        "interface": args.interface,
        "seconds": measured.seconds,
        "size_bytes": args.size.0,
        "devices": args.devices,
        "policy": args.policy.name(),
        "packets": report.packets,
        "content_bytes": without.content,
        "content_bytes_cached": without.content.saturating_sub(with.content),
        "application_header_bytes": without.application_headers,
        "network_header_bytes": without.network_headers,
        "descriptor_bytes": without.descriptors,
        "other_bytes": without.other,
        "with_cache": {
            "content_bytes": with.content,
            "application_header_bytes": with.application_headers,
            "network_header_bytes": with.network_headers,
            "descriptor_bytes": with.descriptors,
            "other_bytes": with.other,
        },
        "blocks": {
            "hits": report.counts.hits,
            "inserts": report.counts.inserts,
            "changed": report.counts.stale,
            "evictions": report.counts.evictions,
        },
        "uncacheable_bytes": report.dirty_bytes,
        "lost_packets": measured.lost_packets,
        "lost_bytes": measured.lost_bytes,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fairlead_content::Policy;
    use fairlead_content::bus::Traffic;
    use fairlead_lab::Size;

    use super::super::WatchArgs;
    use super::*;

    fn args() -> MeterArgs {
        MeterArgs {
            interface: "eth0".to_owned(),
            port: Vec::new(),
            size: Size(16 << 20),
            devices: 2,
            policy: Policy::Lru,
            watch: WatchArgs {
                duration: None,
                interval: Duration::from_secs(1),
                json: false,
            },
        }
    }

    fn measured() -> Measured {
        let traffic = |content, descriptors| Traffic {
            bytes: ByKind {
                content,
                application_headers: 2_500,
                network_headers: 6_600,
                descriptors,
                other: 0,
            },
            ..Traffic::default()
        };
        let mut measured = Measured {
            seconds: 10.0,
            ..Measured::default()
        };
        measured.report.packets = 1_100;
        measured.report.without = traffic(80_000, 900);
        measured.report.with = traffic(30_000, 1_100);
        measured
    }

    #[test]
    fn the_table_has_both_bars_of_each_kind() {
        let text = table(&args(), &measured());
        let expected = "\
eth0: 1,100 packets in 10.0 s; 2 caches of 16 MiB, lru

                        without                    with           change
  content              78.1 KiB  ██████████▋   29.3 KiB  ████    -62.5 %
  application headers   2.4 KiB  ▎              2.4 KiB  ▎
  network headers       6.4 KiB  ▉              6.4 KiB  ▉
  descriptors             900 B  ▏              1.1 KiB  ▏       +22.2 %
  other                     0 B                     0 B
  all                  87.9 KiB  ████████████  39.3 KiB  █████▎  -55.3 %

blocks: 0 from the cache, 0 inserted (0 of them changed), 0 evicted
";
        assert_eq!(text, expected);
    }

    #[test]
    fn losses_and_dirty_pages_are_said() {
        let mut seen = measured();
        seen.lost_packets = 1;
        seen.lost_bytes = 1_500;
        seen.report.dirty_bytes = 4_096;
        let text = table(&args(), &seen);
        assert!(text.contains("not cacheable: 4.0 KiB"), "{text}");
        assert!(text.contains("lost: 1 packet (1.5 KiB)"), "{text}");
        let document = json(&args(), &seen);
        assert_eq!(document["lost_packets"], 1);
        assert_eq!(document["uncacheable_bytes"], 4_096);
    }

    #[test]
    fn the_document_has_bytes_by_kind_and_what_the_cache_saves() {
        let document = json(&args(), &measured());
        for (name, bytes) in [
            ("content_bytes", 80_000),
            ("content_bytes_cached", 50_000),
            ("application_header_bytes", 2_500),
            ("network_header_bytes", 6_600),
            ("descriptor_bytes", 900),
            ("other_bytes", 0),
        ] {
            assert_eq!(document[name], bytes, "{name}");
        }
        assert_eq!(document["with_cache"]["content_bytes"], 30_000);
    }

    #[test]
    fn bars_are_shares_and_end_somewhere() {
        assert_eq!(bar(0, 10), "");
        assert_eq!(bar(1, u64::MAX), "▏");
        assert_eq!(bar(10, 10).chars().count(), 12);
        assert_eq!(bar(u64::MAX, 1).chars().count(), 24);
    }
}
