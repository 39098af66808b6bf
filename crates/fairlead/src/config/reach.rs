//! Routes that can never match because an earlier one takes everything they would.

use fairlead_base::Endpoint;
use fairlead_splice::config::{Matcher, NamePattern, Protocol, ValuePattern};

use super::diagnostic::{Diagnostic, Problems};
use super::service::{RouteDraft, ServiceDraft};

/// How many values are compared with each other before the question is left open: the answer is
/// a courtesy and must not cost a long wait on a huge file.
const COMPARISONS_MAX: usize = 4_000_000;

/// Which connections get as far as each route, by the endpoint they came to.
#[derive(Debug)]
pub(super) struct Openings {
    /// For each route, the endpoints whose connections no earlier route takes altogether.
    pub(super) routes: Vec<Vec<Endpoint>>,
    /// The routes of which earlier ones leave nothing, though they name endpoints of the service.
    shut: Vec<bool>,
    /// The endpoints whose connections get past all routes that look at nothing else.
    left: Vec<Endpoint>,
}

/// Looks at the endpoints alone: what comes to an endpoint gets past every route but those that
/// ask for nothing more.
pub(super) fn openings(service: &ServiceDraft) -> Openings {
    let mut left: Vec<Endpoint> = service.listen.iter().map(|at| at.value).collect();
    let (mut routes, mut shut) = (Vec::new(), Vec::new());
    for route in &service.routes {
        let wanted = route
            .matchers
            .iter()
            .find_map(|draft| match &draft.matcher {
                Matcher::Listen(endpoints) => Some(endpoints),
                _ => None,
            });
        let wants = |at: &Endpoint| wanted.is_none_or(|wanted| wanted.contains(at));
        let open: Vec<Endpoint> = left.iter().copied().filter(wants).collect();
        let takes_them = route
            .matchers
            .iter()
            .all(|draft| matches!(draft.matcher, Matcher::Listen(_)));
        if route.whole && takes_them {
            left.retain(|endpoint| !open.contains(endpoint));
        }
        let named = service.listen.iter().any(|at| wants(&at.value));
        shut.push(named && open.is_empty());
        routes.push(open);
    }
    Openings { routes, shut, left }
}

/// Warns of every unreachable route and of a missing default. `unmatched` tells what clients get
/// then.
pub(super) fn reach(
    service: &ServiceDraft,
    openings: &Openings,
    unmatched: &str,
    problems: &mut Problems,
) {
    let listen: Vec<Endpoint> = service.listen.iter().map(|at| at.value).collect();
    let mut budget = COMPARISONS_MAX;
    for (index, route) in service.routes.iter().enumerate() {
        if !route.whole {
            continue;
        }
        let earlier = service.routes[..index]
            .iter()
            .enumerate()
            .find(|(_, earlier)| earlier.whole && covers(earlier, route, &listen, &mut budget));
        let name = label(route, index);
        let warning = if let Some((earlier_index, earlier)) = earlier {
            let other = label(earlier, earlier_index);
            let message =
                format!("route {name} is never reached: route {other} takes everything it would");
            Diagnostic::warning(&route.span, message).related(&earlier.span, "the earlier route")
        } else if openings.shut[index] {
            let message =
                format!("route {name} is never reached: earlier routes take all it listens to");
            Diagnostic::warning(&route.span, message)
        } else {
            continue;
        };
        problems.push(warning.help("put the narrower route first, or leave it out"));
    }
    let everything = |route: &RouteDraft| {
        !route.whole
            || route
                .matchers
                .iter()
                .all(|draft| takes_all(&draft.matcher, &listen))
    };
    let open = !openings.left.is_empty() && !service.routes.iter().any(everything);
    // A gateway of server names has servers for these names alone, and who wrote `unmatched` has
    // thought of the others.
    let by_name = |route: &RouteDraft| {
        let mut matchers = route.matchers.iter();
        matchers.any(|draft| matches!(draft.matcher, Matcher::Sni(_)))
    };
    let meant = service.says_unmatched
        || service.protocol == Some(Protocol::Tls) && service.routes.iter().all(by_name);
    if open && !meant && !service.routes.is_empty() {
        let name = service.name.as_ref().map_or("", |name| &name.value);
        problems.push(
            Diagnostic::warning(
                &service.span,
                format!("service {name:?} has no default route: {unmatched}"),
            )
            .help(
                "end its routes with one that has only `pool`, or write `unmatched` if that is \
                 what is wanted",
            ),
        );
    }
}

/// What a route is called: its name, or its number from 1.
pub(super) fn label(route: &RouteDraft, index: usize) -> String {
    route
        .name
        .as_ref()
        .map_or_else(|| format!("#{}", index + 1), |name| name.value.clone())
}

/// True when every connection that `narrow` matches is matched by `wide`.
fn covers(wide: &RouteDraft, narrow: &RouteDraft, listen: &[Endpoint], budget: &mut usize) -> bool {
    let asterisk = narrow.matchers.iter().any(
        |narrow| matches!(&narrow.matcher, Matcher::Path(paths) if paths.iter().any(|p| p == "*")),
    );
    wide.matchers.iter().all(|wide| {
        (takes_all(&wide.matcher, listen) && !asterisk)
            || narrow
                .matchers
                .iter()
                .any(|narrow| implies(&narrow.matcher, &wide.matcher, budget))
    })
}

fn takes_all(matcher: &Matcher, listen: &[Endpoint]) -> bool {
    match matcher {
        Matcher::Listen(some) => listen.iter().all(|endpoint| some.contains(endpoint)),
        // Every path begins so, but for the `*` of OPTIONS.
        Matcher::PathPrefix(prefixes) => prefixes.iter().any(|prefix| prefix == "/"),
        _ => false,
    }
}

/// True when whatever meets `narrow` meets `wide`. May say false where it is true.
fn implies(narrow: &Matcher, wide: &Matcher, budget: &mut usize) -> bool {
    use Matcher as M;
    if !spend(budget, 1) {
        return false;
    }
    match (narrow, wide) {
        (M::Listen(a), M::Listen(b)) => each(a, b, budget, |a, b| a == b),
        (M::Host(a), M::Host(b)) | (M::Sni(a), M::Sni(b)) => each(a, b, budget, name_within),
        (M::Path(a), M::Path(b)) | (M::Method(a), M::Method(b)) | (M::Alpn(a), M::Alpn(b)) => {
            each(a, b, budget, |a, b| a == b)
        }
        (M::Path(a) | M::PathPrefix(a), M::PathPrefix(b)) => {
            each(a, b, budget, |a, b| a.starts_with(b.as_str()))
        }
        (M::Path(a) | M::PathSuffix(a), M::PathSuffix(b)) => {
            each(a, b, budget, |a, b| a.ends_with(b.as_str()))
        }
        (M::Path(a), M::PathRegex(b)) => {
            spend(budget, text_len(a).saturating_mul(b.len()))
                && each(a, b, budget, |a, b| b.is_match(a))
        }
        (M::PathRegex(a), M::PathRegex(b)) => each(a, b, budget, |a, b| a.as_str() == b.as_str()),
        (M::Header(a, x), M::Header(b, y)) | (M::Query(a, x), M::Query(b, y)) => {
            a == b && value_within(x, y, budget)
        }
        (M::Cookie(a, x), M::Cookie(b, y)) => a == b && value_within(x, y, budget),
        _ => false,
    }
}

/// Every one of `narrow` lies within one of `wide`.
fn each<A, B>(
    narrow: &[A],
    wide: &[B],
    budget: &mut usize,
    within: impl Fn(&A, &B) -> bool,
) -> bool {
    spend(budget, narrow.len().saturating_mul(wide.len()))
        && narrow
            .iter()
            .all(|narrow| wide.iter().any(|wide| within(narrow, wide)))
}

/// Takes `cost` from the budget, or all of it when it is too small; false then.
fn spend(budget: &mut usize, cost: usize) -> bool {
    let left = budget.checked_sub(cost);
    *budget = left.unwrap_or(0);
    left.is_some()
}

fn text_len(values: &[String]) -> usize {
    values.iter().map(String::len).sum()
}

fn name_within(narrow: &NamePattern, wide: &NamePattern) -> bool {
    match (narrow, wide) {
        (NamePattern::Exact(a), NamePattern::Exact(b)) => a == b,
        (NamePattern::Exact(a) | NamePattern::Suffix(a), NamePattern::Suffix(b)) => {
            a.ends_with(b.as_str())
        }
        (NamePattern::Suffix(_), NamePattern::Exact(_)) => false,
    }
}

fn value_within(narrow: &ValuePattern, wide: &ValuePattern, budget: &mut usize) -> bool {
    match (narrow, wide) {
        (_, ValuePattern::Present) => true,
        (ValuePattern::Exact(a), ValuePattern::Exact(b)) => each(a, b, budget, |a, b| a == b),
        (ValuePattern::Exact(a), ValuePattern::Regex(b)) => {
            spend(budget, text_len(a)) && a.iter().all(|a| b.is_match(a))
        }
        (ValuePattern::Regex(a), ValuePattern::Regex(b)) => a.as_str() == b.as_str(),
        _ => false,
    }
}
