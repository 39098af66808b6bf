//! Requests of one kept-alive connection that routes would send to different pools: a splice
//! decides once, by the first of them.

use fairlead_splice::config::{Matcher, NamePattern, Protocol, Treatment};

use super::diagnostic::{Diagnostic, Problems};
use super::reach::{label, openings};
use super::service::{RouteDraft, ServiceDraft};

/// How many pairs of routes are compared: beyond them the question is left open.
const PAIRS_MAX: usize = 100_000;

/// A route, and its number in its service.
type Numbered<'d> = (usize, &'d RouteDraft);

/// The first two routes of an HTTP service that requests of one host can match and that lead to
/// different pools.
pub(super) fn mixed(service: &ServiceDraft) -> Option<(Numbered<'_>, Numbered<'_>)> {
    if service.protocol != Some(Protocol::Http) {
        return None;
    }
    // A route that only asks for the endpoint leaves nothing of it to later ones.
    let open = openings(service).routes;
    let share = |at: usize, other: usize| open[at].iter().any(|end| open[other].contains(end));
    let routes = || service.routes.iter().enumerate();
    let pairs = routes().flat_map(|one| routes().skip(one.0 + 1).map(move |other| (one, other)));
    let mut pairs = pairs.take(PAIRS_MAX);
    pairs.find(|((at, one), (other_at, other))| may_be_mixed(one, other) && share(*at, *other_at))
}

/// Warns of them, unless the file says what becomes of such requests.
pub(super) fn later_requests(service: &ServiceDraft, problems: &mut Problems) {
    let Some(((at, one), (other_at, other))) = mixed(service) else {
        return;
    };
    if service.says_later_requests {
        return;
    }
    let (name, other_name) = (label(one, at), label(other, other_at));
    let pool = |route: &RouteDraft| {
        route
            .pool
            .as_ref()
            .map_or("", |pool| &pool.value)
            .to_owned()
    };
    let message = format!(
        "later requests of a kept-alive connection follow its first one, also from route {name} \
         (pool {:?}) to route {other_name} (pool {:?}) and back",
        pool(one),
        pool(other),
    );
    problems.push(
        Diagnostic::warning(&other.span, message)
            .related(&one.span, "the other route")
            .help(
                "write treatment = \"per-request\" in both routes, or later_requests = \"close\" \
                 in the service; \"pass\" or \"count\" if the servers of both pools can answer",
            ),
    );
}

/// One client may send requests of both routes over one connection, which has one decision.
fn may_be_mixed(one: &RouteDraft, other: &RouteDraft) -> bool {
    let splices = |route: &RouteDraft| route.route.treatment == Treatment::Splice;
    let pools = one.pool.as_ref().zip(other.pool.as_ref());
    // The one that is decided first is the one that keeps the connection.
    (splices(one) || splices(other))
        && pools.is_some_and(|(one, other)| one.value != other.value)
        && may_share_host(one, other)
}

/// True unless both ask for hosts and no host is in both, or the later route is what is left of
/// the hosts that the earlier one takes altogether.
fn may_share_host(one: &RouteDraft, other: &RouteDraft) -> bool {
    match (hosts(one), hosts(other)) {
        (Some(ones), Some(others)) => ones
            .iter()
            .any(|one| others.iter().any(|other| overlap(one, other))),
        // A host that only the earlier route has, and has altogether, is not left to the other.
        (Some(_), None) => !is_by_host_alone(one),
        _ => true,
    }
}

fn hosts(route: &RouteDraft) -> Option<&[NamePattern]> {
    route
        .matchers
        .iter()
        .find_map(|draft| match &draft.matcher {
            Matcher::Host(hosts) => Some(hosts.as_slice()),
            _ => None,
        })
}

fn is_by_host_alone(route: &RouteDraft) -> bool {
    let mut matchers = route.matchers.iter();
    route.whole
        && matchers.all(|draft| matches!(draft.matcher, Matcher::Host(_) | Matcher::Listen(_)))
}

fn overlap(one: &NamePattern, other: &NamePattern) -> bool {
    use NamePattern::{Exact, Suffix};
    match (one, other) {
        (Exact(one), Exact(other)) => one == other,
        (Exact(name), Suffix(suffix)) | (Suffix(suffix), Exact(name)) => name.ends_with(suffix),
        (Suffix(one), Suffix(other)) => one.ends_with(other) || other.ends_with(one),
    }
}
