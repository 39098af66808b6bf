//! Reads a whole ClientHello message (RFC 8446, section 4.1.2).

use core::net::IpAddr;

use super::error::TlsError;

/// The most extensions that a hello may have. Browsers send about twenty.
pub const EXTENSIONS_MAX: usize = 128;

/// The most protocol names that a hello may offer.
pub const ALPN_NAMES_MAX: usize = 64;

const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
/// RFC 9849, section 5.
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;

const HOST_NAME: u8 = 0;
const NAME_BYTES_MAX: usize = 255;
const RANDOM_BYTES: usize = 32;
const SESSION_ID_BYTES_MAX: usize = 32;

/// The unencrypted parameters of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    /// The name of the server that the client wants (RFC 6066, section 3): lower-case, without a
    /// trailing dot. `None` too when the client wrongly sent an address there.
    pub sni: Option<String>,
    /// The protocols that the client offers, the one it likes best first (RFC 7301). Any bytes.
    pub alpn: Vec<Vec<u8>>,
    /// Bytes from the connection's first to the end of the record that ends the hello.
    pub len: usize,
    /// The version field of the hello; 0x0303 for TLS 1.2 and 1.3.
    pub legacy_version: u16,
    /// True if there is an `encrypted_client_hello` extension; `sni` is then the name of the server
    /// that can decrypt it. Clients also send the extension with random content, which is
    /// indistinguishable.
    pub has_ech: bool,
}

impl ClientHello {
    /// Reads the body of the message; `len` is for [`ClientHello::len`].
    pub(super) fn parse(body: &[u8], len: usize) -> Result<Self, Broken> {
        let mut body = Reader { rest: body, at: 0 };
        let legacy_version = body.u16()?;
        if legacy_version >> 8 != 3 {
            return Err((TlsError::HelloVersion, 0));
        }
        body.take(RANDOM_BYTES)?;
        let session_id = body.vector8()?;
        if session_id.rest.len() > SESSION_ID_BYTES_MAX {
            return Err(session_id.broken(TlsError::BadLength));
        }
        let cipher_suites = body.vector16()?;
        if !cipher_suites.rest.len().is_multiple_of(2) {
            return Err(cipher_suites.broken(TlsError::BadLength));
        }
        let compression_methods = body.vector8()?;
        for offered in [&cipher_suites, &compression_methods] {
            if offered.is_empty() {
                return Err(offered.broken(TlsError::NothingOffered));
            }
        }
        let mut hello = Self {
            sni: None,
            alpn: Vec::new(),
            len,
            legacy_version,
            has_ech: false,
        };
        // Hellos before TLS 1.2 may end here (RFC 5246, section 7.4.1.2).
        if !body.is_empty() {
            let extensions = body.vector16()?;
            body.end()?;
            hello.extensions(extensions)?;
        }
        Ok(hello)
    }

    fn extensions(&mut self, mut extensions: Reader<'_>) -> Result<(), Broken> {
        let mut seen = Vec::with_capacity(32);
        while !extensions.is_empty() {
            let at = extensions.at;
            let kind = extensions.u16()?;
            let content = extensions.vector16()?;
            if seen.contains(&kind) {
                return Err((TlsError::ExtensionRepeated, at));
            }
            if seen.len() == EXTENSIONS_MAX {
                return Err((TlsError::TooManyExtensions, at));
            }
            seen.push(kind);
            match kind {
                SERVER_NAME => self.sni = server_name(content)?,
                ALPN => self.alpn = protocols(content)?,
                ENCRYPTED_CLIENT_HELLO => self.has_ech = true,
                _ => {}
            }
        }
        Ok(())
    }
}

/// RFC 6066, section 3: a list of names, of which at most one is a host name; no other kind of name
/// was ever defined.
fn server_name(mut content: Reader<'_>) -> Result<Option<String>, Broken> {
    let mut names = content.vector16()?;
    content.end()?;
    let malformed = names.broken(TlsError::ServerNameMalformed);
    if names.is_empty() || names.u8()? != HOST_NAME {
        return Err(malformed);
    }
    let name = names.vector16()?;
    if !names.is_empty() {
        return Err(names.broken(TlsError::ServerNameMalformed));
    }
    host_name(name.rest).ok_or_else(|| name.broken(TlsError::ServerNameMalformed))
}

/// The name in its comparison form; `Some(None)` for an address, `None` for an invalid name.
fn host_name(name: &[u8]) -> Option<Option<String>> {
    let text = core::str::from_utf8(name).ok()?;
    // Not permitted, but clients connecting to an address send it; it means no name.
    if text.parse::<IpAddr>().is_ok() {
        return Some(None);
    }
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let text = text.strip_suffix('.').unwrap_or(text);
    let written = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let labels_written = text
        .split('.')
        .all(|label| !label.is_empty() && label.bytes().all(written));
    labels_written.then(|| Some(text.to_ascii_lowercase()))
}

/// RFC 7301, section 3.1: a list of at least one name, each of 1 to 255 bytes.
fn protocols(mut content: Reader<'_>) -> Result<Vec<Vec<u8>>, Broken> {
    let mut names = content.vector16()?;
    content.end()?;
    if names.is_empty() {
        return Err(names.broken(TlsError::AlpnMalformed));
    }
    let mut protocols = Vec::new();
    while !names.is_empty() {
        let name = names.vector8()?;
        if name.is_empty() {
            return Err(name.broken(TlsError::AlpnMalformed));
        }
        if protocols.len() == ALPN_NAMES_MAX {
            return Err(name.broken(TlsError::TooManyProtocols));
        }
        protocols.push(name.rest.to_vec());
    }
    Ok(protocols)
}

/// An error, and the offset in the message's body where it was found.
pub(super) type Broken = (TlsError, usize);

/// Takes values off the front of bytes.
struct Reader<'a> {
    rest: &'a [u8],
    /// The offset of `rest` in the body.
    at: usize,
}

impl<'a> Reader<'a> {
    fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// An error at the next byte.
    fn broken(&self, error: TlsError) -> Broken {
        (error, self.at)
    }

    fn end(&self) -> Result<(), Broken> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(self.broken(TlsError::BadLength))
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Broken> {
        let cut = self.rest.split_at_checked(count);
        let (taken, rest) = cut.ok_or_else(|| self.broken(TlsError::BadLength))?;
        self.rest = rest;
        self.at += count;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<u8, Broken> {
        Ok(self.take(1)?.first().copied().unwrap_or_default())
    }

    fn u16(&mut self) -> Result<u16, Broken> {
        Ok(u16::from(self.u8()?) << 8 | u16::from(self.u8()?))
    }

    /// A vector of `len` bytes.
    fn vector(&mut self, len: usize) -> Result<Self, Broken> {
        let at = self.at;
        let rest = self.take(len)?;
        Ok(Self { rest, at })
    }

    /// A vector with a one-byte length.
    fn vector8(&mut self) -> Result<Self, Broken> {
        let len = usize::from(self.u8()?);
        self.vector(len)
    }

    /// A vector with a two-byte length.
    fn vector16(&mut self) -> Result<Self, Broken> {
        let len = usize::from(self.u16()?);
        self.vector(len)
    }
}
