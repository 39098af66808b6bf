//! Line after line from a source, in bounded memory.

use memchr::{memchr, memrchr};

use crate::builder::Builder;
use crate::error::{Fault, Place, TraceError};
use crate::read::Watch;
use crate::reason::{Passed, Reason, Step};
use crate::source::{BLOCK_BYTES, Source, fill};

/// A format of lines.
pub(crate) trait LineFormat {
    /// Parses one line, without its end, and pushes at most one row.
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<Step, Reason>;
}

/// The line ending of a file with this beginning: a carriage return if there is no other, as on
/// classic Mac OS.
pub(crate) fn end_of(head: &[u8]) -> u8 {
    let has = |byte| memchr(byte, head).is_some();
    if has(b'\r') && !has(b'\n') {
        b'\r'
    } else {
        b'\n'
    }
}

/// Gives all lines of `source` to `format`.
pub(crate) fn read<F: LineFormat>(
    source: &mut Source,
    format: &mut F,
    out: &mut Builder,
    watch: &mut Watch<'_>,
) -> Result<(), TraceError> {
    let mut buffer = vec![0u8; 2 * BLOCK_BYTES];
    let end_of_line = end_of(source.head());
    let mut filled = 0;
    let mut line_number = 0u64;
    let mut in_long_line = false;
    loop {
        let end = (filled + BLOCK_BYTES).min(buffer.len());
        let count = match fill(source, &mut buffer[filled..end]) {
            Ok(count) => count,
            Err(error) => {
                let place = Place::Byte(watch.bytes());
                return Err(watch.error(place, Fault::of_io(error)));
            }
        };
        watch.add_bytes(count as u64);
        let over = count < end - filled;
        filled += count;
        // Whole lines; the last may lack its end.
        let mut whole = memrchr(end_of_line, &buffer[..filled]).map_or(0, |at| at + 1);
        if over {
            whole = filled;
        }
        let mut at = 0;
        while at < whole {
            let len = memchr(end_of_line, &buffer[at..whole]).unwrap_or(whole - at);
            let line = &buffer[at..at + len];
            at += len + 1;
            if std::mem::take(&mut in_long_line) {
                continue;
            }
            line_number += 1;
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let step = match line {
                [] => Ok(Step::Passed(Passed::Blank)),
                line => format.line(line, out),
            };
            if step != Ok(Step::Row) {
                watch.other(Place::Line(line_number), step, out.rows())?;
            }
        }
        if over {
            return Ok(());
        }
        if whole == 0 && filled >= BLOCK_BYTES {
            // What is here of the line is dropped; its end is still to come.
            if !in_long_line {
                line_number += 1;
                let step = Err(Reason::LineLength);
                watch.other(Place::Line(line_number), step, out.rows())?;
            }
            in_long_line = true;
            filled = 0;
        } else {
            buffer.copy_within(whole..filled, 0);
            filled -= whole;
        }
        watch.turn(out.rows())?;
    }
}

/// How many of the first lines of `head` a format can read, and how many there are. The last line
/// counts only when it has an end: `head` may be cut.
pub(crate) fn probe<F: LineFormat>(head: &[u8], mut format: F) -> (usize, usize) {
    const LINES: usize = 50;
    let end_of_line = end_of(head);
    let whole = memrchr(end_of_line, head).map_or(head.len(), |at| at + 1);
    let mut out = Builder::new(LINES as u32 + 1);
    out.keep_unknown_clients();
    let mut seen = 0;
    for line in head[..whole].split(|byte| *byte == end_of_line) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            continue;
        }
        seen += 1;
        // Whether it can be read shows in the rows.
        let _ = format.line(line, &mut out);
        if seen == LINES {
            break;
        }
    }
    (out.rows() as usize, seen)
}
