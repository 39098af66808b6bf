//! UMass YouTube: `time server client kind video content-server`. Times are seconds with a decimal
//! fraction: half of the lines have microseconds, the others what 15 significant digits leave.

use super::word;
use crate::builder::{Builder, Row};
use crate::field;
use crate::hash::hash64;
use crate::lines::LineFormat;
use crate::reason::{Reason, Step};
use crate::stamp::fraction_us;

/// Seconds have ten digits from September 2001 on; fewer are the rest of a line that was cut.
const SECOND_DIGITS: usize = 10;

/// Reads lines of this format.
#[derive(Debug, Default)]
pub(crate) struct Youtube;

impl LineFormat for Youtube {
    fn line(&mut self, line: &[u8], out: &mut Builder) -> Result<Step, Reason> {
        let (stamp, rest) = word(line);
        let time_us = time_us(stamp)?;
        let (server, rest) = word(rest);
        field::v4(server).ok_or(Reason::Fields)?;
        let (client, rest) = word(rest);
        let client = field::v4(client).ok_or(Reason::Client)?;
        let (kind, rest) = word(rest);
        let (video, rest) = word(rest);
        if kind.is_empty() || video.is_empty() || rest.is_empty() {
            return Err(Reason::Fields);
        }
        let client = out.client_v4(client)?;
        out.push(Row {
            object: hash64(video),
            ..Row::new(time_us, client)
        })
    }
}

fn time_us(stamp: &[u8]) -> Result<i64, Reason> {
    let (seconds, micros) = field::cut(stamp, b'.').ok_or(Reason::Time)?;
    if seconds.len() < SECOND_DIGITS {
        return Err(Reason::Cut);
    }
    let micros = fraction_us(micros);
    let seconds = field::number(seconds).filter(|seconds| *seconds < 1 << 40);
    match (seconds, micros) {
        (Some(seconds), Some(micros)) => Ok(seconds as i64 * 1_000_000 + micros),
        _ => Err(Reason::Time),
    }
}
