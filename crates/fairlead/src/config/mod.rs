//! The configuration file: TOML in, [`Settings`] or findings out.
//!
//! All findings of a file are reported together, each with its line and column and what to write
//! instead ([`Report`]). `docs/configuration.md` describes every key.

use core::net::SocketAddr;
use core::time::Duration;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fairlead_bpf_loader::FlowTableKind;
use fairlead_splice::access::AccessList;
use fairlead_splice::config::{Config, LaterRequests, Route};
use toml::de::DeTable;

mod access;
mod cache;
pub(crate) use access::entry as access_entry;
mod changes;
mod check;
mod cross;
mod diagnostic;
mod host;
mod instance;
pub(crate) mod keys;
mod later;
mod log;
mod matcher;
mod names;
mod network;
mod page;
mod path;
mod per_request;
mod pool;
mod prefix;
mod quantity;
mod reach;
pub mod schema;
mod section;
mod service;
mod source;
mod syntax;
mod tcb_cache;
pub(crate) mod token;

pub(crate) use changes::changes;
pub use diagnostic::{Diagnostic, FINDINGS_MAX, Finding, Report, Severity};
pub use keys::Described;
pub use log::{Access, LogSettings, Target};
pub(crate) use matcher::show_matcher;
pub use path::{advice, path_if_there, path_or_standard};
pub use prefix::Prefix;
pub(crate) use quantity::{parse_duration, show_duration, show_size};
pub(crate) use section::nearest;
pub(crate) use service::protocol_name;

use cross::{Draft, pool_ids};
use diagnostic::Problems;
use section::Section;
use source::Source;

/// Everything a configuration file says.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The process: its name, its pages.
    pub instance: Instance,
    /// Lines about connections.
    pub log: LogSettings,
    /// The device and its addresses.
    pub network: Network,
    /// The fast path in the kernel.
    pub fastpath: Fastpath,
    /// The switch itself.
    pub switch: Config,
    /// The TCB cache in front of its connection table; none when it is not enabled.
    pub tcb_cache: Option<fairlead_datapath::tcb_cache::Settings>,
}

/// `[instance]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// What this process is called in its status and metrics.
    pub name: String,
    /// Where `/healthz`, `/metrics` and `/status` are served; nowhere if `None`.
    pub admin: Option<SocketAddr>,
    /// What `Host` may be there besides addresses and `localhost`, in lower case.
    pub admin_hosts: Vec<String>,
    /// The file with the token with which orders are taken there.
    pub admin_token_file: Option<PathBuf>,
    /// How long live connections are given after the switch was told to stop.
    pub drain_timeout: Duration,
    /// What becomes of them then.
    pub on_stop: OnStop,
    /// Whether ARP and neighbour discovery are answered for listening addresses.
    pub announce: Announce,
    /// The interfaces on which that is done; all that fit if empty.
    pub announce_interfaces: Vec<String>,
    /// How often an address that is taken over is announced.
    pub announce_repeat: u8,
    /// Where proxies hand connections off; nowhere if `None`.
    pub adopt_socket: Option<PathBuf>,
    /// The group that may use that socket, beside root.
    pub adopt_group: Option<String>,
    /// Pairs of one user at once.
    pub adopt_connections: u32,
}

/// What becomes of live connections when the switch is told to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStop {
    /// They are waited for, then reset.
    #[default]
    Drain,
    /// Spliced ones stay with the kernel fast path, for the next start.
    Keep,
}

impl OnStop {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Drain, Self::Keep];

    /// The word in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Drain => "drain",
            Self::Keep => "keep",
        }
    }
}

/// Whether ARP and neighbour discovery are answered for listening addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announce {
    /// For those in a subnet of an interface that nobody has.
    Auto,
    /// Never.
    Off,
}

/// `[network]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The TUN device to create.
    pub device: String,
    /// Where processes of this machine listen whose idle connections outlive them.
    pub watch: Vec<fairlead_base::Endpoint>,
    /// The prefixes of [`Config::snat`], to be routed to the device.
    pub snat: Vec<Prefix>,
    /// MTU of the device, bytes.
    pub mtu: u16,
}

/// `[fastpath]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fastpath {
    /// Where spliced packets are translated.
    pub mode: Mode,
    /// The interfaces of the kernel fast path; those on the way to services and servers if empty.
    pub interfaces: Vec<String>,
    /// How the kernel finds a packet's connection.
    pub flow_table: FlowTableKind,
    /// How packets reach the other ends of veths.
    pub veth_redirect: VethRedirect,
}

/// How packets that the kernel fast path sends reach the other end of a veth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VethRedirect {
    /// Straight to it, where nothing is known that would have to see them before.
    Peer,
    /// By the queue of received packets, as every other packet does.
    Queue,
}

impl VethRedirect {
    /// All of them, as offered to who writes the file.
    pub const ALL: [Self; 2] = [Self::Peer, Self::Queue];

    /// The word for it in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Peer => "peer",
            Self::Queue => "queue",
        }
    }
}

/// Where spliced packets are translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// In user space, on packets from a TUN device.
    Engine,
    /// In the kernel, the best way that this machine allows.
    Auto,
    /// In the kernel, in the drivers of the interfaces.
    Xdp,
    /// In the kernel, by XDP before the stack.
    XdpGeneric,
    /// In the kernel, at tc ingress.
    Tc,
}

impl Mode {
    /// All of them, as offered to who writes the file.
    pub const ALL: [Self; 5] = [
        Self::Auto,
        Self::Xdp,
        Self::XdpGeneric,
        Self::Tc,
        Self::Engine,
    ];

    /// The word for it in the file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Auto => "auto",
            Self::Xdp => "xdp",
            Self::XdpGeneric => "xdp-generic",
            Self::Tc => "tc",
        }
    }
}

/// A configuration that can be used, and what was odd about it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it says.
    pub settings: Settings,
    /// Warnings only.
    pub warnings: Report,
}

/// Why there is no configuration.
#[derive(Debug)]
#[non_exhaustive]
pub enum LoadError {
    /// The file cannot be read.
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// The file is larger than [`FILE_BYTES_MAX`].
    TooLarge {
        /// Which file.
        path: PathBuf,
    },
    /// The file is there, but wrong.
    Broken(Report),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, error } => {
                write!(
                    f,
                    "cannot read the configuration {}: {error}",
                    path.display()
                )
            }
            Self::TooLarge { path } => write!(
                f,
                "{} has more than {} MiB: too large for a configuration",
                path.display(),
                FILE_BYTES_MAX >> 20
            ),
            Self::Broken(report) => f.write_str(report.render(false).trim_end()),
        }
    }
}

impl std::error::Error for LoadError {}

/// The longest file that is read, bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
const SERVICES_MAX: usize = 256;
const POOLS_MAX: usize = 1_024;
/// Headers of IPv4 and TCP without options: what an MTU has more than an MSS.
const IPV4_TCP_HEADERS: u16 = 40;
/// RFC 8200, section 5.
const IPV6_MTU_MIN: u16 = 1_280;

/// A service and a server: a configuration for tests that only need one.
#[cfg(test)]
pub(crate) const SMALL: &str = r#"
    [instance]
    name = "one"
    [network]
    snat = "100.64.0.0/24"
    [fastpath]
    mode = "tc"
    [[service]]
    name = "web"
    listen = "10.1.0.3:80"
    protocol = "http"
    source = "snat"
    [[service.route]]
    pool = "pages"
    [[pool]]
    name = "pages"
    server = [{ address = "10.2.0.1:8081" }]
"#;

/// Reads the file at `path`.
pub fn load(path: &Path) -> Result<Loaded, LoadError> {
    let unreadable = |error| LoadError::Unreadable {
        path: path.to_owned(),
        error,
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(LoadError::TooLarge {
            path: path.to_owned(),
        });
    }
    let name = path.display().to_string();
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            let mut problems = Problems::default();
            problems.push(
                Diagnostic::error(&(at..at + 1), "this is not UTF-8, which TOML is written in")
                    .help("save the file as UTF-8"),
            );
            return Err(LoadError::Broken(
                problems.into_report(Source::new(&name, &text)),
            ));
        }
    };
    parse(&text, &name).map_err(LoadError::Broken)
}

/// Reads a configuration from its text; `name` is what findings call the file.
pub fn parse(text: &str, name: &str) -> Result<Loaded, Report> {
    let source = Source::new(name, text);
    let mut problems = Problems::default();
    let settings = settings(text, &mut problems);
    let failed = problems.any_error();
    let report = problems.into_report(source);
    match settings {
        Some(settings) if !failed => Ok(Loaded {
            settings,
            warnings: report,
        }),
        _ => Err(report),
    }
}

fn settings(text: &str, problems: &mut Problems) -> Option<Settings> {
    let (document, errors) = DeTable::parse_recoverable(text);
    syntax::report(text, &errors, problems);
    if !errors.is_empty() {
        // What the parser made up to go on would only draw findings that nobody can act upon.
        return None;
    }
    let moved = section::moved(document.get_ref(), problems);
    let nothing = DeTable::new();
    let file = Section::of(document.get_ref(), &(0..0), &schema::FILE, &moved, problems);
    let mut open = |key: &str, kind: &schema::Table| match file.node(key) {
        Some(node) => Section::open(node, kind, &moved, problems),
        // Keys of it may stand elsewhere, under earlier names.
        None => Some(Section::of(&nothing, &(0..0), kind, &moved, problems)),
    };
    let instance_section = open("instance", &schema::INSTANCE);
    let network_section = open("network", &schema::NETWORK);
    let fastpath_section = open("fastpath", &schema::FASTPATH);
    let (limits_section, log) = (open("limits", &schema::LIMITS), open("log", &schema::LOG));
    let tcb_cache_section = file
        .node("tcb_cache")
        .and_then(|node| Section::open(node, &schema::TCB_CACHE, &moved, problems));

    let instance = instance::instance(instance_section, problems);
    let (network, snat) = network::network(network_section, problems);
    let fastpath = network::fastpath((fastpath_section, network_section), &network, problems);
    let limits = instance::limits(limits_section, problems);
    let tcb_cache = tcb_cache::tcb_cache(tcb_cache_section, problems);
    let access = file
        .tables("access", &schema::ACCESS, access::ACCESS_MAX, problems)
        .into_iter()
        .map(|table| access::access(table, problems))
        .collect::<Vec<_>>();
    let services = file
        .tables("service", &schema::SERVICE, SERVICES_MAX, problems)
        .into_iter()
        .map(|table| service::service(table, problems))
        .collect::<Vec<_>>();
    let pools = file
        .tables("pool", &schema::POOL, POOLS_MAX, problems)
        .into_iter()
        .map(|table| pool::pool(table, problems))
        .collect::<Vec<_>>();
    without_tables(file, text, &services, problems);
    let longest_head = services
        .iter()
        .map(|one| one.service.head_bytes_max)
        .max()
        .unwrap_or(0);
    instance::room_for_a_head(limits_section, &limits, longest_head, problems);
    let draft = Draft {
        instance,
        log: log::log(log, problems),
        network,
        fastpath,
        snat,
        access,
        services,
        pools,
        tcb_cache,
    };
    if let Some(section) = network_section {
        room_for_ipv6(section, &draft, problems);
    }
    cross::check(&draft, problems);
    if problems.any_error() {
        return None;
    }
    build(draft, limits)
}

/// Says so when there is no service, or no pool although a route leads to one.
fn without_tables(
    file: Section<'_>,
    text: &str,
    services: &[service::ServiceDraft],
    problems: &mut Problems,
) {
    let mut routes = services.iter().flat_map(|service| &service.routes);
    let needs_pool = services.is_empty() || routes.any(|route| !route.route.is_to_host());
    let tables = [("service", &schema::SERVICE), ("pool", &schema::POOL)];
    for (key, kind) in tables
        .into_iter()
        .filter(|(key, _)| needs_pool || *key != "pool")
    {
        let empty = file.node(key).is_none_or(|node| {
            node.get_ref()
                .as_array()
                .is_some_and(|array| array.is_empty())
        });
        if empty {
            // Where it could be written: at its empty list, or at the end of the file.
            let place = match file.node(key) {
                Some(_) => file.key_span(key),
                None => text.len()..text.len(),
            };
            problems.push(
                Diagnostic::error(&place, format!("there is no {}", kind.title))
                    .help(format!("write {} and its keys below it", kind.title)),
            );
        }
    }
}

/// Says so when IPv6 packets come to the device, and the MTU is too small for that: those of
/// clients, of servers to a source address, and of servers that see the clients' own.
fn room_for_ipv6(section: Section<'_>, draft: &Draft, problems: &mut Problems) {
    use fairlead_splice::config::Source::Transparent;

    let services = &draft.services;
    let mut listens = services.iter().flat_map(|one| &one.listen);
    let mut sources = draft.network.snat.iter();
    let transparent = services
        .iter()
        .filter(|one| one.service.source == Transparent);
    let pools: Vec<&str> = transparent
        .flat_map(|service| &service.routes)
        .filter_map(|route| Some(route.pool.as_ref()?.value.as_str()))
        .collect();
    let of_them = |pool: &&pool::PoolDraft| {
        let name = pool.name.as_ref();
        name.is_some_and(|name| pools.contains(&name.value.as_str()))
    };
    let mut servers = draft
        .pools
        .iter()
        .filter(of_them)
        .flat_map(|pool| &pool.servers);
    let has_ipv6 = listens.any(|listen| !listen.value.addr.is_v4())
        || sources.any(|prefix| prefix.address().is_ipv6())
        || servers.any(|server| !server.value.endpoint.addr.is_v4());
    if draft.network.mtu < IPV6_MTU_MIN && has_ipv6 {
        problems.push(
            Diagnostic::error(
                &section.key_span("mtu"),
                format!("IPv6 needs an MTU of {IPV6_MTU_MIN} (RFC 8200, section 5)"),
            )
            .help(format!("write mtu = {IPV6_MTU_MIN} or more")),
        );
    }
}

/// The addresses of all prefixes.
fn sources(network: &Network) -> Vec<fairlead_base::Address> {
    let prefixes = network.snat.iter();
    prefixes
        .filter_map(|prefix| prefix.hosts().ok())
        .flatten()
        .collect()
}

/// The access lists that a service names.
fn access_of(
    service: &service::ServiceDraft,
    lists: &[access::AccessDraft],
) -> Option<Vec<Arc<AccessList>>> {
    let of = |name: &diagnostic::At<String>| {
        let found = lists.iter().find(|one| {
            let its = one.name.as_ref();
            its.is_some_and(|its| its.value == name.value)
        });
        found.map(|one| Arc::clone(&one.list))
    };
    service.access.iter().map(of).collect()
}

/// From what was read to what the switch is told. `None` only for what was reported as an error.
/// Pairs that all proxies together may have handed off.
pub(crate) const PAIRS_MAX: u32 = 65_536;

fn build(draft: Draft, limits: fairlead_splice::config::Limits) -> Option<Settings> {
    let ids = pool_ids(&draft.pools);
    let access = &draft.access;
    let mut services = Vec::new();
    for draft in &draft.services {
        draft.name.as_ref()?;
        draft.protocol?;
        let mut service = draft.service.clone();
        service.access = access_of(draft, access)?;
        if !draft.says_later_requests && later::mixed(draft).is_some() {
            service.later_requests = LaterRequests::Count;
        }
        for (index, draft) in draft.routes.iter().enumerate() {
            let matchers = draft.matchers.iter().map(|draft| draft.matcher.clone());
            service.routes.push(Route {
                name: reach::label(draft, index),
                matchers: matchers.collect(),
                pool: match &draft.pool {
                    Some(name) => Some(*ids.get(name.value.as_str())?),
                    None => None,
                },
                ..draft.route.clone()
            });
        }
        services.push(service);
    }
    let pools = draft.pools.into_iter().map(|draft| draft.pool);
    let switch = Config {
        snat: sources(&draft.network),
        limits,
        device_mss: draft.network.mtu - IPV4_TCP_HEADERS,
        watched: draft.network.watch.clone(),
        front: None,
        details_bytes: match draft.log.access {
            Access::All => draft.log.details_bytes,
            Access::Off | Access::Refused => 0,
        },
        pairs: match draft.instance.instance.adopt_socket {
            Some(_) => limits.connections.min(PAIRS_MAX),
            None => 0,
        },
        ..Config::new(services, pools.collect())
    };
    Some(Settings {
        instance: draft.instance.instance,
        log: draft.log,
        network: draft.network,
        fastpath: draft.fastpath,
        switch,
        tcb_cache: draft.tcb_cache,
    })
}
