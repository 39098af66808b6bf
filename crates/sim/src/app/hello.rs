//! ClientHellos as today's browsers send them (RFC 8446, section 4.1.2), byte by byte.

use crate::dice::stream_bytes;

/// A ClientHello in TLS records.
///
/// `token` is in its random bytes. `key_share` is the length of the largest key share: 32 for
/// X25519, 1216 for the hybrid with ML-KEM-768 that no longer fits into one segment. The handshake
/// message is cut into records of at most `record` bytes.
pub fn client_hello(
    token: u64,
    sni: Option<&str>,
    alpn: &[&str],
    key_share: usize,
    record: usize,
) -> Vec<u8> {
    let mut extensions = Vec::new();
    extension(&mut extensions, 0x0a0a, &[]);
    if let Some(name) = sni {
        let entry = [&[0], &sized(2, name.as_bytes())[..]].concat();
        extension(&mut extensions, 0, &sized(2, &entry));
    }
    if !alpn.is_empty() {
        let names: Vec<u8> = alpn
            .iter()
            .flat_map(|name| sized(1, name.as_bytes()))
            .collect();
        extension(&mut extensions, 16, &sized(2, &names));
    }
    extension(&mut extensions, 43, &[4, 3, 4, 3, 3]);
    extension(&mut extensions, 10, &[0, 4, 0x11, 0xec, 0, 0x1d]);
    extension(&mut extensions, 13, &[0, 4, 4, 3, 8, 4]);
    let mut share = vec![0; key_share];
    stream_bytes(token ^ 0x5eed, 0, &mut share);
    let entry = [&[0x11, 0xec], &sized(2, &share)[..]].concat();
    extension(&mut extensions, 51, &sized(2, &entry));

    let mut body = vec![3, 3];
    body.extend_from_slice(&token.to_be_bytes());
    let mut random = [0; 24];
    stream_bytes(token, 8, &mut random);
    body.extend_from_slice(&random);
    body.extend_from_slice(&sized(1, &random));
    body.extend_from_slice(&sized(2, &[0x13, 1, 0x13, 2, 0x13, 3]));
    body.extend_from_slice(&[1, 0]);
    body.extend_from_slice(&sized(2, &extensions));
    let message = [&[1], &sized(3, &body)[..]].concat();
    let mut bytes = Vec::new();
    for piece in message.chunks(record.clamp(1, 16_384)) {
        bytes.extend_from_slice(&[22, 3, 1]);
        bytes.extend_from_slice(&sized(2, piece));
    }
    bytes
}

fn extension(out: &mut Vec<u8>, kind: u16, body: &[u8]) {
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&sized(2, body));
}

/// `bytes` preceded by their length in the given number of bytes.
fn sized(width: usize, bytes: &[u8]) -> Vec<u8> {
    let len = (bytes.len() as u64).to_be_bytes();
    [&len[8 - width..], bytes].concat()
}

/// Size of the records that contain the whole ClientHello; `None` until they are complete.
pub(crate) fn hello_len(bytes: &[u8]) -> Result<Option<usize>, String> {
    Ok(hello_message(bytes)?.map(|(_, len)| len))
}

/// The token in a whole ClientHello.
pub(crate) fn hello_token(bytes: &[u8]) -> Option<u64> {
    let (message, _) = hello_message(bytes).ok()??;
    message.get(6..14)?.try_into().ok().map(u64::from_be_bytes)
}

fn hello_message(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>, String> {
    let (mut message, mut at) = (Vec::new(), 0);
    loop {
        let Some(header) = bytes.get(at..at + 5) else {
            return Ok(None);
        };
        if header[0] != 22 || header[1] != 3 {
            return Err(format!("no handshake record: {header:?}"));
        }
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let Some(piece) = bytes.get(at + 5..at + 5 + len) else {
            return Ok(None);
        };
        message.extend_from_slice(piece);
        at += 5 + len;
        if let Some(head) = message.get(..4) {
            if head[0] != 1 {
                return Err(format!(
                    "handshake message {} instead of a ClientHello",
                    head[0]
                ));
            }
            let whole = 4 + u32::from_be_bytes([0, head[1], head[2], head[3]]) as usize;
            if message.len() >= whole {
                return Ok(Some((message, at)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_reads_back_whole_and_not_before() {
        for (share, record) in [(32, 16_384), (1_216, 16_384), (1_216, 100), (32, 1)] {
            let bytes = client_hello(0xfeed, Some("a.example"), &["h2"], share, record);
            assert_eq!(hello_len(&bytes), Ok(Some(bytes.len())));
            assert_eq!(hello_token(&bytes), Some(0xfeed));
            assert_eq!(hello_len(&bytes[..bytes.len() - 1]), Ok(None));
        }
        assert!(client_hello(1, None, &[], 1_216, 16_384).len() > 1_300);
        assert!(hello_len(b"GET / HTTP/1.1").is_err());
    }
}
