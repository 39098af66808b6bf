//! `fairlead-bench compare`: two records of one kind, number by number.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

/// Compares two records of one kind.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// The older record, a JSON file.
    before: PathBuf,
    /// The newer record.
    after: PathBuf,
    /// Only numbers whose name contains this, as `ratio_to` or `keep-alive, 1KiB`.
    #[arg(long, default_value = "")]
    only: String,
}

/// Prints each number that both records have.
pub(crate) fn run(arguments: &Compare) -> Result<()> {
    let (before, after) = (read(&arguments.before)?, read(&arguments.after)?);
    for (name, record) in [("before", &before), ("after", &after)] {
        let command = record["command"].as_str().unwrap_or("unknown");
        println!("{name}: {command}, commit {}", record["commit"]);
    }
    if before["machine"] != after["machine"] {
        println!(
            "the machines differ: {} and {}",
            before["machine"], after["machine"]
        );
    }
    let rows = rows(result(&before), result(&after), &arguments.only);
    ensure!(!rows.is_empty(), "the records have no number in common");
    for (name, before, after) in rows {
        let change = match before == 0.0 {
            true => String::new(),
            false => format!("{:+.1} %", (after / before - 1.0) * 100.0),
        };
        println!("{name:<75} {before:>14.3} {after:>14.3} {change:>10}");
    }
    Ok(())
}

fn read(path: &Path) -> Result<Value> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not a record", path.display()))
}

fn result(record: &Value) -> &Value {
    record.get("result").unwrap_or(record)
}

/// The numbers that both values have under one name, in the order of the first. Lists of numbers
/// (the rounds) are left out; the medians stand beside them.
fn rows(before: &Value, after: &Value, only: &str) -> Vec<(String, f64, f64)> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    flatten(before, String::new(), &mut ours);
    flatten(after, String::new(), &mut theirs);
    let both = ours.into_iter().filter_map(|(name, before)| {
        let (_, after) = theirs.iter().find(|(other, _)| *other == name)?;
        name.contains(only).then_some((name, before, *after))
    });
    both.collect()
}

fn flatten(value: &Value, name: String, into: &mut Vec<(String, f64)>) {
    let below = |part: &str| match name.is_empty() {
        true => part.to_owned(),
        false => format!("{name} / {part}"),
    };
    match value {
        Value::Number(number) => into.extend(number.as_f64().map(|number| (name, number))),
        Value::Object(fields) => {
            for (field, value) in fields {
                flatten(value, below(field), into);
            }
        }
        Value::Array(rows) => {
            for row in rows.iter().filter(|row| row.is_object()) {
                flatten(row, below(&title(row)), into);
            }
        }
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// What a row is about: its fields that are text, and those that were chosen, not measured.
fn title(row: &Value) -> String {
    let chosen = [
        "connections",
        "open",
        "payload_bytes",
        "capacity_bytes",
        "lines",
    ];
    let fields = row.as_object().into_iter().flatten();
    let parts = fields.filter_map(|(name, value)| match value {
        Value::String(text) if name != "best_peer" => Some(text.clone()),
        Value::Bool(flag) => Some(format!("{name} {flag}")),
        Value::Number(number) if chosen.contains(&name.as_str()) => {
            Some(format!("{name} {number}"))
        }
        _ => None,
    });
    parts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_are_matched_by_what_they_are_about() {
        let record = |order: [(&str, f64); 2]| {
            let row = |(size, ratio): (&str, f64)| {
                json!({"kind": "keep-alive", "size": size, "best_peer": "nginx",
                    "ratio": ratio, "all_rates": [1, 2]})
            };
            json!({"rounds": 5, "cells": order.map(row)})
        };
        let before = record([("1KiB", 1.5), ("64KiB", 2.0)]);
        let after = record([("64KiB", 1.0), ("1KiB", 3.0)]);
        assert_eq!(
            rows(&before, &after, "ratio"),
            [
                ("cells / keep-alive, 1KiB / ratio".to_owned(), 1.5, 3.0),
                ("cells / keep-alive, 64KiB / ratio".to_owned(), 2.0, 1.0),
            ]
        );
        assert_eq!(rows(&before, &after, "").len(), 3);
        assert!(rows(&before, &json!({}), "").is_empty());
    }
}
