//! Follows the records that carry a ClientHello.

use std::borrow::Cow;

use super::Scan;
use super::error::TlsError;
use super::hello::ClientHello;
use crate::scan::Fault;

/// The longest content of a record (RFC 8446, section 5.1).
pub const RECORD_BYTES_MAX: usize = 16_384;

/// The longest ClientHello that is read, without its four bytes of type and length: more than a
/// client may send before it hears something. Who uses this may read less.
pub const HELLO_BYTES_MAX: usize = 64 * 1024;

/// The most records over which a ClientHello may be spread.
pub const RECORDS_MAX: usize = 64;

const RECORD_HEADER_BYTES: usize = 5;
const MESSAGE_HEADER_BYTES: usize = 4;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;

/// Scans for a complete ClientHello incrementally. Create one per connection.
#[derive(Clone, Debug, Default)]
pub struct HelloScanner {
    /// All bytes before this have been dealt with.
    at: usize,
    /// Bytes of the record at `at` that are still to come.
    record_left: usize,
    /// Records begun.
    records: usize,
    /// Handshake bytes dealt with.
    message_at: usize,
    /// The message's type and length, as far as `message_at` has come.
    message_header: [u8; MESSAGE_HEADER_BYTES],
    /// The error, and the offset of the byte that shows it.
    failed: Option<(TlsError, u32)>,
    /// Bytes looked at while searching, to hold the promise in tests.
    #[cfg(test)]
    pub(super) looked_at: usize,
}

impl HelloScanner {
    /// Scans the bytes that arrived since the last call. `bytes` is everything from the
    /// connection's first byte on; its beginning must not change between calls. Bytes after the
    /// hello (early data) are ignored.
    pub fn scan(&mut self, bytes: &[u8]) -> Scan<ClientHello, TlsError> {
        if let Some((error, _)) = self.failed {
            return Scan::Malformed(error);
        }
        let hello = match self.follow(bytes) {
            Ok(false) => return Scan::Incomplete,
            Ok(true) => self.parse(bytes),
            Err(error) => Err((error, self.at + header_fault(error))),
        };
        match hello {
            Ok(hello) => Scan::Complete(hello),
            Err((error, at)) => {
                self.failed = Some((error, at as u32));
                Scan::Malformed(error)
            }
        }
    }

    /// What was wrong, once something was.
    pub fn error(&self) -> Option<TlsError> {
        self.failed.map(|(error, _)| error)
    }

    /// Where in `bytes`, those that were shown last, a hello breaks the rule of its error.
    pub fn fault(&self, bytes: &[u8]) -> Option<Fault> {
        let (error, at) = self.failed?;
        Some(Fault::new(error.name(), Some(at as usize), bytes))
    }

    fn parse(&self, bytes: &[u8]) -> Result<ClientHello, (TlsError, usize)> {
        let message = self.message(bytes).map_err(|error| (error, self.at))?;
        let body = message.get(MESSAGE_HEADER_BYTES..).unwrap_or_default();
        ClientHello::parse(body, self.at)
            .map_err(|(error, at)| (error, stream_offset(bytes, MESSAGE_HEADER_BYTES + at)))
    }

    /// True if the records up to `self.at` contain the whole message.
    fn follow(&mut self, bytes: &[u8]) -> Result<bool, TlsError> {
        loop {
            if self.record_left == 0 {
                if self.message_len().is_some_and(|len| self.message_at == len) {
                    return Ok(bytes.len() >= self.at);
                }
                let Some(header) = bytes.get(self.at..) else {
                    return Ok(false);
                };
                let header = &header[..header.len().min(RECORD_HEADER_BYTES)];
                #[cfg(test)]
                {
                    self.looked_at += header.len();
                }
                let Some(len) = record_len(header, self.records == 0)? else {
                    return Ok(false);
                };
                if self.records == RECORDS_MAX {
                    return Err(TlsError::TooManyRecords);
                }
                self.records += 1;
                self.at += RECORD_HEADER_BYTES;
                self.record_left = len;
                self.check_end()?;
            }
            let here = bytes.len().saturating_sub(self.at).min(self.record_left);
            if here == 0 {
                return Ok(false);
            }
            if self.message_at < MESSAGE_HEADER_BYTES {
                self.message_header[self.message_at] = bytes[self.at];
                self.advance(1);
                if self.message_header[0] != CLIENT_HELLO {
                    self.at -= 1;
                    return Err(TlsError::NotClientHello);
                }
                self.check_end()?;
            } else {
                self.advance(here);
            }
        }
    }

    fn advance(&mut self, count: usize) {
        self.at += count;
        self.record_left -= count;
        self.message_at += count;
        #[cfg(test)]
        {
            self.looked_at += 1;
        }
    }

    /// Bytes of the message with its header, once that is here.
    fn message_len(&self) -> Option<usize> {
        let [_, high, middle, low] = self.message_header;
        (self.message_at >= MESSAGE_HEADER_BYTES)
            .then(|| MESSAGE_HEADER_BYTES + u32::from_be_bytes([0, high, middle, low]) as usize)
    }

    /// Checks that the message is not too long and does not end inside the record at hand.
    fn check_end(&self) -> Result<(), TlsError> {
        match self.message_len() {
            Some(len) if len > MESSAGE_HEADER_BYTES + HELLO_BYTES_MAX => Err(TlsError::TooLarge),
            Some(len) if self.message_at + self.record_left > len => {
                Err(TlsError::MessageBehindHello)
            }
            _ => Ok(()),
        }
    }

    /// The message without the record headers; copied only when there are several records.
    fn message<'a>(&self, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, TlsError> {
        let mut rest = bytes.get(..self.at).ok_or(TlsError::BadLength)?;
        if self.records == 1 {
            return Ok(Cow::Borrowed(
                rest.get(RECORD_HEADER_BYTES..).unwrap_or_default(),
            ));
        }
        let mut message = Vec::with_capacity(self.message_at);
        while let [_, _, _, high, low, behind @ ..] = rest {
            let len = usize::from(u16::from_be_bytes([*high, *low]));
            let (content, next) = behind.split_at_checked(len).ok_or(TlsError::BadLength)?;
            message.extend_from_slice(content);
            rest = next;
        }
        Ok(Cow::Owned(message))
    }
}

/// How far behind the beginning of the record at hand an error in its header is.
fn header_fault(error: TlsError) -> usize {
    match error {
        TlsError::RecordVersion => 1,
        TlsError::EmptyRecord | TlsError::RecordTooLong => 3,
        _ => 0,
    }
}

/// Where in the records the byte of the message at this offset is.
fn stream_offset(bytes: &[u8], mut offset: usize) -> usize {
    let mut at = 0;
    while let Some([_, _, _, high, low]) = bytes.get(at..at + RECORD_HEADER_BYTES) {
        let len = usize::from(u16::from_be_bytes([*high, *low]));
        at += RECORD_HEADER_BYTES;
        if offset < len {
            return at + offset;
        }
        offset -= len;
        at += len;
    }
    at
}

/// The content length of a record of whose header `header` has come; `None` until that is whole.
/// Each byte is judged as soon as it is here.
fn record_len(header: &[u8], first: bool) -> Result<Option<usize>, TlsError> {
    match header.first() {
        None => return Ok(None),
        Some(&HANDSHAKE) => {}
        Some(_) if !first => return Err(TlsError::Interleaved),
        Some(_) => return stranger(header).map_or(Ok(None), Err),
    }
    if header.get(1).is_some_and(|&major| major != 3) {
        return Err(TlsError::RecordVersion);
    }
    let [_, _, _, high, low] = header else {
        return Ok(None);
    };
    match usize::from(u16::from_be_bytes([*high, *low])) {
        0 => Err(TlsError::EmptyRecord),
        len if len > RECORD_BYTES_MAX => Err(TlsError::RecordTooLong),
        len => Ok(Some(len)),
    }
}

/// Identifies data that is not TLS; `None` if more bytes are needed.
fn stranger(header: &[u8]) -> Option<TlsError> {
    const METHODS: [&[u8]; 10] = [
        b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ",
    ];
    let here = &header[..header.len().min(4)];
    if METHODS.iter().any(|method| method.starts_with(here)) {
        return (here.len() == 4).then_some(TlsError::PlainHttp);
    }
    // SSL 2.0: two bytes of length with the first bit set, then the message type.
    match header {
        [0x80..=0xff, _, CLIENT_HELLO, ..] => Some(TlsError::Sslv2Hello),
        [0x80..=0xff] | [0x80..=0xff, _] => None,
        _ => Some(TlsError::NotHandshake),
    }
}
