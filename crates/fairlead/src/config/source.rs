//! The text of a configuration file: positions in it and excerpts from it.

use super::diagnostic::Span;

/// The file's name and text.
#[derive(Clone, Debug)]
pub(super) struct Source {
    name: String,
    text: String,
}

/// One line of the file, made safe for a terminal, with what goes under it.
#[derive(Debug)]
pub(super) struct Excerpt {
    pub(super) text: String,
    pub(super) indent: String,
    pub(super) carets: String,
}

/// The longest excerpt of a line, characters; longer lines are shown around the place in question.
const EXCERPT_CHARS_MAX: usize = 120;
/// How much of a long line is shown before the place in question, characters.
const EXCERPT_LEAD_CHARS: usize = 40;

impl Source {
    pub(super) fn new(name: &str, text: &str) -> Self {
        Self {
            name: name.to_owned(),
            text: text.to_owned(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The nearest character boundary at or before `at`, within the text.
    fn boundary(&self, at: usize) -> usize {
        let mut at = at.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        at
    }

    fn line_start(&self, at: usize) -> usize {
        self.text[..at].rfind('\n').map_or(0, |newline| newline + 1)
    }

    /// Line and column, both from 1; the column counts characters.
    pub(super) fn position(&self, at: usize) -> (usize, usize) {
        let at = self.boundary(at);
        let line = self.text[..at]
            .bytes()
            .filter(|&byte| byte == b'\n')
            .count()
            + 1;
        let column = self.text[self.line_start(at)..at].chars().count() + 1;
        (line, column)
    }

    /// The line in which `span` begins and the carets under the part of it that is meant.
    pub(super) fn excerpt(&self, span: &Span) -> Excerpt {
        let at = self.boundary(span.start);
        let start = self.line_start(at);
        let line = self.text[start..].split('\n').next().unwrap_or_default();
        let line = line.strip_suffix('\r').unwrap_or(line);
        let end = self
            .boundary(span.end)
            .clamp(at, (start + line.len()).max(at));
        let before = self.text[start..at].chars().count();
        let width = self.text[at..end].chars().count().max(1);

        let from = if line.chars().count() > EXCERPT_CHARS_MAX {
            before.saturating_sub(EXCERPT_LEAD_CHARS)
        } else {
            0
        };
        let mut text = String::new();
        let mut indent = String::new();
        for (index, letter) in line.chars().enumerate().skip(from).take(EXCERPT_CHARS_MAX) {
            // What the file holds must not drive the terminal.
            text.push(if letter.is_control() && letter != '\t' {
                '\u{fffd}'
            } else {
                letter
            });
            if index < before {
                indent.push(if letter == '\t' { '\t' } else { ' ' });
            }
        }
        let room = EXCERPT_CHARS_MAX.saturating_sub(before - from).max(1);
        Excerpt {
            text,
            indent,
            carets: "^".repeat(width.min(room)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_characters_from_one() {
        let source = Source::new("f", "a = 1\nä = \"x\"\r\nlast");
        assert_eq!(source.position(0), (1, 1));
        assert_eq!(source.position(5), (1, 6));
        assert_eq!(source.position(6), (2, 1));
        assert_eq!(
            source.position(7),
            (2, 1),
            "inside a character: its beginning"
        );
        assert_eq!(source.position(8), (2, 2));
        assert_eq!(source.position(9_999), (3, 5));
    }

    #[test]
    fn an_excerpt_keeps_tabs_so_that_the_caret_lines_up() {
        let source = Source::new("f", "\tname = 7\r\n");
        let excerpt = source.excerpt(&(8..9));
        assert_eq!(excerpt.text, "\tname = 7");
        assert_eq!(excerpt.indent, "\t       ");
        assert_eq!(excerpt.carets, "^");
    }

    #[test]
    fn a_long_line_is_cut_around_the_place() {
        let text = format!("key = \"{}\" oops", "x".repeat(5_000));
        let at = text.find("oops").unwrap();
        let excerpt = Source::new("f", &text).excerpt(&(at..at + 4));
        assert!(excerpt.text.chars().count() <= EXCERPT_CHARS_MAX);
        assert!(excerpt.text.ends_with("oops"));
        assert_eq!(excerpt.indent.len(), EXCERPT_LEAD_CHARS);
        assert_eq!(excerpt.carets, "^^^^");
    }

    #[test]
    fn a_span_over_several_lines_is_underlined_on_its_first() {
        let excerpt = Source::new("f", "a = [\n1,\n]\n").excerpt(&(4..10));
        assert_eq!(
            (excerpt.text.as_str(), excerpt.carets.as_str()),
            ("a = [", "^")
        );
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let excerpt = Source::new("f", "a = \x1b[2J").excerpt(&(4..5));
        assert_eq!(excerpt.text, "a = \u{fffd}[2J");
    }

    #[test]
    fn the_end_of_an_empty_file_is_a_place() {
        let source = Source::new("f", "");
        assert_eq!(source.position(0), (1, 1));
        assert_eq!(source.excerpt(&(0..0)).carets, "^");
    }
}
