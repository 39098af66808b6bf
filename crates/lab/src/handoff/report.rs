//! The tables: each with the paper's value beside ours, where it prints one.

use std::collections::BTreeMap;

use serde::Serialize;

use super::HandoffSpec;
use super::bench::{Load, PAYLOAD, Seen};
use super::published::{DESCRIPTOR_BYTES_PER_PACKET, DESCRIPTORS_PER_PACKET, Published, TABLE_2};
use super::samples::{Layers, PROGRAM};
use super::traced::Traced;
use crate::table::Table;

/// Bytes of a message between host and card.
const MESSAGE: f64 = 16.0;
/// Messages that occur less often are left out of the table.
const SHOWN: f64 = 0.000_5;

/// One way to carry the connections: medians of the rounds, for a packet.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Side {
    /// Packets each second, sent and received.
    pub packets_per_second: f64,
    /// Messages, or answers of a web server, each second.
    pub answers_per_second: f64,
    /// Their bytes without heads, Mb/s.
    pub mbits: f64,
    /// Share of the host's processor that is in use.
    pub host_in_use: f64,
    /// The host's time by layer, ns. What the sending program itself does is [`PROGRAM`].
    pub host_ns: Layers,
    /// Of these, the stack: all but the program.
    pub stack_ns: f64,
    /// The time of the cards' processes by layer, ns.
    pub card_ns: Layers,
    /// Both processors, idle time left out, ns: host, cards, client.
    pub all_ns: f64,
    /// Connections that were on cards.
    pub on_cards: u64,
    /// Messages between host and cards, by the paper's names.
    pub messages: BTreeMap<String, f64>,
}

impl Side {
    /// What several rounds have seen, each for this time.
    pub(super) fn of(rounds: &[Seen], seconds: u64) -> Self {
        let packets = |seen: &Seen| seen.packets_per_second * seconds as f64;
        let by_layer = |pick: fn(&Seen) -> &Layers| -> Layers {
            let names = rounds.iter().flat_map(|seen| pick(seen).keys());
            let of = |name: &String| {
                let value = |seen: &Seen| pick(seen).get(name).copied().unwrap_or(0.0);
                median(rounds.iter().map(|seen| value(seen) / packets(seen)))
            };
            names.map(|name| (name.clone(), of(name))).collect()
        };
        let stack = |seen: &Seen| -> f64 {
            let layers = seen.samples.host.iter();
            layers
                .filter(|(name, _)| *name != PROGRAM)
                .map(|(_, ns)| ns)
                .sum()
        };
        let all =
            |seen: &Seen| seen.samples.host.values().sum::<f64>() + seen.samples.card_processor_ns;
        let in_use = |seen: &Seen| seen.samples.host.values().sum::<f64>() / (seconds as f64 * 1e9);
        let names = rounds.iter().flat_map(|seen| seen.messages.keys());
        let messages = names.map(|name| {
            let each = rounds.iter().map(|seen| {
                seen.messages.get(name).copied().unwrap_or(0.0) / seen.packets_per_second
            });
            (name.clone(), median(each))
        });
        Self {
            packets_per_second: median(rounds.iter().map(|seen| seen.packets_per_second)),
            answers_per_second: median(rounds.iter().map(|seen| seen.answers_per_second)),
            mbits: median(rounds.iter().map(|seen| seen.bytes_per_second * 8.0 / 1e6)),
            host_in_use: median(rounds.iter().map(in_use)),
            host_ns: by_layer(|seen| &seen.samples.host),
            stack_ns: median(rounds.iter().map(|seen| stack(seen) / packets(seen))),
            card_ns: by_layer(|seen| &seen.samples.card),
            all_ns: median(rounds.iter().map(|seen| all(seen) / packets(seen))),
            on_cards: rounds.iter().map(|seen| seen.on_cards).max().unwrap_or(0),
            messages: messages.collect(),
        }
    }
}

impl Side {
    /// Throughput if the host's processor were the limit, as in the paper, Mb/s.
    pub fn mbits_of_host(&self) -> f64 {
        self.mbits / self.host_in_use
    }
}

/// The middle one, or the mean of the two in the middle; 0 of none.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    all.sort_by(f64::total_cmp);
    match all.len() {
        0 => 0.0,
        count => (all[(count - 1) / 2] + all[count / 2]) / 2.0,
    }
}

/// A group of figure 7 or 9.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Connections.
    pub connections: u32,
    /// Cards.
    pub cards: u32,
    /// What passes over the connections.
    pub load: Load,
    /// All by the host's kernel.
    pub host: Side,
    /// By the cards, as far as they have room.
    pub offloaded: Side,
    /// What the paper prints.
    pub published: Published,
}

impl Row {
    /// Change of the stack's time, percent.
    pub fn change(&self) -> f64 {
        change(self.host.stack_ns, self.offloaded.stack_ns)
    }

    fn name(&self) -> String {
        let one = if self.cards == 1 { "card" } else { "cards" };
        let load = self.load.name();
        format!("{}, {} {one}, {load}", self.connections, self.cards)
    }
}

fn change(from: f64, to: f64) -> f64 {
    (to / from - 1.0) * 100.0
}

fn percent(value: f64) -> String {
    format!("{value:+.0} %")
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Of the program.
    pub version: &'static str,
    /// Bytes of a message's payload.
    pub payload_bytes: usize,
    /// Seconds of each measurement.
    pub seconds: u64,
    /// Measurements of each kind.
    pub rounds: u32,
    /// The processor, as it calls itself.
    pub processor: String,
    /// The kernel's version.
    pub kernel: String,
    /// Its clock, MHz; by it nanoseconds become cycles.
    pub mhz: Option<f64>,
    /// Groups of figures 7 and 9.
    pub rows: Vec<Row>,
    /// Instructions and cache lines of a message.
    pub traced: Vec<Traced>,
    /// What could not be measured, and why.
    pub notes: Vec<String>,
}

impl Report {
    /// Of this machine, without rows.
    pub(super) fn new(spec: HandoffSpec) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let about = read("/proc/cpuinfo");
        let field = |name: &str| {
            let line = about.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        Self {
            version: env!("CARGO_PKG_VERSION"),
            payload_bytes: PAYLOAD,
            seconds: spec.seconds,
            rounds: spec.rounds,
            processor: field("model name").unwrap_or_else(|| "unknown".to_owned()),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            mhz: field("cpu MHz").and_then(|text| text.parse().ok()),
            rows: Vec::new(),
            traced: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Figures 7 and 9, in all: the host's stack for a packet.
    pub fn totals(&self) -> Table {
        let mut table = Table::new([
            "connections",
            "on cards",
            "host ns",
            "with cards ns",
            "change",
            "paper",
            "both processors ns",
            "with cards ns",
            "change",
        ]);
        for row in &self.rows {
            let (host, offloaded) = (&row.host, &row.offloaded);
            table.row([
                row.name(),
                offloaded.on_cards.to_string(),
                format!("{:.0}", host.stack_ns),
                format!("{:.0}", offloaded.stack_ns),
                percent(row.change()),
                row.published.change.map_or("-".to_owned(), percent),
                format!("{:.0}", host.all_ns),
                format!("{:.0}", offloaded.all_ns),
                percent(change(host.all_ns, offloaded.all_ns)),
            ]);
        }
        table
    }

    /// Figures 7 and 9 by layer: the host's time for a packet, ns.
    pub fn layers(&self) -> Table {
        let sides = || self.rows.iter().flat_map(|row| [&row.host, &row.offloaded]);
        let mut names: Vec<&str> = sides()
            .flat_map(|side| side.host_ns.keys().map(String::as_str))
            .collect();
        names.sort_unstable();
        names.dedup();
        let heads = ["connections", "by"].into_iter().chain(names.clone());
        let mut table = Table::new(heads);
        for row in &self.rows {
            for (by, side) in [("host", &row.host), ("cards", &row.offloaded)] {
                let ns = |name: &&str| side.host_ns.get(*name).copied().unwrap_or(0.0);
                let cells = names.iter().map(|name| format!("{:.0}", ns(name)));
                table.row([row.name(), by.to_owned()].into_iter().chain(cells));
            }
        }
        table
    }

    /// Figure 9's throughput: as measured, and as if only the host's processor limited it.
    pub fn throughput(&self) -> Table {
        let mut table = Table::new([
            "connections",
            "answers/s",
            "with cards",
            "Mb/s",
            "with cards",
            "change",
            "paper",
            "host in use",
            "with cards",
            "Mb/s of a full host",
            "with cards",
            "change",
        ]);
        for row in self.rows.iter().filter(|row| row.load.is_web()) {
            let sides = [&row.host, &row.offloaded];
            let both = |of: fn(&Side) -> f64| sides.map(|side| format!("{:.0}", of(side)));
            let changed = |of: fn(&Side) -> f64| [percent(change(of(sides[0]), of(sides[1])))];
            let published = row.published.mbits;
            let published = published.map_or("-".to_owned(), |[host, cards]| {
                format!("{host:.0}, {cards:.0}: {}", percent(change(host, cards)))
            });
            let cells: [&[String]; 8] = [
                &[row.name()],
                &both(|side| side.answers_per_second),
                &both(|side| side.mbits),
                &changed(|side| side.mbits),
                &[published],
                &sides.map(|side| format!("{:.0} %", 100.0 * side.host_in_use)),
                &both(Side::mbits_of_host),
                &changed(Side::mbits_of_host),
            ];
            table.row(cells.concat());
        }
        table
    }

    /// Figure 8: messages for a packet, by command, and their bytes.
    pub fn messages(&self) -> Table {
        let often = self.rows.iter().flat_map(|row| {
            let often = row.offloaded.messages.iter();
            often.filter(|(_, count)| **count >= SHOWN)
        });
        let mut names: Vec<&str> = often.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let heads = ["connections"].into_iter().chain(names.clone());
        let mut table = Table::new(heads.chain(["all", "bytes"]));
        for row in &self.rows {
            let messages = &row.offloaded.messages;
            let count = |name: &&str| messages.get(*name).copied().unwrap_or(0.0);
            let cells = names.iter().map(|name| format!("{:.3}", count(name)));
            let all: f64 = messages.values().sum();
            let sums = [format!("{all:.3}"), format!("{:.1}", all * MESSAGE)];
            table.row([row.name()].into_iter().chain(cells).chain(sums));
        }
        let mut cells = vec!["paper, without handoff".to_owned()];
        cells.extend(names.iter().map(|_| String::new()));
        cells.push(format!("{DESCRIPTORS_PER_PACKET:.3}"));
        cells.push(format!("{DESCRIPTOR_BYTES_PER_PACKET:.1}"));
        table.row(cells);
        table
    }

    /// Table 2: the card's work for a packet by layer, with all of 256 connections there.
    pub fn card(&self) -> Table {
        let mut table = Table::new(["layer", "ns a packet", "share"]);
        let is_whole = |row: &&Row| row.connections == 256 && row.load == Load::Named;
        let Some(row) = self.rows.iter().find(is_whole) else {
            return table;
        };
        let all: f64 = row.offloaded.card_ns.values().sum();
        for (name, ns) in &row.offloaded.card_ns {
            let share = 100.0 * ns / all.max(f64::MIN_POSITIVE);
            table.row([name.clone(), format!("{ns:.0}"), format!("{share:.0} %")]);
        }
        table.row(["all".to_owned(), format!("{all:.0}"), "100 %".to_owned()]);
        table
    }

    /// The paper's table 2.
    pub fn published_card(&self) -> Table {
        let all: f64 = TABLE_2.iter().map(|(_, count)| count).sum();
        let mut table = Table::new(["layer", "instructions a packet", "share"]);
        for (name, count) in TABLE_2 {
            let share = format!("{:.0} %", 100.0 * count / all);
            table.row([name.to_owned(), format!("{count:.0}"), share]);
        }
        table
    }

    /// Figure 7's instructions: of a message, by layer, with the distinct lines of 64 bytes that it
    /// touches, which a small cache would miss.
    pub fn instructions(&self) -> Table {
        let heads = [
            "way",
            "layer",
            "instructions",
            "accesses",
            "I lines",
            "D lines",
        ];
        let mut table = Table::new(heads);
        for one in &self.traced {
            let mut sums = [0.0; 4];
            for row in &one.layers {
                let values = [
                    row.instructions,
                    row.accesses,
                    row.instruction_lines,
                    row.data_lines,
                ];
                let cells = values.map(|value| format!("{value:.0}"));
                sums.iter_mut()
                    .zip(values)
                    .for_each(|(sum, value)| *sum += value);
                table.row(
                    [one.way.clone(), row.layer.clone()]
                        .into_iter()
                        .chain(cells),
                );
            }
            let cells = sums.map(|value| format!("{value:.0}"));
            table.row([one.way.clone(), "all".to_owned()].into_iter().chain(cells));
        }
        table
    }

    /// All tables that have rows, with their names, for files and pages.
    pub fn tables(&self) -> Vec<(&'static str, &'static str, Table)> {
        let mut tables = vec![
            (
                "figure-7",
                "Figures 7 and 9: the host's stack for a packet",
                self.totals(),
            ),
            (
                "layers",
                "Figures 7 and 9 by layer, ns a packet",
                self.layers(),
            ),
            (
                "figure-9",
                "Figure 9: throughput of a web server",
                self.throughput(),
            ),
            (
                "instructions",
                "Figure 7: instructions and cache lines of a message",
                self.instructions(),
            ),
            (
                "figure-8",
                "Figure 8: messages between host and cards",
                self.messages(),
            ),
            (
                "card",
                "Table 2: the card's processes, 256 connections, named messages",
                self.card(),
            ),
            (
                "card-published",
                "Table 2 as published: the card's firmware",
                self.published_card(),
            ),
        ];
        tables.retain(|(_, _, table)| !table.rows.is_empty());
        tables
    }
}

#[cfg(test)]
mod tests {
    use super::super::published::{MESSAGES, WEB};
    use super::super::samples::{BYPASS, Samples};
    use super::*;
    use crate::handoff::page::page;

    fn seen(packets_per_second: f64, host: &[(&str, f64)], sends: f64) -> Seen {
        let layers = |all: &[(&str, f64)]| -> Layers {
            all.iter()
                .map(|(name, ns)| ((*name).to_owned(), *ns))
                .collect()
        };
        Seen {
            samples: Samples {
                host: layers(host),
                card: layers(&[("tcp", 500.0), ("ip", 1_500.0)]),
                card_processor_ns: 4_000.0,
            },
            packets_per_second,
            answers_per_second: packets_per_second,
            bytes_per_second: 1e6 * packets_per_second,
            messages: [("ch_nic_send".to_owned(), sends)].into(),
            on_cards: 256,
        }
    }

    fn report() -> Report {
        // Two seconds each: 2, 4 and 8 packets.
        let host =
            [1.0, 2.0, 4.0].map(|rate| seen(rate, &[("tcp", 6_000.0), (PROGRAM, 1_000.0)], 0.0));
        let cards = [2.0; 3].map(|rate| seen(rate, &[(BYPASS, 600.0)], 1.0));
        let row = Row {
            connections: 256,
            cards: 1,
            load: Load::Named,
            host: Side::of(&host, 2),
            offloaded: Side::of(&cards, 2),
            published: MESSAGES[1].2,
        };
        let spec = HandoffSpec {
            seconds: 2,
            rounds: 3,
            only: None,
        };
        let web = Row {
            connections: 1_024,
            load: Load::Web,
            published: WEB[1].2,
            ..row.clone()
        };
        let mut report = Report::new(spec);
        report.rows = vec![row, web];
        report.notes = vec!["a <note>".to_owned()];
        report
    }

    #[test]
    fn medians_are_for_a_packet_and_leave_the_program_out() {
        let report = report();
        let Row {
            host, offloaded, ..
        } = &report.rows[0];
        assert_eq!((host.stack_ns, host.host_ns[PROGRAM]), (1_500.0, 250.0));
        assert_eq!(host.all_ns, 11_000.0 / 4.0);
        assert_eq!(offloaded.stack_ns, 150.0);
        assert_eq!(offloaded.messages["ch_nic_send"], 0.5);
        let totals = report.totals();
        let row = ["256, 1 card, named", "256", "1500", "150", "-90 %", "-84 %"];
        assert_eq!(totals.rows[0][..6], row);
        let of_card = report.card();
        assert_eq!(of_card.rows[0], ["ip", "375", "75 %"]);
        let messages = report.messages();
        assert_eq!(
            messages.rows[0],
            ["256, 1 card, named", "0.500", "0.500", "8.0"]
        );
    }

    #[test]
    fn throughput_is_of_web_servers_and_of_a_full_host() {
        let report = report();
        let Side {
            mbits, host_in_use, ..
        } = report.rows[1].host;
        assert_eq!((mbits, host_in_use), (16.0, 7_000.0 / 2e9));
        let table = report.throughput();
        assert_eq!(table.rows.len(), 1);
        let row = &table.rows[0];
        assert_eq!(row[..3], ["1024, 1 card, web", "2", "2"]);
        assert_eq!(row[3..7], ["16", "16", "+0 %", "192, 222: +16 %"]);
        assert_eq!(row[11], "+1067 %");
    }

    #[test]
    fn the_page_has_each_table_and_note() {
        let report = report();
        let page = page(&report);
        for (_, title, _) in report.tables() {
            assert!(page.contains(title), "{title}");
        }
        assert!(page.contains("a &lt;note&gt;") && page.contains("1500 ns"));
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median([4.0, 1.0, 3.0, f64::NAN, 2.0].into_iter()), 2.5);
        assert_eq!(median(std::iter::empty()), 0.0);
    }
}
