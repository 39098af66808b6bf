//! The screen: a table, request by request, and the summary.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::net::IpAddr;

use serde_json::Value;

use super::verdict::{Row, show_bytes};
use crate::screen::plural;

/// Where everything is written: standard output, in colour only on a terminal.
pub(super) struct Screen {
    colour: bool,
}

const BOLD: &str = "\x1b[1m";
const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const DIM: &str = "\x1b[2m";

impl Screen {
    /// Looks at standard output and the `NO_COLOR` convention.
    pub(super) fn new() -> Self {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { colour }
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.colour {
            format!("{colour}{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// One line.
    pub(super) fn line(&self, text: &str) {
        // A closed pipe does not affect the requests.
        let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
    }

    /// Announces a step that takes a moment.
    pub(super) fn step(&self, text: &str) {
        self.line(&self.paint(DIM, &format!("{text} ...")));
    }

    /// Who plays.
    pub(super) fn cast(&self, cast: &[(&'static str, String)]) {
        self.line("");
        for (part, player) in cast {
            self.line(&format!(
                "{}  {player}",
                self.paint(BOLD, &format!("{part:<8}"))
            ));
        }
    }

    /// A heading.
    pub(super) fn section(&self, title: &str) {
        self.line("");
        self.line(&self.paint(BOLD, title));
    }

    /// A heading above rows.
    pub(super) fn table(&self, title: &str) {
        self.section(title);
        let head = columns(
            "    ",
            "request",
            "answer",
            "answered by",
            "logged by the switch",
        );
        self.line(&self.paint(DIM, &head));
    }

    /// Below the rows: the client address that the servers saw.
    pub(super) fn seen_as(&self, addresses: &BTreeSet<IpAddr>) {
        let first: Vec<String> = addresses.iter().take(3).map(ToString::to_string).collect();
        let more = if addresses.len() > 3 { ", ..." } else { "" };
        if !first.is_empty() {
            let text = format!(
                "      the servers saw the client as {}{more}",
                first.join(", ")
            );
            self.line(&self.paint(DIM, &text));
        }
    }

    /// A request and how it went.
    pub(super) fn row(&self, request: &str, row: &Row) {
        let mark = if row.faults.is_empty() {
            self.paint(GREEN, "ok  ")
        } else {
            self.paint(RED, "BAD ")
        };
        self.line(&columns(&mark, request, &row.answer, &row.by, &row.why));
        for fault in &row.faults {
            self.line(&self.paint(RED, &format!("      {fault}")));
        }
    }

    /// A request that cannot be shown here.
    pub(super) fn not_shown(&self, request: &str, why: &str) {
        self.line(&columns("--  ", request, "not shown", "", why));
    }

    /// The switch's own counts.
    pub(super) fn summary(&self, status: &Value) {
        self.section("Summary, as the switch counts");
        let number = |name: &str| status.get(name).and_then(Value::as_u64).unwrap_or(0);
        let pairs = |label: &str, text: String| self.line(&format!("  {label:<12} {text}"));
        pairs(
            "connections",
            format!(
                "{} accepted, {} spliced, {}, {} live now",
                number("accepted"),
                number("spliced"),
                plural(number("retries") as usize, "retry"),
                number("live")
            ),
        );
        pairs(
            "packets",
            format!(
                "{} in, {} out; {} by the fast path, {} by the engine",
                number("rx_packets"),
                number("tx_packets"),
                number("fast_packets"),
                number("engine_packets")
            ),
        );
        pairs(
            "bytes",
            format!(
                "{} in, {} out",
                show_bytes(number("rx_bytes")),
                show_bytes(number("tx_bytes"))
            ),
        );
        for line in decisions(status) {
            pairs("decisions", line);
        }
        let counts = |name: &str| match status.get(name) {
            Some(Value::Object(counts)) => counts
                .iter()
                .filter_map(|(name, count)| Some((name, count.as_u64()?)))
                .filter(|(_, count)| *count > 0)
                .map(|(name, count)| format!("{count} {}", name.replace('_', " ")))
                .collect::<Vec<_>>()
                .join(", "),
            _ => String::new(),
        };
        pairs("ended", counts("ended"));
        pairs("by reason", counts("drops"));
    }
}

/// The columns of a row.
fn columns(mark: &str, request: &str, answer: &str, by: &str, why: &str) -> String {
    format!("  {mark}{request:<38}  {answer:<17}  {by:<14}  {why}")
}

/// One line a service: its routes with their counts, and its refusals.
fn decisions(status: &Value) -> Vec<String> {
    let list = |value: &Value, name: &str| {
        value
            .get(name)
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default()
    };
    let text = |value: &Value, name: &str| {
        value
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or("?")
            .to_owned()
    };
    let number = |value: &Value, name: &str| value.get(name).and_then(Value::as_u64).unwrap_or(0);
    let mut lines = Vec::new();
    for service in list(status, "services") {
        let routes: Vec<String> = list(&service, "routes")
            .iter()
            .map(|route| {
                let (name, pool) = (text(route, "name"), text(route, "pool"));
                format!("{name} -> {pool} {}", number(route, "decisions"))
            })
            .collect();
        let (name, refused) = (text(&service, "name"), number(&service, "refused"));
        lines.push(format!("{name}: {}; refused {refused}", routes.join(", ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_read_from_the_status_page() {
        let status = serde_json::json!({
            "services": [{"name": "web", "accepted": 3, "refused": 1, "routes": [
                {"name": "#1", "pool": "images", "decisions": 2},
                {"name": "#2", "pool": "api", "decisions": 0},
            ]}],
        });
        assert_eq!(
            decisions(&status),
            ["web: #1 -> images 2, #2 -> api 0; refused 1"]
        );
        assert!(decisions(&serde_json::json!({})).is_empty());
    }
}
