//! HTTP/1 as the simulated clients and servers speak it. Written apart from the switch's own
//! parser, and only for what these clients and servers say.

use core::fmt::Write as _;

use super::{RequestPlan, body_seed};
use crate::dice::stream_bytes;

/// Names the connection in a request.
pub(crate) const TOKEN_FIELD: &str = "x-token";
/// Says how long a reply's body must be.
pub(crate) const REPLY_FIELD: &str = "x-reply-bytes";
/// Names the server in a reply.
pub(crate) const SERVER_FIELD: &str = "x-server";

/// A request's bytes: request line, the given fields, a token, and a seeded body.
///
/// `body` is its length; `chunked` sends it in chunks of uneven length.
pub fn http_request(
    method: &str,
    target: &str,
    fields: &[(&str, &str)],
    token: u64,
    body: Option<usize>,
    chunked: bool,
    plan: &RequestPlan,
) -> Vec<u8> {
    let mut head = format!("{method} {target} HTTP/1.1\r\n");
    for (name, value) in fields {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    let _ = write!(
        head,
        "X-Token: {token}\r\nX-Reply-Bytes: {}\r\n",
        plan.reply_bytes
    );
    let body = body.map(|len| {
        let mut bytes = vec![0; len];
        stream_bytes(body_seed(token, plan.number, false), 0, &mut bytes);
        bytes
    });
    match (&body, chunked) {
        (Some(_), true) => head += "Transfer-Encoding: chunked\r\n",
        (Some(body), false) => {
            let _ = write!(head, "Content-Length: {}\r\n", body.len());
        }
        (None, _) => {}
    }
    head += "\r\n";
    let mut bytes = head.into_bytes();
    match body {
        Some(body) if chunked => {
            for (number, piece) in body.chunks(1_000 + plan.number * 37).enumerate() {
                let extension = if number % 3 == 1 { ";part=\"a\"" } else { "" };
                bytes.extend(format!("{:x}{extension}\r\n", piece.len()).into_bytes());
                bytes.extend_from_slice(piece);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
        }
        Some(body) => bytes.extend_from_slice(&body),
        None => {}
    }
    bytes
}

/// A head: first line and fields, names in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) first_line: String,
    fields: Vec<(String, String)>,
    pub(crate) len: usize,
}

impl Head {
    /// `None` until the blank line is there; an error for what these peers never send.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<Self>, String> {
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            if bytes.len() > 64 * 1_024 {
                return Err("no end of the head in 64 KiB".to_owned());
            }
            return Ok(None);
        };
        let text = core::str::from_utf8(&bytes[..end]).map_err(|_| "a head that is no text")?;
        let mut lines = text.split("\r\n");
        let first_line = lines.next().unwrap_or_default().to_owned();
        let mut fields = Vec::new();
        for line in lines {
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| format!("no field line: {line:?}"))?;
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Ok(Some(Self {
            first_line,
            fields,
            len: end + 4,
        }))
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(have, _)| have == name)
            .map(|(_, value)| value.as_str())
    }

    pub(crate) fn number(&self, name: &str) -> Option<usize> {
        self.field(name)?.parse().ok()
    }

    /// The fields that a hop does not change: all but those about the connection.
    pub(crate) fn lasting(&self) -> Vec<(&str, &str)> {
        let hop = ["connection", "keep-alive", "proxy-connection"];
        let lasting = self
            .fields
            .iter()
            .filter(|(name, _)| !hop.contains(&name.as_str()));
        lasting
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect()
    }
}

/// Reads a chunked body from its start: `(body, bytes used)` once it is whole.
pub(crate) fn read_chunks(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>, String> {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let Some(line) = bytes[at..].windows(2).position(|two| two == b"\r\n") else {
            return Ok(None);
        };
        let size = core::str::from_utf8(&bytes[at..at + line]).map_err(|_| "a chunk size")?;
        let size = size.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).map_err(|_| format!("a chunk size {size:?}"))?;
        at += line + 2;
        let Some(rest) = bytes.get(at..at + size + 2) else {
            return Ok(None);
        };
        if &rest[size..] != b"\r\n" {
            return Err("a chunk longer than it says".to_owned());
        }
        body.extend_from_slice(&rest[..size]);
        at += size + 2;
        if size == 0 {
            return Ok(Some((body, at)));
        }
    }
}

/// A complete reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Who answered; `None` when the switch did.
    pub(crate) server: Option<String>,
    pub(crate) body_bytes: usize,
}

/// Reads replies one after the other as they arrive.
#[derive(Debug, Default)]
pub(crate) struct ReplyReader {
    at: usize,
    pub(crate) replies: Vec<Reply>,
}

impl ReplyReader {
    /// Reads on in everything received so far.
    pub(crate) fn read(
        &mut self,
        received: &[u8],
        token: u64,
        plans: &[RequestPlan],
    ) -> Result<(), String> {
        while self.at < received.len() {
            let Some(head) = Head::read(&received[self.at..])? else {
                return Ok(());
            };
            let mut words = head.first_line.split(' ');
            let (version, status) = (words.next(), words.next());
            if version != Some("HTTP/1.1") {
                return Err(format!("no status line: {:?}", head.first_line));
            }
            let status: u16 = status
                .and_then(|text| text.parse().ok())
                .ok_or("no status in a reply")?;
            let server = head.field(SERVER_FIELD).map(str::to_owned);
            let len = head
                .number("content-length")
                .ok_or("a reply without a length")?;
            let plan = plans
                .get(self.replies.len())
                .ok_or("more replies than requests")?;
            let len = if plan.head_only { 0 } else { len };
            let from = self.at + head.len;
            let Some(body) = received.get(from..from + len) else {
                return Ok(());
            };
            if server.is_some() {
                check_reply_body(body, token, plan)?;
            } else if len > SHORT_BODY_BYTES && body != page_body(len) {
                return Err("a page of the switch is not what it was given".to_owned());
            }
            self.at = from + len;
            self.replies.push(Reply {
                status,
                server,
                body_bytes: len,
            });
        }
        Ok(())
    }

    /// Bytes of an unfinished reply.
    pub(crate) fn unfinished(&self, received: &[u8]) -> usize {
        received.len() - self.at.min(received.len())
    }
}

/// Longer bodies of the switch's own answers are pages.
const SHORT_BODY_BYTES: usize = 64;

/// A page for the switch's own answers.
pub(crate) fn page_body(len: usize) -> Vec<u8> {
    let mut body = vec![0; len];
    stream_bytes(body_seed(0, 0, true), 0, &mut body);
    body
}

fn check_reply_body(body: &[u8], token: u64, plan: &RequestPlan) -> Result<(), String> {
    if plan.head_only {
        return Ok(());
    }
    let mut expected = vec![0; plan.reply_bytes];
    stream_bytes(body_seed(token, plan.number, true), 0, &mut expected);
    if body == expected {
        return Ok(());
    }
    Err(format!(
        "the reply to request {} is wrong: {} bytes instead of {}, differing at {:?}",
        plan.number,
        body.len(),
        expected.len(),
        body.iter()
            .zip(&expected)
            .position(|(got, want)| got != want)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reads_back_with_its_body_in_one_piece_or_in_chunks() {
        let plan = RequestPlan {
            number: 2,
            reply_bytes: 5,
            head_only: false,
        };
        let mut expected = vec![0; 3_500];
        stream_bytes(body_seed(9, 2, false), 0, &mut expected);
        let fields = [("Host", "a.example")];
        let plain = http_request("POST", "/x", &fields, 9, Some(3_500), false, &plan);
        let head = Head::read(&plain).unwrap().unwrap();
        assert_eq!(head.first_line, "POST /x HTTP/1.1");
        assert_eq!(
            (head.number(TOKEN_FIELD), head.number(REPLY_FIELD)),
            (Some(9), Some(5))
        );
        assert_eq!(plain[head.len..], expected);
        let chunked = http_request("POST", "/x", &fields, 9, Some(3_500), true, &plan);
        let head = Head::read(&chunked).unwrap().unwrap();
        for cut in [1, 700, chunked.len() - head.len - 1] {
            assert_eq!(read_chunks(&chunked[head.len..head.len + cut]), Ok(None));
        }
        let (body, used) = read_chunks(&chunked[head.len..]).unwrap().unwrap();
        assert_eq!((body, used), (expected, chunked.len() - head.len));
    }

    #[test]
    fn a_wrong_body_is_noticed() {
        let plan = [RequestPlan {
            number: 0,
            reply_bytes: 20,
            head_only: false,
        }];
        let mut body = vec![0; 20];
        stream_bytes(body_seed(1, 0, true), 0, &mut body);
        let reply = |body: &[u8]| {
            let head = format!(
                "HTTP/1.1 200 OK\r\nX-Server: s\r\nContent-Length: {}\r\n\r\n",
                20
            );
            [head.as_bytes(), body].concat()
        };
        let mut reader = ReplyReader::default();
        reader.read(&reply(&body), 1, &plan).unwrap();
        assert_eq!(
            reader.replies,
            [Reply {
                status: 200,
                server: Some("s".to_owned()),
                body_bytes: 20
            }]
        );
        body[7] ^= 1;
        let problem = ReplyReader::default()
            .read(&reply(&body), 1, &plan)
            .unwrap_err();
        assert!(problem.contains("Some(7)"), "{problem}");
    }
}
