//! Where in a plan something is wrong: the line, the table and the key.

use std::str::FromStr;

use fairlead_trace::Format;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{LabError, in_words};
use crate::load::StreamSpec;

/// A table of a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// The plan.
    pub(super) text: &'a str,
    /// What its file is called.
    pub(super) file: &'a str,
    /// `trace` or `run`.
    pub(super) list: &'a str,
    /// Which of these, from 0.
    pub(super) at: usize,
}

impl Place<'_> {
    /// Finds errors that would otherwise show only when the trace is read, in the middle of the
    /// sweep.
    pub(super) fn check(&self, spec: &StreamSpec) -> Result<(), LabError> {
        if let Some(problem) = spec.expansion.complaint() {
            let key = problem.split(' ').next().unwrap_or_default();
            return Err(self.error(&["expansion", key], &format!("expansion: {problem}")));
        }
        if let Some((list, problem)) = spec.workload_complaint() {
            let key = problem.split([':', ' ']).next().unwrap_or_default();
            return Err(self.error(&[list, key], &format!("{list}: {problem}")));
        }
        match spec.format.as_deref().map(Format::from_str) {
            Some(Err(error)) => Err(self.complain(&format!("format: {error}"))),
            _ => Ok(()),
        }
    }

    /// What is wrong in this table. The key is the first word of `problem`, if it is one's.
    pub(super) fn complain(&self, problem: &str) -> LabError {
        let first = problem.trim_start_matches('-');
        let key = first.split([':', ' ']).next().unwrap_or_default();
        self.error(&[key], problem)
    }

    /// What a value cannot be: the key is the one that the error names.
    pub(super) fn wrong(&self, error: &toml::de::Error) -> LabError {
        let message = in_words(error.message());
        let said = error.to_string();
        // For values without a position, the error names the key in its last line.
        let path = said
            .rsplit_once("\nin `")
            .map_or("", |(_, path)| path.trim_end().trim_end_matches('`'));
        let mut keys: Vec<&str> = path.split('.').filter(|key| !key.is_empty()).collect();
        let problem = match path {
            "" => message.clone(),
            _ => format!("{path}: {message}"),
        };
        let unknown = message.strip_prefix("unknown field `");
        keys.extend(unknown.and_then(|rest| rest.split('`').next()));
        self.error(&keys, &problem)
    }

    fn error(&self, keys: &[&str], problem: &str) -> LabError {
        let line = line_of(self.text, Some((self.list, self.at)), keys);
        LabError::Plan {
            place: self.file.to_owned(),
            problem: format!(
                "line {line}: [[{}]] number {}: {problem}",
                self.list,
                self.at + 1
            ),
        }
    }
}

/// The line of a key of a plan, or of that of the tables it is in which is there; `table` is a list
/// of tables and which of them.
pub(super) fn line_of(text: &str, table: Option<(&str, usize)>, keys: &[&str]) -> usize {
    let start = start_of(text, table, keys).unwrap_or_default();
    text[..start.min(text.len())].matches('\n').count() + 1
}

fn start_of(text: &str, table: Option<(&str, usize)>, keys: &[&str]) -> Option<usize> {
    let whole = DeTable::parse(text).ok()?;
    let mut within = whole.get_ref();
    let mut start = None;
    if let Some((list, at)) = table {
        let (_, tables) = found(within, list)?;
        let one = tables.get_ref().as_array()?.get(at)?;
        start = Some(one.span().start);
        within = one.get_ref().as_table()?;
    }
    for key in keys {
        let Some((name, value)) = found(within, key) else {
            break;
        };
        start = Some(name.span().start);
        match value.get_ref() {
            DeValue::Table(table) => within = table,
            _ => break,
        }
    }
    start
}

type Name<'a> = Spanned<std::borrow::Cow<'a, str>>;

fn found<'t, 'a>(
    table: &'t DeTable<'a>,
    key: &str,
) -> Option<(&'t Name<'a>, &'t Spanned<DeValue<'a>>)> {
    table.iter().find(|(name, _)| name.get_ref() == key)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::plan::Plan;

    const TRACE: &str = "[[trace]]\nzipf = { ids = 10 }\n";
    const RUN: &str = "[[run]]\nscheme = 'mod'\n";

    fn said(text: &str) -> String {
        let wrong = Plan::parse(text, "p.toml", Path::new("")).expect_err(text);
        wrong.to_string()
    }

    #[test]
    fn errors_have_line_and_key() {
        let two = format!("# a plan\n{TRACE}{RUN}");
        for (text, begin) in [
            (
                format!("{two}ways = 1.5\n"),
                "line 6: [[run]] number 1: ways: ",
            ),
            (
                format!("{two}ways = [4, 'x']\n"),
                "line 6: [[run]] number 1: ways: ",
            ),
            (
                format!("{two}capacity = ['16K', '33Q']\n"),
                "line 6: [[run]] number 1: capacity: unknown unit",
            ),
            (
                format!("{two}{RUN}seed = 'x'\n"),
                "line 8: [[run]] number 2: seed: ",
            ),
            (
                format!("{two}wys = 4\n"),
                "line 6: [[run]] number 1: unknown field `wys`",
            ),
            (
                format!("{two}ways = []\n"),
                "line 6: [[run]] number 1: ways = []",
            ),
            (
                format!("{two}ways = {{ from = 1, to = 8 }}\n"),
                "line 6: [[run]] number 1: ways: write",
            ),
            (
                format!("{two}ways = 3\n"),
                "line 4: [[run]] number 1: --capacity",
            ),
            (
                format!("{RUN}[[trace]]\nzipf = {{ idz = 10 }}\n"),
                "line 4: [[trace]] number 1: zipf: unknown field `idz`",
            ),
            (
                format!("{RUN}[[trace]]\npath = 'x'\n[trace.expansion]\nperiods = -1\n"),
                "line 6: [[trace]] number 1: expansion.periods: ",
            ),
            (
                format!("{RUN}[[trace]]\nseed = 1\n"),
                "line 3: [[trace]] number 1: write one of",
            ),
            (
                format!("{RUN}[[trace]]\npath = 'x'\nexpansion = {{ periods = 0 }}\n"),
                "line 5: [[trace]] number 1: expansion: periods must be",
            ),
            (
                format!("{RUN}[[trace]]\npath = 'x'\nformat = 'zzz'\n"),
                "line 5: [[trace]] number 1: format: unknown format",
            ),
            (
                format!("{RUN}[[trace]]\n[trace.standard]\nseconds = 1\nburst_mean = [6, 0.5]\n"),
                "line 6: [[trace]] number 1: standard: burst_mean must be 1",
            ),
            (
                format!("{RUN}[[trace]]\nstandard = {{ seconds = 1e12 }}\n"),
                "line 4: [[trace]] number 1: standard: more than",
            ),
            (
                format!("{RUN}[[trace]]\nzipf = {{ alpha = -1.0 }}\n"),
                "line 4: [[trace]] number 1: zipf: alpha must be",
            ),
            (
                format!("{TRACE}{RUN}scheme = 'spec'\n"),
                "line 5: duplicate scheme",
            ),
            (
                format!("\nseeds = 0\n{two}"),
                "line 2: seeds: write a number",
            ),
        ] {
            let said = said(&text);
            assert!(
                said.starts_with(&format!("p.toml: {begin}")),
                "{said}\n{text}"
            );
        }
    }
}
