//! Lines on standard error that no filter hides: what keeps the program from starting, and what a
//! configuration file is found to be wrong in. They have the form of the log's other lines.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use super::LogFormat;
use crate::config::{LoadError, Report};
use crate::screen::print_error;

static JSON: AtomicBool = AtomicBool::new(false);

/// The form of all lines from now on.
pub(super) fn set_format(format: LogFormat) {
    JSON.store(format == LogFormat::Json, Ordering::Relaxed);
}

/// Each line is to be a JSON object.
pub(crate) fn is_json() -> bool {
    JSON.load(Ordering::Relaxed)
}

/// Writes an error.
pub(crate) fn print_line(text: &str) {
    print_error(&match is_json() {
        true => object("ERROR", text, Map::new()),
        false => format!("fairlead: {text}\n"),
    });
}

/// Writes why a configuration cannot be loaded.
pub(crate) fn print_load_error(error: &LoadError) {
    match error {
        LoadError::Broken(report) => print_findings(report),
        _ if is_json() => print_line(&error.to_string()),
        _ => print_error(&format!("{error}\n")),
    }
}

/// Writes what was found in a configuration file.
pub(crate) fn print_findings(report: &Report) {
    print_error(&match is_json() {
        true => objects(report),
        false => report.render(false),
    });
}

/// One line for each finding.
fn objects(report: &Report) -> String {
    let mut lines = String::new();
    for finding in report.findings() {
        let Ok(Value::Object(mut fields)) = serde_json::to_value(&finding) else {
            continue;
        };
        let severity = fields.remove("severity");
        let message = fields.remove("message");
        let level = match severity.as_ref().and_then(Value::as_str) {
            Some("warning") => "WARN",
            _ => "ERROR",
        };
        let message = message.as_ref().and_then(Value::as_str).unwrap_or("");
        lines += &object(level, message, fields);
    }
    lines
}

/// A line as the log writes it, with more fields behind the message.
fn object(level: &str, message: &str, fields: Map<String, Value>) -> String {
    let mut line = Map::new();
    let mut time = String::new();
    if SystemTime.format_time(&mut Writer::new(&mut time)).is_ok() {
        line.insert("timestamp".to_owned(), time.into());
    }
    line.insert("level".to_owned(), level.into());
    line.insert("message".to_owned(), message.into());
    line.extend(fields);
    line.insert("target".to_owned(), "fairlead::serve".into());
    format!("{}\n", Value::Object(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_one_object_a_line() {
        let file = "[instance]\nname = 1\nadmim = \"127.0.0.1:9090\"\n";
        let report = crate::config::parse(file, "a.toml").unwrap_err();
        let lines = objects(&report);
        let lines: Vec<Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), report.diagnostics().len());
        assert!(lines.len() >= 2, "{lines:?}");
        assert_eq!(lines[0]["level"], "ERROR");
        assert_eq!(lines[0]["file"], "a.toml");
        assert_eq!(lines[0]["line"], 2);
        let message = lines[0]["message"].as_str().unwrap();
        assert!(message.contains("`name` must be a string"), "{message}");
    }
}
