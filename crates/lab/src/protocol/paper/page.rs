//! The study as one page of HTML: claims first, then curves and tables.

use super::drawing::{Curve, curves};
use super::{CONNECTIONS, Scenario, Study};
use crate::html::{self, escaped, table};
use crate::protocol::machine::{Machine, R4400};
use crate::protocol::report::CYCLES_NOTE;
use crate::protocol::tally::{Part, State};
use crate::table::Table;

const TITLE: &str = "Cache behavior of network protocols";
const STYLE: &str = "svg{max-width:46rem}.no{color:#b3261e}.yes{color:#1c7a3e}\
figure{margin:1.5rem 0}figcaption{font-size:13px;color:#4a5765}";

/// The machine of today in the figures.
const TODAY: &str = "golden-cove";

/// The page.
pub fn page(study: &Study) -> String {
    let mut body = String::from(
        "<h1>Cache behavior of network protocols, then and now</h1>\n<p>The paper (Nahum, Yates, \
         Kurose, Towsley, SIGMETRICS 1997) asked how protocol stacks use caches. Its abstract and \
         introduction are held against the stacks below. Only these parts of the paper were \
         available: its tables and figures are not compared. Its stack, of the x-kernel on MIPS, \
         is not at hand; the question is the same, the code is other code.</p>\n",
    );
    body += &format!("<p>Note: {CYCLES_NOTE}.</p>\n");
    body += &claims(study);
    body += "<h2>Curves</h2>\n";
    body += &size_curves(study, Part::Instruction);
    body += &size_curves(study, Part::Data);
    body += &message_curves(study, R4400);
    body += &message_curves(study, TODAY);
    body += &clock_curves(study);
    body += &connection_curves(study);
    body += "<h2>Packets</h2>\n";
    body += &packets(study);
    body += "<h2>Layers</h2>\n<p>Instructions of a packet by layer of the stack, messages of \
             1,024 bytes.</p>\n";
    body += &layer_table(study);
    body += "<h2>Machines</h2>\n";
    body += &machines(&study.asked.sweep.machines);
    body += "<p>All numbers are in the CSV files and in <code>paper.json</code> beside this \
             page.</p>\n";
    html::page(TITLE, STYLE, &body)
}

fn figure(drawn: &str, caption: &str) -> String {
    if drawn.is_empty() {
        return String::new();
    }
    format!(
        "<figure>\n{drawn}<figcaption>{}</figcaption>\n</figure>\n",
        escaped(caption)
    )
}

fn claims(study: &Study) -> String {
    let mut out = String::from("<h2>Claims</h2>\n");
    for group in study.claims.chunk_by(|a, b| a.says == b.says) {
        out += &format!("<h3>{}</h3>\n<table>\n", escaped(&group[0].says));
        for claim in group {
            let class = match claim.holds {
                Some(true) => "yes",
                Some(false) => "no",
                None => "",
            };
            out += &format!(
                "<tr><td>{}</td><td class=\"{class}\">{}</td><td>{}</td></tr>\n",
                escaped(&claim.trace),
                claim.verdict(),
                escaped(&claim.ours)
            );
        }
        out += "</table>\n";
    }
    out
}

/// Scenarios in which the number of connections is not what is varied.
fn usual(study: &Study) -> impl Iterator<Item = &Scenario> {
    let is_usual = |one: &&Scenario| [1, CONNECTIONS].contains(&one.connections);
    study.scenarios.iter().filter(is_usual)
}

/// The name of a curve: stack and kind of packet.
fn name(one: &Scenario, kind: &str) -> String {
    if one.report.packets.len() > 1 {
        format!("{}: {kind}", one.stack)
    } else {
        one.stack.clone()
    }
}

fn add(curves: &mut Vec<Curve>, name: String, point: (f64, f64)) {
    match curves.iter_mut().find(|(known, _)| *known == name) {
        Some((_, points)) => points.push(point),
        None => curves.push((name, vec![point])),
    }
}

fn size_curves(study: &Study, part: Part) -> String {
    let mut drawn: Vec<Curve> = Vec::new();
    let shown = usual(study).filter(|one| one.size == super::LAYERS_SIZE);
    for one in shown.filter(|one| !one.stack.contains("ipv6")) {
        let rows = one.report.misses.iter().filter(|row| {
            (row.part, row.state, row.line) == (part, State::Warm, 32) && [1, 4].contains(&row.ways)
        });
        for ways in [1, 4] {
            let of_ways = rows.clone().filter(|row| row.ways == ways);
            let mut sizes: Vec<u64> = of_ways.clone().map(|row| row.size.0).collect();
            sizes.sort_unstable();
            sizes.dedup();
            for size in sizes {
                // Over all kinds of packets of the stack.
                let at = of_ways.clone().filter(|row| row.size.0 == size);
                let (misses, packets) = at.fold((0, 0), |(misses, packets), row| {
                    (misses + row.misses, packets + row.packets)
                });
                let per_packet = misses as f64 / packets.max(1) as f64;
                let name = format!("{}, {ways} ways", one.stack);
                add(&mut drawn, name, (size as f64, per_packet));
            }
        }
    }
    let what = part.name();
    let label = format!("{what} misses by size of the cache");
    figure(
        &curves(&label, "bytes of the cache", "misses a packet", &drawn),
        &format!(
            "Misses of a warm packet in {what} caches with lines of 32 bytes, direct-mapped and \
             with 4 ways; messages of 1,024 bytes, all kinds of packets together."
        ),
    )
}

/// Stacks that send and receive messages of any size.
fn has_messages(one: &Scenario) -> bool {
    !one.stack.starts_with("datapath")
}

fn message_curves(study: &Study, machine: &str) -> String {
    let mut drawn: Vec<Curve> = Vec::new();
    for one in usual(study).filter(|one| has_messages(one)) {
        for row in &one.report.machines {
            if row.machine == machine && row.state == State::Warm {
                let mcpi = row.mcpi_instructions + row.mcpi_data;
                add(
                    &mut drawn,
                    name(one, &row.kind),
                    (f64::from(one.size), mcpi),
                );
            }
        }
    }
    figure(
        &curves(
            "memory cycles by size",
            "bytes of the message",
            "MCPI",
            &drawn,
        ),
        &format!("Memory cycles per instruction, warm, on {machine}, by size of the message."),
    )
}

fn clock_curves(study: &Study) -> String {
    let mut drawn: Vec<Curve> = Vec::new();
    for one in usual(study).filter(|one| one.size == super::LAYERS_SIZE) {
        let rows = one.report.clocks.iter();
        for row in rows.filter(|row| row.machine == R4400 && row.state == State::Warm) {
            if has_messages(one) {
                add(&mut drawn, name(one, &row.kind), (row.clock, row.gain));
            }
        }
    }
    figure(
        &curves(
            "gain by clock",
            "clock, times 100 MHz",
            "times as fast",
            &drawn,
        ),
        "What a faster clock gains with memory as before: warm packets of 1,024 bytes, r4400-100.",
    )
}

fn connection_curves(study: &Study) -> String {
    let mut drawn: Vec<Curve> = Vec::new();
    let shown = study.scenarios.iter().filter(|one| one.stack == "datapath");
    for one in shown.filter(|one| one.size == super::LAYERS_SIZE) {
        let rows = one.report.machines.iter();
        for row in rows.filter(|row| row.machine == TODAY && row.state == State::Warm) {
            add(
                &mut drawn,
                row.kind.clone(),
                (f64::from(one.connections), row.cycles.mean),
            );
        }
    }
    for (_, points) in &mut drawn {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    figure(
        &curves(
            "cycles by connections",
            "connections",
            "cycles a packet",
            &drawn,
        ),
        &format!("Cycles of a packet of datapath by the number of connections, warm, on {TODAY}."),
    )
}

fn packets(study: &Study) -> String {
    let mut all = Table::new([
        "stack",
        "bytes",
        "kind",
        "instructions",
        "I lines (32 B)",
        "D lines (32 B)",
        "caches",
        "I misses",
        "D misses",
        "MCPI I",
        "MCPI D",
        "cycles",
    ]);
    for one in usual(study) {
        for row in one
            .report
            .machines
            .iter()
            .filter(|row| row.machine == R4400)
        {
            let same = |packet: &&crate::protocol::report::PacketRow| packet.kind == row.kind;
            let Some(packet) = one.report.packets.iter().find(same) else {
                continue;
            };
            all.row([
                one.stack.clone(),
                one.size.to_string(),
                row.kind.clone(),
                packet.instructions.median.to_string(),
                packet.instruction_lines_32.median.to_string(),
                packet.data_lines_32.median.to_string(),
                row.state.name().to_owned(),
                row.i1_misses.median.to_string(),
                row.d1_misses.median.to_string(),
                format!("{:.2}", row.mcpi_instructions),
                format!("{:.2}", row.mcpi_data),
                row.cycles.median.to_string(),
            ]);
        }
    }
    format!("<p>Medians, on {R4400}.</p>\n{}", table(&all))
}

fn layer_table(study: &Study) -> String {
    let mut all = Table::new(["stack", "kind", "layer", "instructions", "share"]);
    for one in &study.scenarios {
        for row in one.layers.iter().flat_map(|layers| &layers.rows) {
            all.row([
                one.stack.clone(),
                row.kind.clone(),
                row.layer.clone(),
                format!("{:.0}", row.instructions),
                crate::table::percent(row.share),
            ]);
        }
    }
    table(&all)
}

fn machines(machines: &[Machine]) -> String {
    let mut all = Table::new(["machine", "constant", "value", "source"]);
    for machine in machines {
        let mut row = |constant: &str, value: String, source: &str| {
            all.row([&machine.name, constant, &value, source]);
        };
        row(
            "clock",
            format!("{} MHz", machine.clock_mhz.value),
            &machine.clock_mhz.source,
        );
        for (name, shape) in [
            ("I1", &machine.i1),
            ("D1", &machine.d1),
            ("L2", &machine.l2),
        ] {
            let value = format!("{}, {} ways, {} B", shape.size, shape.ways, shape.line);
            row(name, value, &shape.source);
        }
        for (name, latency) in [("L2 hit", &machine.l2_hit), ("memory", &machine.memory)] {
            let value = match (latency.cycles, latency.ns) {
                (Some(cycles), _) => format!("{cycles} cycles"),
                (None, ns) => format!("{} ns", ns.unwrap_or(0.0)),
            };
            row(name, value, &latency.source);
        }
    }
    table(&all)
}
