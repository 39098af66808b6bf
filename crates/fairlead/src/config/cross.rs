//! What only the whole file can tell: names, references, address families, overlaps.

use std::collections::BTreeMap;

use fairlead_base::{Address, Endpoint};
use fairlead_splice::config::{
    HashOn, Matcher, PoolId, Protocol, Server, Source, Treatment, Unmatched,
};

use super::access::AccessDraft;
use super::cache;
use super::diagnostic::{At, Diagnostic, Problems, Span};
use super::host;
use super::instance::InstanceDraft;
use super::later::later_requests;
use super::network::SnatDraft;
use super::per_request;
use super::pool::PoolDraft;
use super::reach::{openings, reach};
use super::section::{nearest, quoted};
use super::service::{RouteDraft, ServiceDraft, protocol_name};
use super::{Fastpath, Mode, Network, OnStop};

/// Everything read from the file.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) instance: InstanceDraft,
    pub(super) log: super::LogSettings,
    pub(super) network: Network,
    pub(super) fastpath: Fastpath,
    pub(super) snat: SnatDraft,
    pub(super) access: Vec<AccessDraft>,
    pub(super) services: Vec<ServiceDraft>,
    pub(super) pools: Vec<PoolDraft>,
    pub(super) tcb_cache: Option<fairlead_datapath::tcb_cache::Settings>,
}

/// The first use of every name, and a complaint about the second.
fn distinct<'d>(what: &str, names: impl Iterator<Item = &'d At<String>>, problems: &mut Problems) {
    let mut seen: BTreeMap<&str, &Span> = BTreeMap::new();
    for name in names {
        if let Some(first) = seen.get(name.value.as_str()) {
            problems.push(
                Diagnostic::error(
                    &name.span,
                    format!("two {what}s are called {:?}", name.value),
                )
                .related(first, "the first one")
                .help("give each its own name"),
            );
        } else {
            seen.insert(&name.value, &name.span);
        }
    }
}

/// The pools by name; the first of two that share one.
pub(super) fn pool_ids(pools: &[PoolDraft]) -> BTreeMap<&str, PoolId> {
    let mut ids = BTreeMap::new();
    for (index, pool) in pools.iter().enumerate() {
        if let Some(name) = &pool.name {
            ids.entry(name.value.as_str())
                .or_insert(PoolId(index as u16));
        }
    }
    ids
}

/// Says so when a stop is to leave connections to a kernel program that there is not.
fn nothing_to_keep(draft: &Draft, problems: &mut Problems) {
    if let Some(on_stop) = &draft.instance.on_stop
        && draft.instance.instance.on_stop == OnStop::Keep
        && draft.fastpath.mode == Mode::Engine
    {
        let message =
            "on_stop = \"keep\" has no effect with mode = \"engine\": there is no kernel program";
        problems.push(
            Diagnostic::warning(on_stop, message.to_owned()).help(
                "live connections get `drain_timeout`; leave `on_stop` out if that is intended",
            ),
        );
    }
}

pub(super) fn check(draft: &Draft, problems: &mut Problems) {
    distinct(
        "service",
        draft.services.iter().filter_map(|one| one.name.as_ref()),
        problems,
    );
    distinct(
        "pool",
        draft.pools.iter().filter_map(|one| one.name.as_ref()),
        problems,
    );
    for service in &draft.services {
        distinct(
            "route",
            service.routes.iter().filter_map(|one| one.name.as_ref()),
            problems,
        );
    }
    nothing_to_keep(draft, problems);
    access_lists(draft, problems);
    let listens = listens(draft, problems);
    let ids = pool_ids(&draft.pools);
    let mut uses = vec![Use::default(); draft.pools.len()];
    let mut said = Said::default();
    for service in &draft.services {
        let openings = openings(service);
        for (route, open) in service.routes.iter().zip(&openings.routes) {
            host::check(draft, service, route, open, problems);
            per_request::check(service, route, problems);
            cache::check(draft, service, route, problems);
            let Some(name) = &route.pool else { continue };
            let Some(id) = ids.get(name.value.as_str()) else {
                no_pool(name, &ids, problems);
                continue;
            };
            let pool = &draft.pools[usize::from(id.0)];
            uses[usize::from(id.0)].add(route, open);
            families(service, route, open, pool, problems);
            hashing(service, name, pool, problems);
        }
        sources(service, draft, &mut said, problems);
        route_listens(service, problems);
        reach(service, &openings, unmatched_answer(service), problems);
        later_requests(service, problems);
    }
    servers(draft, &listens, problems);
    // A route that could not be read may be the one that leads to a pool.
    if !problems.any_error() {
        for (pool, of) in draft.pools.iter().zip(uses) {
            never_used(pool, &of, problems);
            all_weights_zero(pool, &of, problems);
        }
    }
    if let Some(admin) = &draft.instance.admin
        && let Some(listen) = listens.get(&Address::from(admin.value.ip()))
    {
        problems.push(
            Diagnostic::error(
                &admin.span,
                format!(
                    "a service listens at {}; its packets go to the switch",
                    admin.value.ip()
                ),
            )
            .related(listen, "the service")
            .help("write an address of this machine, such as \"127.0.0.1:9090\""),
        );
    }
}

/// Access lists have distinct names, each that a service names is there, and each is used.
fn access_lists(draft: &Draft, problems: &mut Problems) {
    let names = || draft.access.iter().filter_map(|one| one.name.as_ref());
    distinct("access list", names(), problems);
    let used = || draft.services.iter().flat_map(|service| &service.access);
    for name in used() {
        if names().any(|one| one.value == name.value) {
            continue;
        }
        let message = format!("there is no access list {}", quoted(&name.value));
        let help = match nearest(&name.value, names().map(|one| one.value.as_str())) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("add [[access]] with name = {}", quoted(&name.value)),
        };
        problems.push(Diagnostic::error(&name.span, message).help(help));
    }
    for name in names().filter(|name| !used().any(|one| one.value == name.value)) {
        let message = format!("no service uses access list {}", quoted(&name.value));
        problems.push(
            Diagnostic::warning(&name.span, message)
                .help("name it under `access` of a [[service]], or leave it out"),
        );
    }
}

/// Who comes to a pool.
#[derive(Clone, Debug, Default)]
struct Use {
    any: bool,
    v4: bool,
    v6: bool,
}

impl Use {
    /// A route leads there from these.
    fn add(&mut self, route: &RouteDraft, open: &[Endpoint]) {
        self.any = true;
        // A request is not bound to the family of its client.
        let both = route.route.treatment == Treatment::PerRequest;
        self.v4 |= both || open.iter().any(|listen| listen.addr.is_v4());
        self.v6 |= both || open.iter().any(|listen| !listen.addr.is_v4());
    }
}

/// Says so of a pool that no route leads to, and of servers of a family that no client there has.
fn never_used(pool: &PoolDraft, of: &Use, problems: &mut Problems) {
    let Some(name) = &pool.name else { return };
    if !of.any {
        let message = format!("no route leads to pool {:?}", name.value);
        let finding = Diagnostic::warning(&name.span, message);
        problems.push(finding.help("name it in a [[service.route]], or leave it out"));
        return;
    }
    let has_clients = |v4: bool| if v4 { of.v4 } else { of.v6 };
    let chosen = pool.servers.iter().filter(|one| one.value.weight > 0);
    let mut idle = chosen.filter(|one| !has_clients(one.value.endpoint.addr.is_v4()));
    // Where none comes at all, a finding about the route says so.
    if let Some(server) = idle.next().filter(|_| of.v4 || of.v6) {
        let endpoint = server.value.endpoint;
        let (its, theirs) = match endpoint.addr.is_v4() {
            true => ("IPv4", "IPv6"),
            false => ("IPv6", "IPv4"),
        };
        let message = format!(
            "{endpoint} is never chosen: an {its} server, and {theirs} clients alone come to pool \
             {:?}",
            name.value
        );
        let help = format!(
            "a splice keeps the address family: listen at an {its} address, too, or leave the \
             server out"
        );
        problems.push(Diagnostic::warning(&server.span, message).help(help));
    }
}

/// Warns of a pool where all servers that some clients could have are taken out by `weight = 0`.
/// That is how the last server is taken out for maintenance, so it is no error.
fn all_weights_zero(pool: &PoolDraft, of: &Use, problems: &mut Problems) {
    let Some(name) = &pool.name else { return };
    let out = |v4: bool| {
        let of_family = |server: &&At<Server>| server.value.endpoint.addr.is_v4() == v4;
        let servers = || pool.servers.iter().filter(of_family);
        servers().next().is_some() && servers().all(|server| server.value.weight == 0)
    };
    let (four, six) = (of.v4 && out(true), of.v6 && out(false));
    let is_v4 = |server: &&At<Server>| server.value.endpoint.addr.is_v4();
    let mixed = pool.servers.iter().any(|server| is_v4(&server))
        && !pool.servers.iter().all(|server| is_v4(&server));
    let which = match (four, six) {
        (false, false) => return,
        (true, false) if mixed => "every IPv4 server",
        (false, true) if mixed => "every IPv6 server",
        _ => "every server",
    };
    let first = pool.servers.iter().find(|server| is_v4(server) == four);
    let Some(server) = first else { return };
    let message = format!("{which} of pool {:?} has weight 0", name.value);
    problems.push(Diagnostic::warning(&server.span, message).help(
        "its clients are refused as if no server could be reached (HTTP clients get 503); \
         a weight of 1 or more brings a server back",
    ));
}

/// Every listening address with its first place; complains of endpoints that are taken and of
/// addresses that cannot work.
fn listens<'d>(draft: &'d Draft, problems: &mut Problems) -> BTreeMap<Address, &'d Span> {
    let mut endpoints: BTreeMap<Endpoint, &Span> = BTreeMap::new();
    let mut addresses: BTreeMap<Address, &Span> = BTreeMap::new();
    for listen in draft.services.iter().flat_map(|service| &service.listen) {
        let endpoint = listen.value;
        if let Some(first) = endpoints.get(&endpoint) {
            problems.push(
                Diagnostic::error(&listen.span, format!("{endpoint} is listened at twice"))
                    .related(first, "the first time")
                    .help("give each service its own address or port, or merge the two services"),
            );
            continue;
        }
        if draft.network.watch.contains(&endpoint) {
            let message =
                format!("{endpoint} is in `watch` of [network], so a process listens there");
            problems.push(
                Diagnostic::error(&listen.span, message)
                    .help("listen elsewhere, or leave it out of `watch`"),
            );
        }
        endpoints.insert(endpoint, &listen.span);
        if endpoints.len() == ENDPOINTS_MAX + 1 {
            let message = format!("more than {ENDPOINTS_MAX} listening endpoints");
            problems.push(Diagnostic::error(&listen.span, message).help("write fewer"));
        }
        if addresses.contains_key(&endpoint.addr) {
            continue;
        }
        addresses.insert(endpoint.addr, &listen.span);
        if endpoint.addr.to_ip().is_loopback() {
            problems.push(
                Diagnostic::warning(
                    &listen.span,
                    format!("packets to {} never leave this machine", endpoint.addr),
                )
                .help("use an address routed to the switch, such as \"10.1.0.3:80\""),
            );
        }
        if let Some(prefix) = draft
            .snat
            .prefixes
            .iter()
            .find(|one| one.value.contains(endpoint.addr))
        {
            problems.push(
                Diagnostic::error(
                    &listen.span,
                    format!("{} is one of the source addresses", endpoint.addr),
                )
                .related(&prefix.span, "the source addresses")
                .help("listen at an address outside of `snat`"),
            );
        }
    }
    addresses
}

/// A connection's record names its listening endpoint by a number of 16 bits.
const ENDPOINTS_MAX: usize = 65_535;

fn no_pool(name: &At<String>, ids: &BTreeMap<&str, PoolId>, problems: &mut Problems) {
    let help = match nearest(&name.value, ids.keys().copied()) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None if ids.is_empty() => {
            format!(
                "add [[pool]] with name = {} and its servers",
                quoted(&name.value)
            )
        }
        None => {
            let known: Vec<_> = ids.keys().take(12).copied().collect();
            format!("the pools are {}", known.join(", "))
        }
    };
    problems.push(
        Diagnostic::error(
            &name.span,
            format!("there is no pool {}", quoted(&name.value)),
        )
        .help(help),
    );
}

/// A splice translates numbers, not address families: a client's server must have the family of
/// the client, so a pool needs servers of every family that reaches it.
fn families(
    service: &ServiceDraft,
    route: &RouteDraft,
    open: &[Endpoint],
    pool: &PoolDraft,
    problems: &mut Problems,
) {
    let name = match &route.pool {
        Some(name) if route.route.treatment != Treatment::PerRequest => name,
        _ => return,
    };
    let serves = |v4: bool| {
        pool.servers
            .iter()
            .any(|server| server.value.endpoint.addr.is_v4() == v4)
    };
    let (four, six) = (serves(true), serves(false));
    let unserved = |listen: &&Endpoint| if listen.addr.is_v4() { !four } else { !six };
    // Without any server there is a finding already.
    let Some(listen) = open.iter().find(unserved).filter(|_| four || six) else {
        return;
    };
    let family = if listen.addr.is_v4() { "IPv4" } else { "IPv6" };
    let both = service
        .listen
        .iter()
        .any(|one| one.value.addr.is_v4() != listen.addr.is_v4());
    let mut finding = Diagnostic::error(
        &name.span,
        format!(
            "pool {:?} has no {family} server for the clients of {listen}",
            name.value
        ),
    );
    if let Some(server) = pool.servers.first() {
        finding = finding.related(&server.span, "its servers");
    }
    problems.push(finding.help(if both {
        "add servers of that family, or write one route for each family, told apart by `listen`"
    } else {
        "a splice keeps the address family: lead to servers of the family listened at"
    }));
}

fn hashing(service: &ServiceDraft, name: &At<String>, pool: &PoolDraft, problems: &mut Problems) {
    let Some(protocol) = service
        .protocol
        .filter(|&protocol| protocol != Protocol::Http)
    else {
        return;
    };
    let what = match pool.pool.balance.hash_on() {
        Some(HashOn::Header(_)) => "header",
        Some(HashOn::Cookie(_)) => "cookie",
        Some(HashOn::ClientAddress) | None => return,
    };
    problems.push(
        Diagnostic::error(
            &name.span,
            format!(
                "pool {:?} hashes a {what}, which a {} service never sees",
                name.value,
                protocol_name(protocol)
            ),
        )
        .related(&pool.hash_span, "the hash")
        .help("lead to a pool with hash = \"client-address\""),
    );
}

/// Families of which the lack of source addresses was already reported.
#[derive(Default)]
struct Said {
    v4: bool,
    v6: bool,
}

/// A service with `source = "snat"` needs source addresses of its family.
fn sources(service: &ServiceDraft, draft: &Draft, said: &mut Said, problems: &mut Problems) {
    let needs_none = |route: &RouteDraft| route.route.is_to_host() && route.pool.is_none();
    let by_host_alone = !service.routes.is_empty() && service.routes.iter().all(needs_none);
    if service.service.source != Source::Snat || !draft.snat.whole || by_host_alone {
        return;
    }
    for (v4, family, example) in [
        (true, "IPv4", "100.64.0.0/24"),
        (false, "IPv6", "2001:db8:64::/120"),
    ] {
        let said = if v4 { &mut said.v4 } else { &mut said.v6 };
        let wanted = service
            .listen
            .iter()
            .any(|listen| listen.value.addr.is_v4() == v4);
        let there = draft.network.snat.iter().any(|prefix| prefix.is_v4() == v4);
        if !wanted || there || *said {
            continue;
        }
        *said = true;
        problems.push(
            Diagnostic::error(
                &service.source_span,
                format!("source \"snat\" needs {family} source addresses, and there are none"),
            )
            .help(format!(
                "write snat = \"{example}\" (with your own addresses) in [network], \
                 or source = \"transparent\" here"
            )),
        );
    }
}

/// A route's `listen` must be one of the service's.
fn route_listens(service: &ServiceDraft, problems: &mut Problems) {
    if !service.listen_whole {
        return;
    }
    for matcher in service.routes.iter().flat_map(|route| &route.matchers) {
        let Matcher::Listen(endpoints) = &matcher.matcher else {
            continue;
        };
        for (endpoint, span) in endpoints.iter().zip(&matcher.values) {
            if service
                .listen
                .iter()
                .any(|listen| listen.value == *endpoint)
            {
                continue;
            }
            let known: Vec<_> = service
                .listen
                .iter()
                .take(4)
                .map(|listen| listen.value.to_string())
                .collect();
            problems.push(
                Diagnostic::error(span, format!("this service does not listen at {endpoint}"))
                    .help(format!("it listens at {}", known.join(", "))),
            );
        }
    }
}

fn servers(draft: &Draft, listens: &BTreeMap<Address, &Span>, problems: &mut Problems) {
    for server in draft.pools.iter().flat_map(|pool| &pool.servers) {
        let address = server.value.endpoint.addr;
        if let Some(listen) = listens.get(&address) {
            problems.push(
                Diagnostic::error(
                    &server.span,
                    format!("{address} is an address that a service listens at"),
                )
                .related(listen, "the service")
                .help("packets to it come back to the switch; write the server's own address"),
            );
        } else if let Some(prefix) = draft
            .snat
            .prefixes
            .iter()
            .find(|one| one.value.contains(address))
        {
            problems.push(
                Diagnostic::error(
                    &server.span,
                    format!("{address} is one of the source addresses"),
                )
                .related(&prefix.span, "the source addresses")
                .help("packets to it come back to the switch; choose another `snat`"),
            );
        } else if address.to_ip().is_loopback() {
            problems.push(
                Diagnostic::warning(
                    &server.span,
                    format!("a server at {address} answers only its own machine's stack"),
                )
                .help("write an address of the server that is reached from outside"),
            );
        }
    }
}

fn unmatched_answer(service: &ServiceDraft) -> &'static str {
    match (service.protocol, service.service.unmatched) {
        (Some(Protocol::Tls), Unmatched::Alert) => {
            "clients that match none get a TLS alert and no server"
        }
        (_, Unmatched::Reset) | (Some(Protocol::Tcp), _) => "clients that match none are reset",
        (_, Unmatched::Misdirected) => "requests that match none get 421 Misdirected Request",
        (_, Unmatched::NotFound | Unmatched::Alert) => "requests that match none get 404 Not Found",
    }
}
