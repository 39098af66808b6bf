//! Which route a connection takes: the first of its service whose conditions all hold.
//!
//! | file | conditions |
//! |---|---|
//! | `host.rs` | names: HTTP host, and TLS server name by the same rules |
//! | `path.rs` | HTTP path: equal, start, end, regular expression |
//! | `http.rs` | HTTP method, header, query parameter, cookie |
//! | `tls.rs` | TLS server name and application protocol |
//!
//! A condition on HTTP never holds for TLS, nor the other way round; on a plain TCP service only
//! the listening endpoint and the client's address can be asked about. To add a condition: add a
//! variant to [`Matcher`], its test to one of these files, and its line to [`Matcher::matches`].
//!
//! Time is linear in the head and in the number of conditions; regular expressions run in linear
//! time too. Absent by design: state.

mod host;
mod http;
mod path;
mod tls;

#[cfg(test)]
mod tests;

use fairlead_base::{Address, Endpoint};
use fairlead_wire::http::RequestHead;
use fairlead_wire::tls::ClientHello;

use crate::config::{Matcher, Route, Service};

/// What has been read of a connection before a server is chosen.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// The head of its first request.
    Http(&'a RequestHead<'a>),
    /// The hello of its client.
    Tls(&'a ClientHello),
    /// What a client of a TLS service sends that does not speak TLS: its first bytes, or none where
    /// it waits for the server to speak.
    Other(&'a [u8]),
    /// Nothing.
    Tcp,
}

impl<'a> Subject<'a> {
    /// The request head, if it is one.
    pub fn http(&self) -> Option<&'a RequestHead<'a>> {
        match *self {
            Self::Http(head) => Some(head),
            Self::Tls(_) | Self::Other(_) | Self::Tcp => None,
        }
    }

    /// The ClientHello, if it is one.
    pub fn tls(&self) -> Option<&'a ClientHello> {
        match *self {
            Self::Tls(hello) => Some(hello),
            Self::Http(_) | Self::Other(_) | Self::Tcp => None,
        }
    }

    /// In one line for events and logs: `GET host/path`, the TLS server name, or nothing. At most
    /// 256 bytes of printable ASCII.
    pub fn line(&self) -> String {
        match self {
            Self::Http(head) => head.subject().as_str().to_owned(),
            // At most 255 letters, digits, dots, hyphens and underscores.
            Self::Tls(hello) => hello.sni.clone().unwrap_or_default(),
            Self::Other(_) | Self::Tcp => String::new(),
        }
    }
}

/// The index of the first route of `service` that a connection of `client` to `listen` takes;
/// `None` when no route matches.
pub fn choose(
    service: &Service,
    listen: Endpoint,
    client: Address,
    subject: &Subject<'_>,
) -> Option<usize> {
    service
        .routes
        .iter()
        .position(|route| route.matches(listen, client, subject))
}

impl Service {
    /// Whether a route might match a client that does not speak TLS when it has sent more than
    /// `bytes`.
    pub(crate) fn needs_more_to_tell(&self, bytes: &[u8]) -> bool {
        let mut matchers = self.routes.iter().flat_map(|route| &route.matchers);
        matchers.any(|matcher| match matcher {
            Matcher::FirstBytes(starts) => starts
                .iter()
                .any(|start| start.len() > bytes.len() && start.starts_with(bytes)),
            _ => false,
        })
    }
}

impl Route {
    /// Whether all conditions hold; without conditions always.
    pub fn matches(&self, listen: Endpoint, client: Address, subject: &Subject<'_>) -> bool {
        self.matchers
            .iter()
            .all(|matcher| matcher.matches(listen, client, subject))
    }
}

impl Matcher {
    /// Whether the condition holds for a connection of `client` to `listen`.
    pub fn matches(&self, listen: Endpoint, client: Address, subject: &Subject<'_>) -> bool {
        let http = |holds: &dyn Fn(&RequestHead<'_>) -> bool| subject.http().is_some_and(holds);
        let tls = |holds: &dyn Fn(&ClientHello) -> bool| subject.tls().is_some_and(holds);
        match self {
            Self::Listen(endpoints) => endpoints.contains(&listen),
            Self::Clients(list) => list.allows(client),
            Self::Host(names) => http(&|head| host::any(names, head.host.as_deref())),
            Self::Path(paths) => http(&|head| path::equal(paths, head.path)),
            Self::PathPrefix(starts) => http(&|head| path::start(starts, head.path)),
            Self::PathSuffix(ends) => http(&|head| path::end(ends, head.path)),
            Self::PathRegex(expressions) => http(&|head| path::regex(expressions, head.path)),
            Self::Method(methods) => http(&|head| http::method(methods, head)),
            Self::Header(name, value) => http(&|head| http::header(name, value, head)),
            Self::Query(name, value) => http(&|head| http::query(name, value, head)),
            Self::Cookie(name, value) => http(&|head| http::cookie(name, value, head)),
            Self::Sni(names) => tls(&|hello| tls::server_name(names, hello)),
            Self::Alpn(protocols) => tls(&|hello| tls::protocol(protocols, hello)),
            Self::NotTls => matches!(subject, Subject::Other(_)),
            Self::FirstBytes(starts) => match subject {
                Subject::Other(bytes) => starts.iter().any(|start| bytes.starts_with(start)),
                _ => false,
            },
        }
    }
}
