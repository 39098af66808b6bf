//! Routes that lead to a process on this machine (`treatment = "host"`).

use fairlead_base::Endpoint;
use fairlead_splice::config::{Listeners, Protocol, Route, Treatment};

use super::Mode;
use super::cross::Draft;
use super::diagnostic::{At, Diagnostic, Problems};
use super::quantity::endpoints;
use super::section::{Section, boolean, string};
use super::service::{RouteDraft, ServiceDraft};

/// Where a route leads: its pool, or its listeners and the pool that stands in for them.
pub(super) fn target(
    section: Section<'_>,
    route: &mut Route,
    problems: &mut Problems,
) -> Option<At<String>> {
    let is_host = route.treatment == Treatment::Host;
    let (pool, other) = match is_host {
        true => ("fallback_pool", "pool"),
        false => ("pool", "fallback_pool"),
    };
    if section.node(other).is_some() {
        let (message, help) = match is_host {
            true => (
                "a route with treatment = \"host\" leads to a process on this machine, not to a \
                 pool",
                "write `fallback_pool` for the pool of clients that the process cannot have, or \
                 leave `pool` out",
            ),
            false => (
                "`fallback_pool` is for routes with treatment = \"host\"",
                "write treatment = \"host\" and `listener`, or leave `fallback_pool` out",
            ),
        };
        problems.push(Diagnostic::error(&section.key_span(other), message).help(help));
    }
    if is_host {
        route.listeners = listeners(section, problems);
    } else if section.node("listener").is_some() {
        let message = "`listener` is for routes with treatment = \"host\"";
        problems.push(
            Diagnostic::error(&section.key_span("listener"), message)
                .help("write treatment = \"host\", or leave `listener` out"),
        );
    }
    let node = match is_host {
        true => section.node(pool),
        false => section.require(pool, "pool = \"…\", the name of a [[pool]]", problems),
    };
    node.and_then(|node| string(node, pool, "\"pages\"", problems))
        .map(|text| At::new(text.value.to_owned(), text.span))
}

/// Whether connections of a route outlive their sockets.
pub(super) fn sleep(
    section: Section<'_>,
    protocol: Option<Protocol>,
    route: &Route,
    problems: &mut Problems,
) -> bool {
    let Some(node) = section.node("sleep") else {
        return false;
    };
    let wanted = boolean(node, "sleep", problems).unwrap_or(false);
    let why = match (route.is_to_host(), protocol) {
        (false, _) => "`sleep` is for routes with treatment = \"host\"",
        (true, Some(Protocol::Tls)) => {
            "TLS connections never sleep: the process that ends has their keys"
        }
        (true, Some(Protocol::Tcp)) => {
            "`sleep` is for HTTP: of other protocols nobody knows where an answer ends"
        }
        (true, _) => return wanted,
    };
    if wanted {
        problems.push(Diagnostic::error(&node.span(), why).help("leave `sleep` out"));
    }
    false
}

fn listeners(section: Section<'_>, problems: &mut Problems) -> Listeners {
    let example = "listener = \"127.0.0.1:8443\", where a process of this machine listens";
    let Some(node) = section.require("listener", example, problems) else {
        return Listeners::default();
    };
    let all = endpoints(node, "listener", problems);
    let mut listeners = Listeners::default();
    for at in &all {
        let v4 = at.value.addr.is_v4();
        if listeners.of_version(v4).is_some() {
            let family = family(v4);
            let message = format!("a second {family} listener of one route");
            problems.push(
                Diagnostic::error(&at.span, message)
                    .help("write one for IPv4 and one for IPv6 at most"),
            );
        }
        match v4 {
            true => listeners.v4 = Some(at.value),
            false => listeners.v6 = Some(at.value),
        }
    }
    listeners
}

fn family(v4: bool) -> &'static str {
    if v4 { "IPv4" } else { "IPv6" }
}

/// What such a route needs besides its own keys.
pub(super) fn check(
    draft: &Draft,
    service: &ServiceDraft,
    route: &RouteDraft,
    open: &[Endpoint],
    problems: &mut Problems,
) {
    if !route.route.is_to_host() {
        return;
    }
    let why = match draft.fastpath.mode {
        Mode::Engine => Some("mode = \"engine\" does without the kernel, which makes the sockets"),
        Mode::XdpGeneric => Some("mode = \"xdp-generic\" cannot give packets to sockets"),
        Mode::Auto | Mode::Tc | Mode::Xdp => None,
    };
    if let Some(why) = why {
        problems.push(
            Diagnostic::error(
                &route.span,
                format!("treatment = \"host\" does not work here: {why}"),
            )
            .help("write mode = \"auto\" or \"tc\" in [fastpath], or lead this route to a pool"),
        );
    }
    let listeners = route.route.listeners;
    let all = draft.services.iter().flat_map(|service| &service.listen);
    for listen in all.map(|listen| listen.value) {
        if listeners.of_version(listen.addr.is_v4()) == Some(listen) {
            let message = format!("{listen} is where a service listens, not a process");
            problems.push(
                Diagnostic::error(&route.span, message)
                    .help("let the process listen on another address or port: \"127.0.0.1:8443\""),
            );
        }
    }
    let lacking = |listen: &&Endpoint| listeners.of_version(listen.addr.is_v4()).is_none();
    if route.pool.is_none()
        && listeners != Listeners::default()
        && let Some(listen) = open.iter().find(lacking)
    {
        let family = family(listen.addr.is_v4());
        let name = service.name.as_ref().map_or("", |name| &name.value);
        problems.push(
            Diagnostic::error(
                &route.span,
                format!(
                    "service {name:?} listens on {listen}, and this route has no {family} listener"
                ),
            )
            .help("write listener = [\"127.0.0.1:8443\", \"[::1]:8443\"], or `fallback_pool`"),
        );
    }
}

/// Refuses `first_bytes_timeout` where no client can be taken for one that does not speak TLS.
pub(super) fn first_bytes_timeout(
    section: Section<'_>,
    protocol: Option<Protocol>,
    problems: &mut Problems,
) {
    if let (Some(node), Some(protocol)) = (section.node("first_bytes_timeout"), protocol)
        && protocol != Protocol::Tls
    {
        problems.push(
            Diagnostic::error(
                &node.span(),
                "`first_bytes_timeout` is for TLS services: it tells clients that speak TLS from \
                 those that wait for the server to speak",
            )
            .help("leave it out"),
        );
    }
}
