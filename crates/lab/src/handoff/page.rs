//! The report as one page of HTML.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::report::{Report, Row, Side};
use super::samples::PROGRAM;
use crate::html::{self, escaped};

const TITLE: &str = "TCP offload through connection handoff";
/// Numbers stand at the right.
const STYLE: &str = "th,td{text-align:right}th:first-child,td:first-child{text-align:left}";

const COLOURS: [&str; 14] = [
    "#1b6ca8", "#d1495b", "#2e8b57", "#8a5fbf", "#c98a1b", "#3a8f9e", "#7a6c5d", "#b0558f",
    "#5b8c2a", "#4056a1", "#a63d40", "#6b7f82", "#d17b0f", "#2a6f6f",
];
/// Of a bar and of the space for its name, in the drawing's units.
const BAR: f64 = 22.0;
const NAME: f64 = 150.0;
const WIDTH: f64 = 900.0;

/// The page.
pub fn page(report: &Report) -> String {
    let clock = report.mhz.map_or(String::new(), |mhz| {
        format!(" At {mhz:.0} MHz, 1 ns is {:.2} cycles.", mhz / 1_000.0)
    });
    let mut body = format!(
        "<h1>{TITLE}</h1>\n<p>Kim and Rixner (EuroSys 2006) \
         moved connections to a network interface and measured the host's stack. Here the card is \
         a second network stack of Linux with a processor of its own. A program sends messages of \
         {} bytes, one segment each, over all connections in turn; packets are not merged. In \
         the web rows nginx answers clients that ask as SPECweb99's do. {} on \
         Linux {}, {} measurements of {} s, medians.{clock} The paper's processor was an Athlon XP \
         2600+ with 256 KiB of second-level cache, its kernel FreeBSD 4.7.</p>\n",
        report.payload_bytes,
        escaped(&report.processor),
        escaped(&report.kernel),
        report.rounds,
        report.seconds
    );
    body += "<h2>The host's stack for a packet, ns by layer</h2>\n";
    body += &bars(&report.rows);
    for (_, title, table) in report.tables() {
        let _ = write!(body, "<h2>{}</h2>\n{}", escaped(title), html::table(&table));
    }
    for note in &report.notes {
        let _ = writeln!(body, "<p>{}</p>", escaped(note));
    }
    html::page(TITLE, STYLE, &body)
}

/// A bar for each way to carry the connections, made of its layers.
fn bars(rows: &[Row]) -> String {
    let sides = rows.iter().flat_map(|row| {
        let name = |what: &str| format!("{} {}, {what}", row.connections, row.load.name());
        let cards = format!(
            "{} card{}",
            row.cards,
            if row.cards == 1 { "" } else { "s" }
        );
        [(name("host"), &row.host), (name(&cards), &row.offloaded)]
    });
    let sides: Vec<(String, &Side)> = sides.collect();
    let most = sides
        .iter()
        .map(|(_, side)| side.stack_ns)
        .fold(1.0, f64::max);
    let mut colours: BTreeMap<&String, &str> = BTreeMap::new();
    for (_, side) in &sides {
        for name in side.host_ns.keys().filter(|name| *name != PROGRAM) {
            let next = COLOURS[colours.len() % COLOURS.len()];
            colours.entry(name).or_insert(next);
        }
    }
    let legend = (colours.len() as f64 / 4.0).ceil() * 16.0;
    let height = sides.len() as f64 * BAR + legend + 12.0;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n");
    for (at, (name, side)) in sides.iter().enumerate() {
        let y = at as f64 * BAR;
        let _ = writeln!(
            svg,
            "<text x=\"0\" y=\"{:.1}\">{}</text>",
            y + 14.0,
            escaped(name)
        );
        let mut x = NAME;
        for (layer, ns) in side.host_ns.iter().filter(|(layer, _)| *layer != PROGRAM) {
            let width = ns / most * (WIDTH - NAME - 60.0);
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" \
                 fill=\"{}\"><title>{}: {ns:.0} ns</title></rect>",
                y + 2.0,
                BAR - 5.0,
                colours[layer],
                escaped(layer)
            );
            x += width;
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\">{:.0} ns</text>",
            x + 4.0,
            y + 14.0,
            side.stack_ns
        );
    }
    for (at, (name, colour)) in colours.iter().enumerate() {
        let (x, y) = (at % 4, at / 4);
        let x = x as f64 * WIDTH / 4.0;
        let y = sides.len() as f64 * BAR + 16.0 * y as f64 + 12.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            y - 9.0,
            x + 14.0,
            escaped(name)
        );
    }
    svg + "</svg>\n"
}
