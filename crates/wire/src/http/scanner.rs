//! Finds the end of a request head in bytes that arrive bit by bit.

use super::Scan;
use super::error::HeadError;
use super::fault;
use super::head::{FIELDS_MAX, RequestHead};
use super::rules;
use crate::scan::Fault;

/// The longest method that is read. The longest registered one, `UPDATEREDIRECTREF`, has 17.
pub const METHOD_BYTES_MAX: usize = 32;

/// Where in the head the next byte stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Before the request line.
    #[default]
    Start,
    /// Behind the CR of an empty line before the request line.
    StartCr,
    Method,
    /// In the request line, behind the method.
    RequestLine,
    RequestLineCr,
    /// At the beginning of a field line, or of the empty line that ends the head.
    LineStart,
    Field,
    FieldCr,
    /// Behind the CR of the empty line.
    EndCr,
    /// The empty line has been seen.
    Ended,
    Failed(HeadError),
}

/// Looks for the end of a head and remembers how far it has looked, so that a head costs the same
/// however it is cut into arrivals. Make one for each head.
#[derive(Clone, Debug, Default)]
pub struct HeadScanner {
    place: Place,
    /// All bytes before this have been looked at.
    at: usize,
    /// Where the request line begins: 0, or 2 behind an empty line.
    line_at: usize,
    /// Where the first field line begins.
    fields_at: usize,
    field_count: usize,
    /// Bytes looked at while searching, to hold the promise in tests.
    #[cfg(test)]
    pub(super) looked_at: usize,
}

impl HeadScanner {
    /// Looks at what has arrived since the last call. `bytes` is everything from the first byte of
    /// the request on; its beginning must not change between calls. Bytes behind the head (a body,
    /// the next request) may be there; they are not looked at.
    ///
    /// A limit on the bytes is the caller's: give up with [`HeadScanner::too_large`].
    pub fn scan<'a>(&mut self, bytes: &'a [u8]) -> Scan<RequestHead<'a>, HeadError> {
        while self.at < bytes.len() && !matches!(self.place, Place::Ended | Place::Failed(_)) {
            let looked_at = match self.plain_run(bytes) {
                0 => {
                    self.place = self.step(bytes).unwrap_or_else(Place::Failed);
                    1
                }
                run => run,
            };
            self.at += looked_at;
            #[cfg(test)]
            {
                self.looked_at += looked_at;
            }
        }
        match self.place {
            Place::Failed(error) => Scan::Malformed(error),
            Place::Ended => match self.head(bytes) {
                Ok(Some(head)) => Scan::Complete(head),
                Ok(None) => Scan::Incomplete,
                Err(error) => {
                    self.place = Place::Failed(error);
                    Scan::Malformed(error)
                }
            },
            _ => Scan::Incomplete,
        }
    }

    /// What becomes of a head that is not whole within the limit of bytes.
    pub fn too_large(&self) -> HeadError {
        match self.place {
            Place::Start
            | Place::StartCr
            | Place::Method
            | Place::RequestLine
            | Place::RequestLineCr => HeadError::TargetTooLong,
            _ => HeadError::TooLarge,
        }
    }

    /// Where in `bytes`, those that were shown last, a head breaks the rule of `error`.
    pub fn fault(&self, error: HeadError, bytes: &[u8]) -> Fault {
        let looked_at = bytes.get(..self.at).unwrap_or(bytes);
        let at = fault::place(error, looked_at, self.line_at, self.fields_at);
        Fault::new(error.name(), at, bytes)
    }

    /// How many of the next bytes leave the place as it is, found in a loop that is only about
    /// that: most bytes of a head are such.
    fn plain_run(&self, bytes: &[u8]) -> usize {
        let rest = &bytes[self.at..];
        let run = match self.place {
            Place::RequestLine => rest
                .iter()
                .position(|byte| !matches!(byte, b' '..=b'~' | 0x80..)),
            Place::Field => rest
                .iter()
                .position(|byte| !matches!(byte, b'\t' | b' '..=b'~' | 0x80..)),
            _ => return 0,
        };
        run.unwrap_or(rest.len())
    }

    /// The place behind the byte at `self.at`.
    fn step(&mut self, bytes: &[u8]) -> Result<Place, HeadError> {
        let byte = bytes[self.at];
        match (self.place, byte) {
            // RFC 9112, section 2.2: a server should ignore at least one empty line before the
            // request line. One is what clients of old sent behind a body.
            (Place::Start, b'\r') if self.line_at == 0 => Ok(Place::StartCr),
            (Place::Start, b'\n') => Err(HeadError::BareLf),
            (Place::Start, _) if rules::is_token_byte(byte) => Ok(Place::Method),
            (Place::Start, _) => Err(HeadError::NotHttp),
            (Place::StartCr, b'\n') => {
                self.line_at = self.at + 1;
                Ok(Place::Start)
            }
            (Place::Method, b' ') => Ok(Place::RequestLine),
            (Place::Method, _) if !rules::is_token_byte(byte) => Err(if byte == b'\n' {
                HeadError::BareLf
            } else {
                HeadError::BadRequestLine
            }),
            (Place::Method, _) if self.at - self.line_at >= METHOD_BYTES_MAX => {
                Err(HeadError::MethodTooLong)
            }
            (Place::Method, _) => Ok(Place::Method),
            (Place::RequestLineCr, b'\n') => {
                rules::request_line(&bytes[self.line_at..self.at - 1])?;
                self.fields_at = self.at + 1;
                Ok(Place::LineStart)
            }
            (Place::FieldCr, b'\n') => Ok(Place::LineStart),
            (Place::EndCr, b'\n') => Ok(Place::Ended),
            (Place::StartCr | Place::RequestLineCr | Place::FieldCr | Place::EndCr, _) => {
                Err(HeadError::BareCr)
            }
            (_, b'\n') => Err(HeadError::BareLf),
            (Place::RequestLine, b'\r') => Ok(Place::RequestLineCr),
            (Place::RequestLine, b' '..=b'~' | 0x80..) => Ok(Place::RequestLine),
            (Place::LineStart, b'\r') => Ok(Place::EndCr),
            (Place::LineStart, b' ' | b'\t') => Err(HeadError::FoldedLine),
            (Place::LineStart, b':') => Err(HeadError::BadField),
            (Place::LineStart, _) if self.field_count == FIELDS_MAX => {
                Err(HeadError::TooManyFields)
            }
            (Place::LineStart, 0x21..=0x7e | 0x80..) => {
                self.field_count += 1;
                Ok(Place::Field)
            }
            (Place::Field, b'\r') => Ok(Place::FieldCr),
            (Place::Field, b'\t' | b' '..=b'~' | 0x80..) => Ok(Place::Field),
            (Place::RequestLine | Place::LineStart | Place::Field, _) => {
                Err(HeadError::ControlByte)
            }
            (Place::Ended | Place::Failed(_), _) => Ok(self.place),
        }
    }

    /// The head that ends at `self.at`; `None` when the caller has taken bytes away again.
    fn head<'a>(&self, bytes: &'a [u8]) -> Result<Option<RequestHead<'a>>, HeadError> {
        let Some(head) = bytes.get(..self.at) else {
            return Ok(None);
        };
        rules::judge(head, self.line_at, self.fields_at).map(Some)
    }
}
