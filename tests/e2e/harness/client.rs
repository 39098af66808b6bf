//! A client that does what no well-behaved one does, and looks at every byte of the answer.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use fairlead_netns::Host;
use fairlead_testkit::stream::{self, Digest};

use super::PATIENCE;
use super::lab::Lab;

/// Bodies up to this length are kept; longer ones are digested only.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// A TCP connection of the client's host.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    ahead: Vec<u8>,
}

/// An HTTP response.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) digest: Digest,
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter();
        all.find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The name in `X-Server`: who answered.
    pub(crate) fn server(&self) -> &str {
        self.header("x-server").unwrap_or("")
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a text body")
    }
}

impl Connection {
    /// Connects from the client's host.
    pub(crate) fn open(lab: &Lab, to: SocketAddr) -> io::Result<Self> {
        Self::open_from(&lab.client, to)
    }

    /// Connects from another host.
    pub(crate) fn open_from(host: &Host, to: SocketAddr) -> io::Result<Self> {
        let stream = host
            .enter(|| TcpStream::connect_timeout(&to, PATIENCE))
            .map_err(io::Error::other)??;
        Self::over(stream)
    }

    /// Takes over a connected stream.
    pub(crate) fn over(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream,
            ahead: Vec::new(),
        })
    }

    /// As [`Self::open`], for tests where nothing else may happen.
    pub(crate) fn to(lab: &Lab, to: SocketAddr) -> Self {
        Self::open(lab, to).unwrap_or_else(|error| panic!("connecting to {to}: {error}"))
    }

    /// The client's own address and port.
    pub(crate) fn local(&self) -> SocketAddr {
        self.stream.local_addr().expect("its own address")
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Sends bytes `range` of stream `seed`.
    pub(crate) fn send_stream(&mut self, seed: u64, from: u64, len: u64) -> io::Result<()> {
        send_stream(&mut self.stream, seed, from, len)
    }

    pub(crate) fn finish_sending(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// A request without a body, and its response.
    pub(crate) fn ask(&mut self, method: &str, host: &str, path: &str) -> io::Result<Response> {
        self.send(format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"))?;
        self.response(method == "HEAD")
    }

    /// Reads a response. `to_head`: it answers a HEAD request and so has no body.
    pub(crate) fn response(&mut self, to_head: bool) -> io::Result<Response> {
        let mut response = self.response_head()?;
        if to_head || matches!(response.status, 100..200 | 204 | 304) {
            return Ok(response);
        }
        if response.header("transfer-encoding").is_some() {
            return Err(io::Error::other("chunked responses are not expected here"));
        }
        let length: Option<u64> = match response.header("content-length") {
            Some(text) => Some(text.parse().map_err(io::Error::other)?),
            None => None,
        };
        let mut left = length.unwrap_or(u64::MAX);
        let mut buffer = vec![0; 256 << 10];
        while left > 0 {
            let want = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
            let count = self.read(&mut buffer[..want])?;
            if count == 0 && length.is_none() {
                break;
            }
            if count == 0 {
                let text = format!("the body ended {left} bytes early");
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
            response.digest.update(&buffer[..count]);
            let room = KEPT_BYTES_MAX
                .saturating_sub(response.body.len())
                .min(count);
            response.body.extend_from_slice(&buffer[..room]);
            left -= count as u64;
        }
        Ok(response)
    }

    /// Reads the status line and the header of a response.
    pub(crate) fn response_head(&mut self) -> io::Result<Response> {
        let end = loop {
            if let Some(at) = self.ahead.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            let mut buffer = [0; 16 << 10];
            let count = self.stream.read(&mut buffer)?;
            if count == 0 {
                let text = format!("closed after {} bytes of a head", self.ahead.len());
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            }
            self.ahead.extend_from_slice(&buffer[..count]);
        };
        let head: Vec<u8> = self.ahead.drain(..end).collect();
        let head = String::from_utf8(head).map_err(io::Error::other)?;
        let mut lines = head.split("\r\n");
        let first = lines.next().unwrap_or("");
        let status = match first.split(' ').collect::<Vec<_>>()[..] {
            [version, status, ..] if version.starts_with("HTTP/1.") => status.parse().ok(),
            _ => None,
        };
        let status =
            status.ok_or_else(|| io::Error::other(format!("not a status line: {first}")))?;
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect();
        Ok(Response {
            status,
            headers,
            body: Vec::new(),
            digest: Digest::new(),
        })
    }

    /// Reads some bytes; what was read beyond a head comes first.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.ahead.is_empty() {
            return self.stream.read(buffer);
        }
        let count = self.ahead.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.ahead[..count]);
        self.ahead.drain(..count);
        Ok(count)
    }

    /// Reads to the end of the stream.
    pub(crate) fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut all = std::mem::take(&mut self.ahead);
        self.stream.read_to_end(&mut all)?;
        Ok(all)
    }

    /// Ends the connection by a RST instead of a FIN.
    pub(crate) fn abort(self) {
        // Closing a socket with a linger time of zero resets the connection (tcp(7)).
        socket2::SockRef::from(&self.stream)
            .set_linger(Some(Duration::ZERO))
            .expect("the option SO_LINGER");
    }
}

/// Writes `len` bytes of stream `seed` from position `from` on.
pub(crate) fn send_stream(out: &mut impl Write, seed: u64, from: u64, len: u64) -> io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    let mut sent = 0;
    while sent < len {
        let count = (len - sent).min(buffer.len() as u64) as usize;
        stream::fill(seed, from + sent, &mut buffer[..count]);
        out.write_all(&buffer[..count])?;
        sent += count as u64;
    }
    Ok(())
}
