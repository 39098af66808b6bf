//! Requests with the verdict that each must get.

/// Each request with `complete`, `incomplete` or the name of its error.
pub(super) fn table() -> Vec<(Vec<u8>, &'static str)> {
    let mut table = Vec::new();
    for &(request, verdict) in LINES {
        table.push((request.to_vec(), verdict));
    }
    for &(fields, verdict) in FIELDS {
        table.push(([b"POST /p HTTP/1.1\r\n", fields, b"\r\n"].concat(), verdict));
    }
    for &(target, verdict) in TARGETS {
        let line = [b"GET ", target, b" HTTP/1.1\r\nHost: a.example\r\n\r\n"].concat();
        table.push((line, verdict));
    }
    for (count, verdict) in [(99, "complete"), (100, "too_many_fields")] {
        let fields = b"A: b\r\n".repeat(count);
        table.push((
            [b"GET / HTTP/1.1\r\nHost: a\r\n", &fields[..], b"\r\n"].concat(),
            verdict,
        ));
    }
    let long_path = [b"/", &b"x".repeat(9000)[..]].concat();
    table.push((
        [b"GET ", &long_path[..], b" HTTP/1.0\r\n\r\n"].concat(),
        "complete",
    ));
    table
}

/// Whole inputs.
const LINES: &[(&[u8], &str)] = &[
    (b"", "incomplete"),
    (b"\r", "incomplete"),
    (b"\r\n", "incomplete"),
    (b"G", "incomplete"),
    (b"GET / HTTP/1.1\r\nHost: a\r\n", "incomplete"),
    (b"GET / HTTP/1.1\r\nHost: a\r\n\r", "incomplete"),
    (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "complete"),
    (b"GET / HTTP/1.0\r\n\r\n", "complete"),
    (b"\r\nGET / HTTP/1.0\r\n\r\n", "complete"),
    (b"get / HTTP/1.0\r\n\r\n", "complete"),
    (b"M-SEARCH / HTTP/1.0\r\n\r\n", "complete"),
    (b"GET / HTTP/1.0\r\n\r\n\x00\x01\n\r\xff", "complete"),
    (
        b"GET / HTTP/1.0\r\nContent-Length: 5\r\n\r\nGET /",
        "complete",
    ),
    // Not HTTP at all.
    (b"\r\n\r\nGET / HTTP/1.0\r\n\r\n", "not_http"),
    (b" GET / HTTP/1.0\r\n\r\n", "not_http"),
    (b"\0", "not_http"),
    (b"\x16\x03\x01\x02\x00", "not_http"),
    (b"\x80\x2e\x01", "not_http"),
    (b"(GET / HTTP/1.0\r\n\r\n", "not_http"),
    (b"\xe4", "not_http"),
    (b"SSH-2.0-OpenSSH_9.9\r\n", "bad_request_line"),
    // Line ends.
    (b"\n", "bare_lf"),
    (b"\nGET / HTTP/1.0\r\n\r\n", "bare_lf"),
    (b"GET\n", "bare_lf"),
    (b"GET / HTTP/1.0\n\n", "bare_lf"),
    (b"GET / HTTP/1.0\r\n\n", "bare_lf"),
    (b"GET / HTTP/1.0\r\nA: b\n\r\n", "bare_lf"),
    (b"GET / HTTP/1.0\r\nA: b\nHost: c\r\n\r\n", "bare_lf"),
    (b"\rGET / HTTP/1.0\r\n\r\n", "bare_cr"),
    (b"GET / HTTP/1.0\rA: b\r\n\r\n", "bare_cr"),
    (b"GET / HTTP/1.0\r\nA: b\rC: d\r\n\r\n", "bare_cr"),
    (b"GET / HTTP/1.0\r\nA: b\r\r\n\r\n", "bare_cr"),
    (b"GET / HTTP/1.0\r\n\rX", "bare_cr"),
    // Request lines.
    (b"GET /\r\n\r\n", "bad_request_line"),
    (b"GET\r\n\r\n", "bad_request_line"),
    (b"GET  / HTTP/1.1\r\n\r\n", "bad_request_line"),
    (b"GET /  HTTP/1.1\r\n\r\n", "bad_request_line"),
    (b"GET / HTTP/1.1 \r\n\r\n", "bad_request_line"),
    (b"GET / a HTTP/1.1\r\n\r\n", "bad_request_line"),
    (b"GET / http/1.1\r\n\r\n", "bad_request_line"),
    (b"GET / HTTP/1.10\r\n\r\n", "bad_request_line"),
    (b"GET / HTTP/11\r\n\r\n", "bad_request_line"),
    (b"GET / HTTP/1.x\r\n\r\n", "bad_request_line"),
    (b"GET / HTTPS/1.1\r\n\r\n", "bad_request_line"),
    (b"GET\t/ HTTP/1.1\r\n\r\n", "bad_request_line"),
    (b"G\0T / HTTP/1.1\r\n\r\n", "bad_request_line"),
    (b"GET:/ HTTP/1.1\r\n\r\n", "bad_request_line"),
    (b"GET /\tHTTP/1.1\r\n\r\n", "control_byte"),
    (b"GET /\0 HTTP/1.1\r\n\r\n", "control_byte"),
    (b"GET /\x7f HTTP/1.1\r\n\r\n", "control_byte"),
    (
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEF / HTTP/1.0\r\n\r\n",
        "complete",
    ),
    (
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEFG / HTTP/1.0\r\n\r\n",
        "method_too_long",
    ),
    // Versions.
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "http_version"),
    (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", "http_version"),
    (b"GET / HTTP/0.9\r\n\r\n", "http_version"),
    (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", "http_version"),
    (b"CONNECT a:443 HTTP/2.0\r\n\r\n", "http_version"),
    // CONNECT, whatever its target.
    (b"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n", "connect"),
    (b"CONNECT / HTTP/1.0\r\n\r\n", "connect"),
    // Methods and forms of target.
    (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "complete"),
    (b"OPTIONS / HTTP/1.1\r\nHost: a\r\n\r\n", "complete"),
    // Host in HTTP/1.0.
    (b"GET http://a/ HTTP/1.0\r\n\r\n", "complete"),
    (
        b"GET http://a/ HTTP/1.0\r\nHost: b\r\n\r\n",
        "target_host_differs",
    ),
    (
        b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n",
        "host_repeated",
    ),
    (b"GET / HTTP/1.0\r\nHost: a b\r\n\r\n", "host_malformed"),
    // Codings in HTTP/1.0.
    (
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "coding_on_http10",
    ),
    (
        b"POST / HTTP/1.0\r\nTransfer-Encoding: x\r\n\r\n",
        "coding_on_http10",
    ),
    (b"POST / HTTP/1.0\r\nContent-Length: 0\r\n\r\n", "complete"),
];

/// Fields of an HTTP/1.1 request.
const FIELDS: &[(&[u8], &str)] = &[
    (b"", "host_missing"),
    (b"A: b\r\n", "host_missing"),
    (b"Hosts: a\r\n", "host_missing"),
    (b"Host: a\r\n", "complete"),
    (b"Host:a\r\n", "complete"),
    (b"HOST:\t a \t\r\n", "complete"),
    (b"Host:\r\n", "complete"),
    (b"Host: a:8080\r\n", "complete"),
    (b"Host: [2001:db8::1]:80\r\n", "complete"),
    (b"Host: a\r\nHost: a\r\n", "host_repeated"),
    (b"Host: a\r\nX: y\r\nhost: b\r\n", "host_repeated"),
    (b"Host: a, b\r\n", "host_malformed"),
    (b"Host: a,b\r\n", "host_malformed"),
    (b"Host: a b\r\n", "host_malformed"),
    (b"Host: a/b\r\n", "host_malformed"),
    (b"Host: a@b\r\n", "host_malformed"),
    (b"Host: http://a\r\n", "host_malformed"),
    (b"Host: a:b\r\n", "host_malformed"),
    (b"Host: a:99999\r\n", "host_malformed"),
    (b"Host: ::1\r\n", "host_malformed"),
    (b"Host: [::1\r\n", "host_malformed"),
    (b"Host: a..b\r\n", "host_malformed"),
    (b"Host: \xc3\xa4.example\r\n", "host_malformed"),
    // Names and values.
    (b"Host: a\r\nA: b\r\n", "complete"),
    (b"Host: a\r\nA:\r\n", "complete"),
    (b"Host: a\r\nA: b\tc\r\n", "complete"),
    (b"Host: a\r\nA: \x80\xff\r\n", "complete"),
    (b"Host: a\r\n!#$%&'*+-.^_`|~0: b\r\n", "complete"),
    (b"Host: a\r\nA: b\0\r\n", "control_byte"),
    (b"Host: a\r\nA: \x01\r\n", "control_byte"),
    (b"Host: a\r\nA: \x0b\r\n", "control_byte"),
    (b"Host: a\r\nA: \x1b[0m\r\n", "control_byte"),
    (b"Host: a\r\nA: \x7f\r\n", "control_byte"),
    (b"Host: a\r\n\0: b\r\n", "control_byte"),
    (b"Host: a\r\n\x01A: b\r\n", "control_byte"),
    (b"Host: a\r\nA: b\r\n c\r\n", "folded_line"),
    (b"Host: a\r\nA: b\r\n\tc: d\r\n", "folded_line"),
    (b" Host: a\r\n", "folded_line"),
    (b"Host : a\r\n", "blank_before_colon"),
    (b"Host: a\r\nA\t: b\r\n", "blank_before_colon"),
    (b"Host: a\r\nContent-Length : 1\r\n", "blank_before_colon"),
    (b"Host: a\r\nA b: c\r\n", "bad_field"),
    (b"Host: a\r\nnocolon\r\n", "bad_field"),
    (b"Host: a\r\nno colon\r\n", "bad_field"),
    (b"Host: a\r\n: b\r\n", "bad_field"),
    (b"Host: a\r\nA(: b\r\n", "bad_field"),
    (b"Host: a\r\n\"A\": b\r\n", "bad_field"),
    (b"Host: a\r\n\xc3\xa4: b\r\n", "bad_field"),
    // Where the body ends.
    (b"Host: a\r\nContent-Length: 0\r\n", "complete"),
    (
        b"Host: a\r\nContent-Length: 18446744073709551615\r\n",
        "complete",
    ),
    (
        b"Host: a\r\nContent-Length: 18446744073709551616\r\n",
        "content_length_malformed",
    ),
    (
        b"Host: a\r\nContent-Length:\r\n",
        "content_length_malformed",
    ),
    (
        b"Host: a\r\nContent-Length: -1\r\n",
        "content_length_malformed",
    ),
    (
        b"Host: a\r\nContent-Length: +1\r\n",
        "content_length_malformed",
    ),
    (
        b"Host: a\r\nContent-Length: 0x1\r\n",
        "content_length_malformed",
    ),
    (
        b"Host: a\r\nContent-Length: 1, 1\r\n",
        "content_length_malformed",
    ),
    (
        b"Host: a\r\nContent-Length: 1 1\r\n",
        "content_length_malformed",
    ),
    (
        b"Host: a\r\nContent-Length: \xc2\xb2\r\n",
        "content_length_malformed",
    ),
    (
        b"Host: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n",
        "content_length_repeated",
    ),
    (
        b"Host: a\r\nContent-Length: 1\r\ncontent-length: 2\r\n",
        "content_length_repeated",
    ),
    (
        b"Host: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        "length_and_coding",
    ),
    (
        b"Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n",
        "length_and_coding",
    ),
    (
        b"Host: a\r\nTransfer-Encoding: identity\r\nContent-Length: 1\r\n",
        "length_and_coding",
    ),
    (b"Host: a\r\nTransfer-Encoding: chunked\r\n", "complete"),
    (b"Host: a\r\nTransfer-Encoding: ChunkeD\r\n", "complete"),
    (
        b"Host: a\r\nTransfer-Encoding: gzip ,\tchunked\r\n",
        "complete",
    ),
    (
        b"Host: a\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
        "complete",
    ),
    (
        b"Host: a\r\nTransfer-Encoding: gzip\r\n",
        "coding_not_chunked",
    ),
    (
        b"Host: a\r\nTransfer-Encoding: chunked, gzip\r\n",
        "coding_not_chunked",
    ),
    (
        b"Host: a\r\nTransfer-Encoding: chunked, chunked\r\n",
        "coding_not_chunked",
    ),
    (
        b"Host: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
        "coding_not_chunked",
    ),
    (b"Host: a\r\nTransfer-Encoding:\r\n", "coding_not_chunked"),
    (
        b"Host: a\r\nTransfer-Encoding: ,chunked\r\n",
        "coding_not_chunked",
    ),
    (
        b"Host: a\r\nTransfer-Encoding: chunked,\r\n",
        "coding_not_chunked",
    ),
    (
        b"Host: a\r\nTransfer-Encoding: xchunked\r\n",
        "coding_unknown",
    ),
    (
        b"Host: a\r\nTransfer-Encoding: identity\r\n",
        "coding_unknown",
    ),
    (
        b"Host: a\r\nTransfer-Encoding: chunked;a=b\r\n",
        "coding_unknown",
    ),
    (
        b"Host: a\r\nTransfer-Encoding: \"chunked\"\r\n",
        "coding_unknown",
    ),
    (
        b"Host: a\r\nTransfer-Encoding: \x0bchunked\r\n",
        "control_byte",
    ),
    (
        b"Host: a\r\nTransfer-Encoding: br, chunked\r\n",
        "coding_unknown",
    ),
    (
        b"Host: a\r\nTransfer-Encoding : chunked\r\n",
        "blank_before_colon",
    ),
];

/// Targets of `GET`, HTTP/1.1, with `Host: a.example`.
const TARGETS: &[(&[u8], &str)] = &[
    (b"/", "complete"),
    (b"/a/../b;c=d?e=f&g", "complete"),
    (b"/%00%zz", "complete"),
    (b"//other.example/", "complete"),
    (b"/a|b{c}\"^`\\[]<>", "complete"),
    (b"/\xc3\xa4", "complete"),
    (b"/\xff\x80", "complete"),
    (b"\xc3\xa4", "bad_target"),
    (b"http://\xc3\xa4.example/", "bad_target"),
    (b"http://a.example/\xc3\xa4", "complete"),
    (b"/\x7f", "control_byte"),
    (b"/a#b", "fragment_in_target"),
    (b"http://a.example/#", "fragment_in_target"),
    (b"*", "bad_target"),
    (b"a.example:80", "bad_target"),
    (b"a.example/p", "bad_target"),
    (b"?q", "bad_target"),
    (b"http://a.example/p", "complete"),
    (b"HTTP://A.EXAMPLE.:80/p", "complete"),
    (b"https://a.example:443", "complete"),
    (b"http://a.example:443/", "target_host_differs"),
    (b"http://a.example:8080/", "target_host_differs"),
    (b"http://b.example/", "target_host_differs"),
    (b"http://a.example.evil/", "target_host_differs"),
    (b"http://user@a.example/", "userinfo_in_target"),
    (b"http://user:pass@a.example/", "userinfo_in_target"),
    (b"http://a.example/@x", "complete"),
    (b"http:///p", "bad_target"),
    (b"http://:80/p", "bad_target"),
    (b"http:/a.example/", "bad_target"),
    (b"ftp://a.example/", "bad_target"),
    (b"http://a.example:x/", "bad_target"),
    (b"http://[::1/", "bad_target"),
];
