//! Gzip data: consecutive members, and zero padding after the last one from tapes or disks.

use core::fmt;
use std::io::{self, BufRead, Read};

use flate2::bufread::GzDecoder;

pub(crate) const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// What follows a whole member is neither another nor zeros. The error inside an [`io::Error`].
#[derive(Debug)]
pub(crate) struct NotGzip;

impl fmt::Display for NotGzip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("what follows is no gzip")
    }
}

impl core::error::Error for NotGzip {}

/// Reads the members' content. flate2's multi-member reader takes anything that follows for another
/// member and reports it as truncated.
pub(crate) struct Members<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Members<R> {
    /// `raw` starts with a member.
    pub(crate) fn new(raw: R) -> Self {
        Self(Some(GzDecoder::new(raw)))
    }
}

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let count = member.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            if let Some(member) = self.0.take() {
                self.0 = next(member.into_inner())?;
            }
        }
        Ok(0)
    }
}

/// The member that follows; `None` at the end.
fn next<R: BufRead>(mut raw: R) -> io::Result<Option<GzDecoder<R>>> {
    let mut is_filled_up = false;
    loop {
        let rest = raw.fill_buf()?;
        if rest.is_empty() {
            return Ok(None);
        }
        let zeros = rest.iter().take_while(|byte| **byte == 0).count();
        if zeros == 0 {
            // The rest of the magic may not have arrived yet; the member's header check decides
            // then.
            let seen = rest.len().min(GZIP_MAGIC.len());
            let is_member = !is_filled_up && rest[..seen] == GZIP_MAGIC[..seen];
            return match is_member {
                true => Ok(Some(GzDecoder::new(raw))),
                false => Err(io::Error::new(io::ErrorKind::InvalidData, NotGzip)),
            };
        }
        is_filled_up = true;
        raw.consume(zeros);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Cursor, Write};

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn packed(text: &str) -> Vec<u8> {
        let mut out = GzEncoder::new(Vec::new(), Compression::fast());
        out.write_all(text.as_bytes()).unwrap();
        out.finish().unwrap()
    }

    /// Reads concatenated `parts`, a given number of bytes at a time.
    fn all(parts: &[&[u8]], at_once: usize) -> io::Result<String> {
        let raw = BufReader::with_capacity(at_once, Cursor::new(parts.concat()));
        let mut text = String::new();
        Members::new(raw).read_to_string(&mut text).map(|_| text)
    }

    #[test]
    fn only_members_and_zero_padding_are_accepted() {
        let (one, none, two) = (&packed("one "), &packed(""), &packed("two"));
        let zeros = [0u8; 1024];
        for at_once in [1, 2, 64, 4096] {
            for parts in [
                &[&one[..], two][..],
                &[none, one, none, two, none],
                &[one, two, &zeros],
            ] {
                assert_eq!(all(parts, at_once).unwrap(), "one two", "{at_once}");
            }
            for junk in [
                &b"junk"[..],
                b"\n",
                b"\x1f\x9d1",
                b"\0junk",
                &[&zeros, &two[..]].concat(),
            ] {
                let error = all(&[one, two, junk], at_once).unwrap_err();
                // Where the magic is not there at once, the header of gzip's own reader tells.
                let told = error.get_ref().is_some_and(|inner| inner.is::<NotGzip>());
                assert!(
                    told || at_once == 1 && junk[0] == 0x1f,
                    "{at_once}: {error}"
                );
            }
            let error = all(&[one, &two[..two.len() - 1]], at_once).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
