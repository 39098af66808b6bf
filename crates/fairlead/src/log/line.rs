//! One line about a connection, as text or as a JSON object, in the form of the log's other lines.
//!
//! Written by hand: there may be tens of thousands a second. Whatever a field holds, the line is
//! printable ASCII and stays one line.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use super::LogFormat;

/// The target of all these lines.
pub(super) const TARGET: &str = "fairlead::connection";

/// A line, and its memory for the next one.
#[derive(Debug)]
pub(super) struct Line {
    text: String,
    format: LogFormat,
}

impl Line {
    pub(super) fn new(format: LogFormat) -> Self {
        let text = String::new();
        Self { text, format }
    }

    /// Begins a line.
    pub(super) fn begin(&mut self, message: &str) -> &mut Self {
        self.text.clear();
        let is_json = self.format == LogFormat::Json;
        if is_json {
            self.text.push_str("{\"timestamp\":\"");
        }
        let _ = SystemTime.format_time(&mut Writer::new(&mut self.text));
        self.text.push_str(match self.format {
            LogFormat::Json => "\",\"level\":\"INFO\",\"message\":\"",
            LogFormat::Text => "  INFO ",
        });
        if !is_json {
            self.text.push_str(TARGET);
            self.text.push_str(": ");
        }
        escape(&mut self.text, message);
        if is_json {
            self.text.push('"');
        }
        self
    }

    /// A field that may hold anything.
    pub(super) fn text(&mut self, name: &str, value: &str) -> &mut Self {
        self.name(name);
        self.text.push('"');
        escape(&mut self.text, value);
        self.text.push('"');
        self
    }

    /// The same, if there is a value.
    pub(super) fn text_if(&mut self, name: &str, value: Option<&str>) -> &mut Self {
        match value {
            Some(value) => self.text(name, value),
            None => self,
        }
    }

    /// A field that is shown in letters, digits and punctuation without quotation marks.
    pub(super) fn plain(&mut self, name: &str, value: impl Display) -> &mut Self {
        self.name(name);
        let quote = match self.format {
            LogFormat::Json => "\"",
            LogFormat::Text => "",
        };
        let _ = write!(self.text, "{quote}{value}{quote}");
        self
    }

    /// A number.
    pub(super) fn number(&mut self, name: &str, value: u64) -> &mut Self {
        self.name(name);
        let _ = write!(self.text, "{value}");
        self
    }

    /// Milliseconds with three decimals.
    pub(super) fn millis(&mut self, name: &str, value: Duration) -> &mut Self {
        self.name(name);
        let micros = value.as_micros();
        let _ = write!(self.text, "{}.{:03}", micros / 1_000, micros % 1_000);
        self
    }

    /// Ends the line; its bytes.
    pub(super) fn end(&mut self) -> &[u8] {
        if self.format == LogFormat::Json {
            self.text.push_str(",\"target\":\"");
            self.text.push_str(TARGET);
            self.text.push_str("\"}");
        }
        self.text.push('\n');
        self.text.as_bytes()
    }

    fn name(&mut self, name: &str) {
        match self.format {
            LogFormat::Json => {
                self.text.push_str(",\"");
                self.text.push_str(name);
                self.text.push_str("\":");
            }
            LogFormat::Text => {
                self.text.push(' ');
                self.text.push_str(name);
                self.text.push('=');
            }
        }
    }
}

/// Appends `value` in printable ASCII, as JSON strings are escaped.
fn escape(text: &mut String, value: &str) {
    let mut rest = value;
    while let Some(at) = rest.bytes().position(|byte| !is_plain(byte)) {
        let (plain, special) = rest.split_at(at);
        text.push_str(plain);
        let mut characters = special.chars();
        match characters.next() {
            Some(character @ ('"' | '\\')) => text.extend(['\\', character]),
            Some(character) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(text, "\\u{unit:04x}");
                }
            }
            None => {}
        }
        rest = characters.as_str();
    }
    text.push_str(rest);
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\'
}

#[cfg(test)]
mod tests {
    use fairlead_wire::Asked;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_forms_have_all_fields() {
        let line = |format| {
            let mut line = Line::new(format);
            line.begin("closed").plain("client", "10.0.0.1:4000");
            line.text("path", "/\"a\\\u{1b}\u{e4}\u{1f600}")
                .text_if("sni", None)
                .number("bytes_in", 120)
                .millis("head_ms", Duration::from_micros(12_034));
            String::from_utf8(line.end().to_vec()).unwrap()
        };
        let text = line(LogFormat::Text);
        let (time, rest) = text.split_once("  INFO ").unwrap();
        assert!(time.ends_with('Z') && time.contains('T'), "{time}");
        assert_eq!(
            rest,
            "fairlead::connection: closed client=10.0.0.1:4000 \
             path=\"/\\\"a\\\\\\u001b\\u00e4\\ud83d\\ude00\" bytes_in=120 head_ms=12.034\n"
        );
        let json: serde_json::Value = serde_json::from_str(&line(LogFormat::Json)).unwrap();
        assert_eq!(json["path"], "/\"a\\\u{1b}\u{e4}\u{1f600}");
        assert_eq!(
            (&json["level"], &json["target"]),
            (&"INFO".into(), &TARGET.into())
        );
        assert_eq!(
            (json["bytes_in"].as_u64(), json["head_ms"].as_f64()),
            (Some(120), Some(12.034))
        );
        assert_eq!(json.get("sni"), None);
    }

    proptest! {
        /// Whatever comes from the network: one line, of printable ASCII, that parses.
        #[test]
        fn a_line_is_a_line(
            method in ".{0,20}",
            host in ".{0,300}",
            path in proptest::collection::vec(any::<u8>(), 0..600),
            other in ".{0,300}",
        ) {
            let asked = Asked::http(&method, &host, &path);
            for format in [LogFormat::Text, LogFormat::Json] {
                let mut line = Line::new(format);
                line.begin("closed")
                    .text("subject", asked.as_str())
                    .text_if("host", asked.host())
                    .text_if("path", asked.path())
                    .text("other", &other);
                let bytes = line.end();
                let (last, body) = bytes.split_last().unwrap();
                prop_assert_eq!(*last, b'\n');
                prop_assert!(body.iter().all(|byte| matches!(byte, b' '..=b'~')));
                if format == LogFormat::Json {
                    let parsed: serde_json::Value = serde_json::from_slice(bytes).unwrap();
                    prop_assert_eq!(&parsed["subject"], asked.as_str());
                    prop_assert_eq!(&parsed["other"], other.as_str());
                    prop_assert_eq!(parsed.get("path").and_then(|one| one.as_str()), asked.path());
                }
            }
        }
    }
}
