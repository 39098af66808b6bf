//! Fields that hold for one connection only, and those that carry a client's address on.

use fairlead_base::Endpoint;
use fairlead_splice::config::Forwarded;
use fairlead_wire::http::{RequestHead, members};

/// Fields about a connection (RFC 9110, section 7.6.1; `Proxy-Connection` was never in a standard
/// but is sent).
const OF_CONNECTION: [&str; 5] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "upgrade",
];

/// What `Connection` may not take away: a body would end elsewhere for the next reader, or a server
/// would decide with less than the switch did.
const KEPT: [&str; 9] = [
    "host",
    "content-length",
    "transfer-encoding",
    "trailer",
    "authorization",
    "cookie",
    "content-type",
    "cache-control",
    "range",
];

/// The members of all `Connection` fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options<'a> {
    names: Vec<&'a [u8]>,
}

impl<'a> Options<'a> {
    pub(crate) fn of(fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> Self {
        let connection = fields.filter(|(name, _)| name.eq_ignore_ascii_case("connection"));
        Self {
            names: connection.flat_map(|(_, value)| members(value)).collect(),
        }
    }

    pub(crate) fn has(&self, option: &str) -> bool {
        let mut names = self.names.iter();
        names.any(|name| name.eq_ignore_ascii_case(option.as_bytes()))
    }

    /// Whether a field goes on to the next connection.
    pub(crate) fn lets_pass(&self, name: &str) -> bool {
        let is = |one: &str| name.eq_ignore_ascii_case(one);
        if OF_CONNECTION.iter().any(|one| is(one)) {
            return false;
        }
        self.names.is_empty() || KEPT.iter().any(|one| is(one)) || !self.has(name)
    }
}

pub(crate) fn push_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// How a request asks for another protocol. HTTP/2 in cleartext is not passed on: its requests
/// would be routed by nobody.
pub(crate) fn upgrade<'a>(head: &RequestHead<'a>, options: &Options<'_>) -> Option<&'a [u8]> {
    let asks = head.version_minor == 1 && options.has("upgrade");
    let mut named = head.headers();
    let protocol = named
        .find(|(name, _)| name.eq_ignore_ascii_case("upgrade"))?
        .1;
    // A second field could name it, too.
    let once = !named.any(|(name, _)| name.eq_ignore_ascii_case("upgrade"));
    let is_h2c = |one: &[u8]| one.len() >= 3 && one[..3].eq_ignore_ascii_case(b"h2c");
    let plain = !members(protocol).any(is_h2c);
    (asks && once && plain).then_some(protocol)
}

/// What else is changed in a request that is sent on behalf of a cache.
#[derive(Clone, Copy)]
pub(crate) struct Rewrite<'a> {
    pub(crate) method: &'a str,
    pub(crate) keeps: &'a dyn Fn(&str) -> bool,
    pub(crate) added: &'a [(&'a str, &'a [u8])],
}

/// The head as a server gets it.
pub(crate) fn request_head(
    head: &RequestHead<'_>,
    options: &Options<'_>,
    client: Endpoint,
    forwarded: Forwarded,
    rewrite: Option<Rewrite<'_>>,
) -> Vec<u8> {
    let rewrite = rewrite.unwrap_or(Rewrite {
        method: head.method,
        keeps: &|_| true,
        added: &[],
    });
    let mut out = Vec::with_capacity(head.head_len + 128);
    out.extend_from_slice(rewrite.method.as_bytes());
    out.push(b' ');
    // An absolute target names the host once more; `Host` says the same.
    if head.target.starts_with(b"/") || head.target == b"*" {
        out.extend_from_slice(head.target);
    } else {
        out.extend_from_slice(head.path);
        if let Some(query) = head.query {
            out.push(b'?');
            out.extend_from_slice(query);
        }
    }
    let version: &[u8] = match head.version_minor {
        0 => b" HTTP/1.0\r\n",
        _ => b" HTTP/1.1\r\n",
    };
    out.extend_from_slice(version);
    let joined = match forwarded {
        Forwarded::Off => None,
        Forwarded::XForwardedFor => Some("X-Forwarded-For"),
        Forwarded::Standard => Some("Forwarded"),
    };
    let is_joined = |name: &str| joined.is_some_and(|joined| name.eq_ignore_ascii_case(joined));
    for (name, value) in head.headers() {
        if options.lets_pass(name) && !is_joined(name) && (rewrite.keeps)(name) {
            push_field(&mut out, name, value);
        }
    }
    for (name, value) in rewrite.added {
        push_field(&mut out, name, value);
    }
    if let Some(name) = joined {
        let own = address(client, forwarded);
        let mut value = match head.joined(name) {
            Some(before) if !before.is_empty() => [&before[..], b", "].concat(),
            _ => Vec::new(),
        };
        value.extend_from_slice(own.as_bytes());
        push_field(&mut out, name, &value);
    }
    match upgrade(head, options) {
        Some(protocol) => {
            push_field(&mut out, "Connection", b"upgrade");
            push_field(&mut out, "Upgrade", protocol);
        }
        None if head.version_minor == 0 => push_field(&mut out, "Connection", b"close"),
        None => {}
    }
    out.extend_from_slice(b"\r\n");
    out
}

fn address(client: Endpoint, forwarded: Forwarded) -> String {
    let ip = client.addr.to_ip();
    match (forwarded, ip.is_ipv6()) {
        // RFC 7239, section 6.
        (Forwarded::Standard, true) => format!("for=\"[{ip}]\""),
        (Forwarded::Standard, false) => format!("for={ip}"),
        _ => ip.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use fairlead_base::Address;
    use fairlead_wire::http::{HeadScanner, Scan};

    use super::*;

    fn client(v6: bool) -> Endpoint {
        let mut octets = [0; 16];
        octets[..2].copy_from_slice(&[0x20, 1]);
        Endpoint {
            addr: match v6 {
                true => Address::v6(octets),
                false => Address::from(std::net::IpAddr::from([192, 0, 2, 7])),
            },
            port: 4_000,
        }
    }

    fn sent(request: &str, v6: bool, forwarded: Forwarded) -> String {
        let mut scanner = HeadScanner::default();
        let Scan::Complete(head) = scanner.scan(request.as_bytes()) else {
            panic!("no whole head: {request}");
        };
        let options = Options::of(head.headers());
        let sent = request_head(&head, &options, client(v6), forwarded, None);
        String::from_utf8(sent).expect("text")
    }

    #[test]
    fn fields_about_the_connection_stay_behind() {
        let request = "GET /a?b HTTP/1.1\r\nHost: x\r\n\
                       Connection: close, X-Mine, Content-Length\r\n\
                       Keep-Alive: 5\r\nX-Mine: 1\r\nTE: trailers\r\nUpgrade: h2c\r\n\
                       Content-Length: 0\r\nAccept: */*\r\n\r\n";
        let expected = "GET /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nAccept: */*\r\n\r\n";
        assert_eq!(sent(request, false, Forwarded::Off), expected);
    }

    #[test]
    fn an_absolute_target_and_an_old_version_are_put_as_servers_read_them() {
        let request = "GET http://x.example/p?q HTTP/1.1\r\nHost: x.example\r\n\r\n";
        let expected = "GET /p?q HTTP/1.1\r\nHost: x.example\r\n\r\n";
        assert_eq!(sent(request, false, Forwarded::Off), expected);
        let request = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
        let expected = "GET / HTTP/1.0\r\nConnection: close\r\n\r\n";
        assert_eq!(sent(request, false, Forwarded::Off), expected);
    }

    #[test]
    fn the_clients_address_stands_behind_those_of_earlier_proxies() {
        let request = "GET / HTTP/1.1\r\nHost: x\r\nx-forwarded-for: 10.0.0.1\r\n\
                       X-Forwarded-For: 10.0.0.2\r\n\r\n";
        let got = sent(request, false, Forwarded::XForwardedFor);
        assert!(
            got.ends_with("X-Forwarded-For: 10.0.0.1, 10.0.0.2, 192.0.2.7\r\n\r\n"),
            "{got}"
        );
        let plain = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        let got = sent(plain, true, Forwarded::Standard);
        assert!(
            got.ends_with("Forwarded: for=\"[2001::]\"\r\n\r\n"),
            "{got}"
        );
        let got = sent(plain, false, Forwarded::Standard);
        assert!(got.ends_with("Forwarded: for=192.0.2.7\r\n\r\n"), "{got}");
    }

    #[test]
    fn an_upgrade_is_asked_for_if_the_connection_says_so() {
        let request =
            "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        let got = sent(request, false, Forwarded::Off);
        assert!(
            got.ends_with("Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"),
            "{got}"
        );
        for hidden in ["h2c", "H2C", "websocket, h2c", "websocket\r\nUpgrade: h2c"] {
            let request = format!(
                "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n\
                 HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nUpgrade: {hidden}\r\n\r\n"
            );
            let got = sent(&request, false, Forwarded::Off);
            assert_eq!(got, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "{hidden}");
        }
    }
}
