//! Answers that the switch gives itself.

/// A complete answer with an error `status`, a short text as its body, and `Connection: close`.
///
/// With `head_request` the body is left out and `Content-Length` still tells its length (RFC 9110,
/// section 9.3.2). `retry_after_s` becomes `Retry-After`, in seconds. There is no `Date`: the
/// switch has no clock of its own (RFC 9110, section 6.6.1, allows that). A status that is no error
/// is the caller's mistake and goes out as 500.
pub fn response(status: u16, retry_after_s: Option<u32>, head_request: bool) -> Vec<u8> {
    let status = error_status(status);
    let body = format!("{status} {}\n", phrase(status));
    let mut answer = response_head(status, retry_after_s, "text/plain", body.len());
    if !head_request {
        answer.extend_from_slice(body.as_bytes());
    }
    answer
}

/// The head of such a response with a body of another kind and of `body_len` bytes, which the
/// caller sends behind it. `content_type` must be a value of that field.
pub fn response_head(
    status: u16,
    retry_after_s: Option<u32>,
    content_type: &str,
    body_len: usize,
) -> Vec<u8> {
    let status = error_status(status);
    let phrase = phrase(status);
    let retry_after = match retry_after_s {
        Some(seconds) => format!("Retry-After: {seconds}\r\n"),
        None => String::new(),
    };
    let head = format!(
        "HTTP/1.1 {status} {phrase}\r\nContent-Type: {content_type}\r\n\
         Content-Length: {body_len}\r\n{retry_after}Connection: close\r\n\r\n",
    );
    head.into_bytes()
}

fn error_status(status: u16) -> u16 {
    let is_error = (400..=599).contains(&status);
    debug_assert!(is_error, "{status} is no error");
    if is_error { status } else { 500 }
}

/// The reason phrase (RFC 9110, section 15; RFC 6585, section 5).
fn phrase(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        408 => "Request Timeout",
        414 => "URI Too Long",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ if status < 500 => "Client Error",
        _ => "Server Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(answer: &[u8]) -> (u16, String, Vec<(String, String)>, Vec<u8>) {
        let mut fields = [httparse::EMPTY_HEADER; 16];
        let mut parsed = httparse::Response::new(&mut fields);
        let head_len = parsed.parse(answer).expect("valid").unwrap();
        let fields = parsed.headers.iter().map(|field| {
            (
                field.name.to_owned(),
                String::from_utf8(field.value.to_vec()).expect("text"),
            )
        });
        let fields = fields.collect();
        let phrase = parsed.reason.expect("a phrase").to_owned();
        (
            parsed.code.expect("a status"),
            phrase,
            fields,
            answer[head_len..].to_vec(),
        )
    }

    #[test]
    fn answers_are_complete_and_close() {
        for status in [400, 404, 408, 414, 421, 431, 501, 502, 503, 505] {
            let (code, phrase, fields, body) = cut(&response(status, None, false));
            assert_eq!(code, status);
            assert!(
                !phrase.ends_with("Error"),
                "{status} has a phrase of its own"
            );
            assert_eq!(body, format!("{status} {phrase}\n").into_bytes());
            assert_eq!(
                fields,
                [
                    ("Content-Type".to_owned(), "text/plain".to_owned()),
                    ("Content-Length".to_owned(), body.len().to_string()),
                    ("Connection".to_owned(), "close".to_owned()),
                ]
            );
        }
    }

    #[test]
    fn head_requests_get_the_length_without_the_body() {
        let (_, _, full_fields, body) = cut(&response(503, Some(7), false));
        let (code, _, fields, nothing) = cut(&response(503, Some(7), true));
        assert_eq!(code, 503);
        assert_eq!(fields, full_fields);
        assert!(fields.contains(&("Retry-After".to_owned(), "7".to_owned())));
        assert!(fields.contains(&("Content-Length".to_owned(), body.len().to_string())));
        assert!(nothing.is_empty());
    }
}
