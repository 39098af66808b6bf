//! What is wrong with a configuration file, where, and what to write instead.

use std::fmt;
use std::ops::Range;

use serde::Serialize;

use super::source::Source;
use crate::status::plain_line;

/// Byte range in the file.
pub(super) type Span = Range<usize>;

/// A value and where it stands in the file.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) span: Span,
}

impl<T> At<T> {
    pub(super) fn new(value: T, span: Span) -> Self {
        Self { value, span }
    }
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The configuration is not used.
    Error,
    /// It is used, though it hardly means what was meant.
    Warning,
}

impl Severity {
    /// The word in front of the message.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// One finding.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    severity: Severity,
    span: Span,
    message: String,
    help: Option<String>,
    related: Option<(Span, String)>,
}

impl Diagnostic {
    pub(super) fn error(span: &Span, message: impl Into<String>) -> Self {
        Self::of(Severity::Error, span, message.into())
    }

    pub(super) fn warning(span: &Span, message: impl Into<String>) -> Self {
        Self::of(Severity::Warning, span, message.into())
    }

    fn of(severity: Severity, span: &Span, message: String) -> Self {
        Self {
            severity,
            span: span.clone(),
            message,
            help: None,
            related: None,
        }
    }

    /// What to write.
    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Another place in the file that this one contradicts.
    pub(super) fn related(mut self, span: &Span, what: impl Into<String>) -> Self {
        self.related = Some((span.clone(), what.into()));
        self
    }

    /// How bad it is.
    pub fn severity(&self) -> Severity {
        self.severity
    }

    /// What is wrong.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What to write instead, where that can be said.
    pub fn advice(&self) -> Option<&str> {
        self.help.as_deref()
    }
}

/// Where findings are gathered while a file is read. Bounded: a file of nothing but mistakes
/// costs no more than [`FINDINGS_MAX`] messages.
#[derive(Debug, Default)]
pub(super) struct Problems {
    list: Vec<Diagnostic>,
    omitted: usize,
    errors: usize,
    warnings: usize,
    regexes: usize,
}

/// The most findings that are kept, errors before warnings; the rest are counted.
pub const FINDINGS_MAX: usize = 100;
/// The most regular expressions in one file.
pub(super) const REGEXES_MAX: usize = 256;

impl Problems {
    pub(super) fn push(&mut self, diagnostic: Diagnostic) {
        // A value under an earlier name may be read for several tables.
        let same =
            |one: &Diagnostic| one.span == diagnostic.span && one.message == diagnostic.message;
        if self.list.iter().any(same) {
            return;
        }
        let is_error = diagnostic.severity == Severity::Error;
        match is_error {
            true => self.errors += 1,
            false => self.warnings += 1,
        }
        if self.list.len() < FINDINGS_MAX {
            self.list.push(diagnostic);
            return;
        }
        self.omitted += 1;
        let is_warning = |one: &Diagnostic| one.severity == Severity::Warning;
        // Nobody can mend an error that is not shown.
        if is_error && let Some(last) = self.list.iter().rposition(is_warning) {
            self.list[last] = diagnostic;
        }
    }

    /// Asks for one more regular expression. They are the one thing whose memory is not in
    /// proportion to the file's length, so their number has a limit of its own.
    pub(super) fn admit_regex(&mut self) -> bool {
        self.regexes += 1;
        self.regexes <= REGEXES_MAX
    }

    /// True when anything so far forbids using the configuration.
    pub(super) fn any_error(&self) -> bool {
        self.errors > 0
    }

    pub(super) fn into_report(mut self, source: Source) -> Report {
        self.list.sort_by_key(|one| (one.span.start, one.severity));
        Report {
            source,
            list: self.list,
            omitted: self.omitted,
            errors: self.errors,
            warnings: self.warnings,
        }
    }
}

/// Everything found in one file, in the order of the file.
#[derive(Clone, Debug)]
pub struct Report {
    source: Source,
    list: Vec<Diagnostic>,
    omitted: usize,
    errors: usize,
    warnings: usize,
}

/// One finding as other programs read it.
#[derive(Clone, Debug, Serialize)]
pub struct Finding<'a> {
    severity: Severity,
    file: &'a str,
    line: usize,
    column: usize,
    end_line: usize,
    end_column: usize,
    message: &'a str,
    help: Option<&'a str>,
}

impl Report {
    /// True when nothing was found.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// How many errors were found, the ones not kept included.
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// How many warnings were found, the ones not kept included.
    pub fn warnings(&self) -> usize {
        self.warnings
    }

    /// The findings, in the order of the file.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.list
    }

    /// Line and column (both from 1, the column in characters) where a finding begins.
    pub fn position(&self, of: &Diagnostic) -> (usize, usize) {
        self.source.position(of.span.start)
    }

    /// The findings for other programs.
    pub fn findings(&self) -> Vec<Finding<'_>> {
        self.list
            .iter()
            .map(|one| {
                let (line, column) = self.source.position(one.span.start);
                let (end_line, end_column) = self.source.position(one.span.end);
                Finding {
                    severity: one.severity,
                    file: self.source.name(),
                    line,
                    column,
                    end_line,
                    end_column,
                    message: &one.message,
                    help: one.help.as_deref(),
                }
            })
            .collect()
    }

    /// The findings for people: `file:line:column: error: …`, the line, a caret, and what to
    /// write. `color` adds terminal escapes; what the file holds does not drive the terminal.
    pub fn render(&self, color: bool) -> String {
        let paint = |code: &'static str, text: &str| {
            if color {
                format!("\x1b[{code}m{text}\x1b[0m")
            } else {
                text.to_owned()
            }
        };
        let mut out = String::new();
        for one in &self.list {
            let (line, column) = self.source.position(one.span.start);
            let word = match one.severity {
                Severity::Error => paint("1;31", "error"),
                Severity::Warning => paint("1;33", "warning"),
            };
            let place = format!("{}:{line}:{column}", self.source.name());
            out.push_str(&format!(
                "{}: {word}: {}\n",
                paint("1", &place),
                plain_line(&one.message)
            ));
            let excerpt = self.source.excerpt(&one.span);
            out.push_str(&format!(
                "{line:>5} | {}\n      | {}{}\n",
                excerpt.text,
                excerpt.indent,
                paint("1;32", &excerpt.carets),
            ));
            if let Some((span, what)) = &one.related {
                let (line, column) = self.source.position(span.start);
                out.push_str(&format!(
                    "      = see line {line}, column {column}: {what}\n"
                ));
            }
            if let Some(help) = &one.help {
                out.push_str(&format!("      = {}\n", plain_line(help)));
            }
        }
        if self.omitted > 0 {
            out.push_str(&format!("… and {} more of the same file\n", self.omitted));
        }
        out
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Report {}
