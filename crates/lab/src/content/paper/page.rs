//! The report as one page of HTML, without scripts and other files.

use super::Report;
use crate::html::escaped;
use crate::paper::{Claim, Figure, Row};
use crate::table::grouped;

/// The page.
pub fn page(report: &Report) -> String {
    let mut out = String::from(HEAD);
    out += "<h1>Content on the network interface</h1>\n";
    out += "<p>The figures of \u{201c}Network Interface Data Caching\u{201d} (Kim, Rixner and \
            Pai, 2005) on the logs at hand: published values beside ours. Shares are of content \
            bytes unless said otherwise.</p>\n";
    out += &logs(report);
    out += "<h2>Claims</h2>\n<table><tr><th>figure<th>log<th>the paper says<th>holds<th>ours\n";
    for figure in &report.figures {
        for claim in &figure.claims {
            out += &claim_row(&figure.id, claim);
        }
    }
    out += "</table>\n";
    for figure in &report.figures {
        out += &section(figure);
    }
    out + "</body></html>\n"
}

fn logs(report: &Report) -> String {
    let mut out = String::from("<h2>Logs</h2>\n<ul>\n");
    for log in &report.logs {
        let part = log.paper_log.map_or_else(String::new, |name| {
            format!(", all or a part of the paper's {name} log")
        });
        let notes: String = log.notes.iter().map(|note| format!("; {note}")).collect();
        let text = format!(
            "{}: {} responses{part}{notes}",
            log.log,
            grouped(log.requests)
        );
        out += &format!("<li>{}\n", escaped(&text));
    }
    for failure in &report.left_out {
        let text = format!("left out: {}: {}", failure.trace, failure.problem);
        out += &format!("<li>{}\n", escaped(&text));
    }
    out += "</ul>\n";
    if !report.absent.is_empty() {
        let absent = report.absent.join(", ");
        out += &format!(
            "<p>Not at hand: the paper's logs {}.</p>\n",
            escaped(&absent)
        );
    }
    out
}

fn claim_row(figure: &str, claim: &Claim) -> String {
    let class = match claim.holds {
        Some(true) => "yes",
        Some(false) => "no",
        None => "open",
    };
    format!(
        "<tr class={class}><td>{}<td>{}<td>{}<td>{}<td>{}\n",
        escaped(figure),
        escaped(&claim.trace),
        escaped(&claim.says),
        claim.verdict(),
        escaped(&claim.ours)
    )
}

fn section(figure: &Figure) -> String {
    let mut out = format!(
        "<h2 id=\"{}\">{}</h2>\n",
        escaped(&figure.id),
        escaped(&figure.title)
    );
    for note in &figure.notes {
        out += &format!("<p class=note>{}</p>\n", escaped(note));
    }
    let mut logs: Vec<&str> = figure.rows.iter().map(|row| row.trace.as_str()).collect();
    logs.dedup();
    logs.sort_unstable();
    logs.dedup();
    for log in logs {
        let rows: Vec<&Row> = figure.rows.iter().filter(|row| row.trace == log).collect();
        out += &format!("<h3>{}</h3>\n", escaped(log));
        if figure.id == "figure-3" || figure.id.starts_with("policies") {
            out += &chart(&rows);
        }
        out += &table(&rows);
    }
    out
}

/// In order of first appearance.
fn distinct<'a>(rows: &[&'a Row], get: fn(&'a Row) -> &'a str) -> Vec<&'a str> {
    let mut seen: Vec<&str> = Vec::new();
    for row in rows {
        if !seen.contains(&get(row)) {
            seen.push(get(row));
        }
    }
    seen
}

/// Series by x.
fn table(rows: &[&Row]) -> String {
    let xs = distinct(rows, |row| &row.x);
    let mut out = String::from("<table><tr><th>");
    for x in &xs {
        out += &format!("<th>{}", escaped(x));
    }
    out.push('\n');
    for series in distinct(rows, |row| &row.series) {
        out += &format!("<tr><td>{}", escaped(series));
        for x in &xs {
            let row = rows.iter().find(|row| row.series == series && row.x == *x);
            out += &format!(
                "<td class=number>{}",
                row.map_or(String::new(), |row| value(row))
            );
        }
        out.push('\n');
    }
    out + "</table>\n"
}

fn value(row: &Row) -> String {
    let show = |value: f64| match value.abs() {
        large if large >= 1_000.0 => grouped(value.round() as u64),
        large if large >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    };
    let mut out = show(row.ours);
    if let Some(spread) = row.spread {
        out += &format!(" ± {spread:.3}");
    }
    if let Some(published) = row.published {
        out += &format!(" <span class=published>({})</span>", show(published));
    }
    if row.fitted {
        out += " fitted";
    }
    if row.synthetic {
        out += " synthetic";
    }
    out
}

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 50.0;
const BOTTOM: f64 = 30.0;
/// For lines of a chart.
const COLOURS: [&str; 8] = [
    "#1b6ca8", "#c0392b", "#27855a", "#8e5ba6", "#b9770e", "#444444", "#17a2a2", "#d0508f",
];

/// Lines of shares over sizes.
fn chart(rows: &[&Row]) -> String {
    let xs = distinct(rows, |row| &row.x);
    let across =
        |at: usize| LEFT + (WIDTH - LEFT - 200.0) * at as f64 / (xs.len().max(2) - 1) as f64;
    let up = |share: f64| (HEIGHT - BOTTOM) - (HEIGHT - BOTTOM - 10.0) * share.clamp(0.0, 1.0);
    let mut out = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=img>\n");
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        let y = up(share);
        out += &format!(
            "<line x1={LEFT} x2={} y1={y:.1} y2={y:.1} class=grid /><text x={} y={:.1} \
             text-anchor=end>{:.0} %</text>\n",
            across(xs.len().max(1) - 1),
            LEFT - 5.0,
            y + 4.0,
            share * 100.0
        );
    }
    for (at, x) in xs.iter().enumerate() {
        let y = HEIGHT - BOTTOM + 16.0;
        let here = across(at);
        out += &format!(
            "<text x={here:.1} y={y} text-anchor=middle>{}</text>\n",
            escaped(x)
        );
    }
    for (number, series) in distinct(rows, |row| &row.series).into_iter().enumerate() {
        let points: String = xs
            .iter()
            .enumerate()
            .filter_map(|(at, x)| {
                let row = rows
                    .iter()
                    .find(|row| row.series == series && row.x == *x)?;
                Some(format!("{:.1},{:.1} ", across(at), up(row.ours)))
            })
            .collect();
        let colour = COLOURS[number % COLOURS.len()];
        let dash = if number >= COLOURS.len() {
            " stroke-dasharray=\"5 3\""
        } else {
            ""
        };
        let y = 14.0 + 15.0 * number as f64;
        out += &format!(
            "<polyline points=\"{points}\" fill=none stroke=\"{colour}\"{dash} />\
             <text x={} y={y} fill=\"{colour}\">{}</text>\n",
            WIDTH - 190.0,
            escaped(series)
        );
    }
    out + "</svg>\n"
}

const HEAD: &str = "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>\n\
<meta name=viewport content=\"width=device-width\">\n\
<title>Content on the network interface</title>\n<style>\n\
body { font: 15px/1.45 sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }\n\
table { border-collapse: collapse; margin: 0.5em 0 1em; font-size: 13px }\n\
th, td { border: 1px solid #ccc; padding: 2px 7px; text-align: left }\n\
td.number { text-align: right; white-space: nowrap }\n\
tr.no td:nth-child(4) { background: #fbe3e0 }\n\
tr.yes td:nth-child(4) { background: #e2f3e6 }\n\
.note, .published { color: #555 }\n\
svg { width: 100%; max-width: 780px; display: block; font-size: 11px }\n\
svg polyline { stroke-width: 1.6 }\nsvg .grid { stroke: #ddd }\n\
</style></head><body>\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_add_markup() {
        assert_eq!(escaped("<b>\"&"), "&lt;b&gt;&quot;&amp;");
    }
}
