//! What the switch is told to do: services, routes, pools, limits. Immutable once built.
//!
//! These types are the meaning of a configuration, not its file format: the binary reads TOML and
//! builds them; simulations and benches build them directly.

use core::time::Duration;
use std::sync::Arc;

use fairlead_base::{Address, Endpoint};
pub use fairlead_check::{Check, Kind as CheckKind, OnDown, StatusRange};

use crate::access::AccessList;

/// Everything the switch is told.
#[derive(Clone, Debug)]
pub struct Config {
    /// The services, in the order of the file.
    pub services: Vec<Service>,
    /// The pools, referred to by [`PoolId`].
    pub pools: Vec<Pool>,
    /// Source addresses for services with [`Source::Snat`], both families in one list.
    pub snat: Vec<Address>,
    /// Bounds on everything that strangers can make grow.
    pub limits: Limits,
    /// MSS of the device towards IPv4 peers (MTU − 40); towards IPv6 peers it is 20 less.
    pub device_mss: u16,
    /// How many bytes of [`crate::Details`] of live connections are kept, at most; 0: none are.
    pub details_bytes: u64,
    /// Where processes of this machine listen whose idle connections outlive them. Their clients'
    /// packets come here only while the connections sleep.
    pub watched: Vec<Endpoint>,
    /// Pairs of connections that proxies may hand off, at most; 0: none are taken.
    pub pairs: u32,
    /// The last pool, if its servers are sockets of this process: connections of routes to the
    /// front take it where the kernel makes them no sockets. Snapshots leave it out.
    pub front: Option<PoolId>,
}

impl Config {
    /// These services and pools, and the default of everything else: no source addresses, and a
    /// device for segments of Ethernet's length.
    pub fn new(services: Vec<Service>, pools: Vec<Pool>) -> Self {
        Self {
            services,
            pools,
            snat: Vec::new(),
            limits: Limits::default(),
            device_mss: 1_460,
            details_bytes: 0,
            watched: Vec::new(),
            pairs: 0,
            front: None,
        }
    }
}

/// Index into [`Config::pools`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub u16);

/// A virtual service: where clients connect.
#[derive(Clone, Debug)]
pub struct Service {
    /// Its name in logs and metrics.
    pub name: String,
    /// The listening endpoints (VIPs).
    pub listen: Vec<Endpoint>,
    /// What is read before a server is chosen.
    pub protocol: Protocol,
    /// Whose address servers see.
    pub source: Source,
    /// Clients must be allowed by all of these; [`ACCESS_LISTS_MAX`] at most.
    pub access: Vec<Arc<AccessList>>,
    /// What a client gets that one of them denies.
    pub on_denied: OnDenied,
    /// First match wins; none matching is a refusal ([`Service::unmatched`]).
    pub routes: Vec<Route>,
    /// What a client without a route gets.
    pub unmatched: Unmatched,
    /// What stands in an HTTP answer to a client without a route, instead of a short text.
    pub unmatched_page: Option<Arc<Page>>,
    /// The same in the answer 503, when no server can be reached.
    pub unavailable_page: Option<Arc<Page>>,
    /// What becomes of requests that another pool would get if each was decided.
    pub later_requests: LaterRequests,
    /// Timers of this service's connections.
    pub timeouts: Timeouts,
    /// The longest head, bytes (16 KiB for HTTP, 32 KiB for TLS by default).
    pub head_bytes_max: u32,
    /// How requests are served that are routed one by one.
    pub per_request: PerRequest,
}

impl Service {
    /// True if the kernel may send responses that a route's cache holds: what it compares of a
    /// request must decide about the route.
    pub fn answers_in_kernel(&self, route: &Route) -> bool {
        let mut matchers = self.routes.iter().flat_map(|one| &one.matchers);
        route.cache.as_ref().is_some_and(|cache| cache.kernel)
            && matchers.all(Matcher::decided_by_plain_head)
    }

    /// A service without routes, with the default of everything else.
    pub fn new(name: impl Into<String>, listen: Vec<Endpoint>, protocol: Protocol) -> Self {
        Self {
            name: name.into(),
            listen,
            protocol,
            source: Source::Snat,
            access: Vec::new(),
            on_denied: OnDenied::Drop,
            routes: Vec::new(),
            unmatched: protocol.unmatched(),
            unmatched_page: None,
            unavailable_page: None,
            later_requests: LaterRequests::Pass,
            timeouts: Timeouts::default(),
            head_bytes_max: protocol.head_bytes_max(),
            per_request: PerRequest::default(),
        }
    }
}

/// How requests of [`Treatment::PerRequest`] are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerRequest {
    /// A client without a request is waited for so long.
    pub keep_alive: Duration,
    /// A request that makes no progress for so long is given up.
    pub stalled: Duration,
    /// How servers learn the client's address.
    pub forwarded: Forwarded,
}

impl Default for PerRequest {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_secs(60),
            stalled: Duration::from_secs(60),
            forwarded: Forwarded::XForwardedFor,
        }
    }
}

/// The field that carries a client's address to servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Forwarded {
    /// None.
    Off,
    /// `X-Forwarded-For`.
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Standard,
}

/// The body of an HTTP answer that the switch gives itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Where it was read.
    pub path: String,
    /// The value of `Content-Type`.
    pub content_type: &'static str,
    /// [`PAGE_BYTES_MAX`] at most.
    pub body: Vec<u8>,
}

/// The longest [`Page`], bytes: what most clients get within one round trip.
pub const PAGE_BYTES_MAX: usize = 16 << 10;

/// Access lists of one service, at most: as many as the kernel program asks.
pub const ACCESS_LISTS_MAX: usize = 8;

/// What becomes of the SYN of a client that an access list denies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnDenied {
    /// Nothing is sent.
    Drop,
    /// A RST.
    Reset,
}

/// What is read before a server is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// An HTTP/1 request head.
    Http,
    /// A TLS ClientHello.
    Tls,
    /// Nothing: the server is chosen as soon as the client's handshake is complete.
    Tcp,
}

impl Protocol {
    /// The longest head where nothing is configured, bytes.
    pub fn head_bytes_max(self) -> u32 {
        match self {
            Self::Http | Self::Tcp => 16 << 10,
            Self::Tls => 32 << 10,
        }
    }

    /// What a client without a route gets where nothing is configured.
    pub fn unmatched(self) -> Unmatched {
        match self {
            Self::Http => Unmatched::NotFound,
            Self::Tls => Unmatched::Alert,
            Self::Tcp => Unmatched::Reset,
        }
    }
}

/// Whose address servers see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The client's own address and port.
    Transparent,
    /// An address and port of [`Config::snat`].
    Snat,
}

/// The answer to a client that no route matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unmatched {
    /// 404 Not Found (RFC 9110, section 15.5.5).
    NotFound,
    /// 421 Misdirected Request (RFC 9110, section 15.5.20).
    Misdirected,
    /// The TLS alert `unrecognized_name` (RFC 6066, section 3).
    Alert,
    /// A RST. Always so for [`Protocol::Tcp`]: nothing has been asked that could be answered.
    Reset,
}

/// What becomes of a later request on a spliced connection that another pool would get if it was
/// the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LaterRequests {
    /// It goes where the first one went, like all others.
    Pass,
    /// The same; in a sample of the connections such requests are counted.
    Count,
    /// It is not forwarded: both ends get a RST, and the client asks again over a new connection.
    Close,
}

/// One line of a service's routing.
#[derive(Clone, Debug)]
pub struct Route {
    /// A name for logs and metrics (`#2` or what the configuration says).
    pub name: String,
    /// All must match; none means everything matches.
    pub matchers: Vec<Matcher>,
    /// The pool that matching connections go to. With [`Treatment::Host`]: those that the listener
    /// cannot take, if they may go anywhere.
    pub pool: Option<PoolId>,
    /// With [`Treatment::Host`]: who takes them. With [`Treatment::PerRequest`]: sockets of this
    /// process, known once it runs; connections that they cannot take go to [`Config::front`].
    pub listeners: Listeners,
    /// With [`Treatment::Host`]: idle connections outlive the process that has their socket.
    pub sleep: bool,
    /// How they are served.
    pub treatment: Treatment,
    /// Responses are stored, and requests answered from there. HTTP only.
    pub cache: Option<CacheRule>,
    /// How many further servers are tried when one refuses or is silent.
    pub retries: u8,
}

impl Route {
    /// A route with the default of everything else: one decision for the whole connection, and two
    /// further servers.
    pub fn new(name: impl Into<String>, matchers: Vec<Matcher>, pool: PoolId) -> Self {
        Self {
            name: name.into(),
            matchers,
            pool: Some(pool),
            listeners: Listeners::default(),
            sleep: false,
            treatment: Treatment::Splice,
            cache: None,
            retries: 2,
        }
    }
}

impl Route {
    /// True if connections become sockets of another process on this machine.
    pub fn is_to_host(&self) -> bool {
        self.treatment == Treatment::Host
    }

    /// True if connections may become sockets of this process, which reads their requests.
    pub fn is_to_front(&self) -> bool {
        self.treatment == Treatment::PerRequest || self.cache.is_some()
    }

    /// True if connections may become sockets, of another process or of this one.
    pub fn is_to_socket(&self) -> bool {
        self.is_to_host() || self.is_to_front()
    }
}

/// What a cache holds, and what it tells requests apart by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheRule {
    /// All that it takes, bytes.
    pub bytes: u64,
    /// Longer bodies are not stored.
    pub max_object: u64,
    /// What requests for one object have in common. The path always is a part of it.
    pub key: Vec<CacheKey>,
    /// Connections become sockets of this process whatever their first request is; otherwise only
    /// those that begin with GET or HEAD, or with PURGE where that is heeded.
    pub always: bool,
    /// Which responses stay when room is needed: a policy of the laboratory, by its name.
    pub policy: &'static str,
    /// Clients whose PURGE requests are carried out; other clients are refused. Without it, PURGE
    /// is a method like others.
    pub purge_from: Option<AccessList>,
    /// Short responses that are asked for often are sent by the kernel.
    pub kernel: bool,
}

impl CacheRule {
    /// A cache of this size.
    pub fn new(bytes: u64) -> Self {
        Self {
            bytes,
            max_object: 16 << 20,
            key: vec![CacheKey::Host, CacheKey::Path, CacheKey::Query],
            always: false,
            policy: "s3-fifo",
            purge_from: None,
            kernel: false,
        }
    }
}

/// A part of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheKey {
    /// Its host, without the port.
    Host,
    /// Its path, as it was sent.
    Path,
    /// Its query, as it was sent.
    Query,
    /// The values of a field.
    Header(String),
}

/// How a connection is served once its server is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Treatment {
    /// One decision for the whole connection.
    Splice,
    /// The head is sent with `Connection: close`, so that the next request is decided anew. HTTP
    /// only.
    OneShot,
    /// The connection becomes a socket of a process that listens on this machine.
    Host,
    /// Each request is routed by itself. HTTP only.
    PerRequest,
}

/// Listening sockets of this machine, one of each IP version at most: a client gets the one of its
/// own version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listeners {
    /// For IPv4 clients.
    pub v4: Option<Endpoint>,
    /// For IPv6 clients.
    pub v6: Option<Endpoint>,
}

impl Listeners {
    /// Those among these endpoints; of two with one IP version the last.
    pub fn of(endpoints: impl IntoIterator<Item = Endpoint>) -> Self {
        let mut all = Self::default();
        for endpoint in endpoints {
            match endpoint.addr.is_v4() {
                true => all.v4 = Some(endpoint),
                false => all.v6 = Some(endpoint),
            }
        }
        all
    }

    /// The one for clients of a version.
    pub fn of_version(&self, v4: bool) -> Option<Endpoint> {
        if v4 { self.v4 } else { self.v6 }
    }
}

/// One condition of a route. Several values in one condition are alternatives.
#[derive(Clone, Debug)]
pub enum Matcher {
    /// The listening endpoint is one of these (a service may have several).
    Listen(Vec<Endpoint>),
    /// The client's address is allowed by this list.
    Clients(AccessList),
    /// HTTP host: exact (`api.example.com`), or any name below a suffix (`*.example.com`).
    Host(Vec<NamePattern>),
    /// HTTP path, equal.
    Path(Vec<String>),
    /// HTTP path, at its start.
    PathPrefix(Vec<String>),
    /// HTTP path, at its end (the paper's URL suffix).
    PathSuffix(Vec<String>),
    /// HTTP path, by regular expression (linear time, size limited when it is compiled).
    PathRegex(Vec<regex::Regex>),
    /// HTTP method, equal (methods are case-sensitive).
    Method(Vec<String>),
    /// An HTTP header field: name (any case), and its value.
    Header(String, ValuePattern),
    /// A query parameter (compared after percent-decoding).
    Query(String, ValuePattern),
    /// A cookie.
    Cookie(String, ValuePattern),
    /// TLS server name.
    Sni(Vec<NamePattern>),
    /// TLS application protocol: any of these is among those the client offers.
    Alpn(Vec<String>),
    /// A client of a TLS service does not speak TLS: its first bytes begin no record, or it has
    /// sent nothing for [`Timeouts::first_bytes`].
    NotTls,
    /// A client of a TLS service does not speak TLS, and begins with one of these.
    FirstBytes(Vec<Vec<u8>>),
}

impl Matcher {
    /// True when two connections to the same listening endpoint with the same method, target and
    /// host always get the same answer. The kernel begins connections by itself only on routes
    /// where this holds for every condition of the service ([`fairlead_wire::http::plain_hash`]).
    ///
    /// Without a wildcard on purpose: a new condition is decided here before it compiles.
    pub fn decided_by_plain_head(&self) -> bool {
        match self {
            Self::Listen(_)
            | Self::Host(_)
            | Self::Path(_)
            | Self::PathPrefix(_)
            | Self::PathSuffix(_)
            | Self::PathRegex(_)
            | Self::Method(_)
            | Self::Query(..) => true,
            // The client, other fields of the head, and what only a ClientHello says.
            Self::Clients(_)
            | Self::Header(..)
            | Self::Cookie(..)
            | Self::Sni(_)
            | Self::Alpn(_)
            | Self::NotTls
            | Self::FirstBytes(_) => false,
        }
    }
}

/// What a header, query parameter or cookie must look like.
#[derive(Clone, Debug)]
pub enum ValuePattern {
    /// It is there.
    Present,
    /// Equal to one of these.
    Exact(Vec<String>),
    /// Matches this expression somewhere.
    Regex(regex::Regex),
}

/// A host name: exact, or everything below a suffix. Kept in lower case without a trailing dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NamePattern {
    /// `api.example.com`
    Exact(String),
    /// `*.example.com`, stored as `.example.com`; does not match `example.com` itself.
    Suffix(String),
}

/// Servers that can stand in for each other.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Its name in logs and metrics.
    pub name: String,
    /// How one of them is chosen.
    pub balance: Balance,
    /// The servers.
    pub servers: Vec<Server>,
    /// A PROXY protocol header before the client's first byte.
    pub proxy_protocol: Option<ProxyVersion>,
    /// How long one server is given to answer a SYN before another is tried.
    pub connect_timeout: Duration,
    /// How often its servers are probed for the TCP options they honour.
    pub probe_interval: Duration,
    /// How its servers are checked, if they are.
    pub check: Option<Check>,
    /// How long a server that becomes available takes to get its whole share; zero for at once.
    pub slow_start: Duration,
    /// What happens to clients while no server is available.
    pub all_down: AllDown,
    /// When a server that takes no connections is left out for a while, if ever.
    pub outlier: Option<Outlier>,
}

impl Pool {
    /// A pool with the default of everything but its servers. A server has three seconds to answer:
    /// long enough for one retransmission (RFC 6298).
    pub fn new(name: impl Into<String>, servers: Vec<Server>) -> Self {
        Self {
            name: name.into(),
            balance: Balance::RoundRobin,
            servers,
            proxy_protocol: None,
            connect_timeout: Duration::from_secs(3),
            probe_interval: Duration::from_secs(10),
            check: None,
            slow_start: Duration::ZERO,
            all_down: AllDown::Try,
            outlier: None,
        }
    }
}

/// What happens to clients while no server of a pool is available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AllDown {
    /// They are sent to a server that is down: a mistake about its state must not turn them away.
    #[default]
    Try,
    /// They are turned away.
    Refuse,
}

/// When a server that takes no connections is left out of the choice for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlier {
    /// After this many connections in a row that it refused or left unanswered.
    pub consecutive_connect_failures: u32,
    /// For how long, the first time; each further time in a row is as much longer …
    pub ejection_time: Duration,
    /// … up to this.
    pub ejection_time_max: Duration,
    /// Of a pool's servers, at most this share is ejected at once, in percent; one always may be.
    pub ejection_percent_max: u8,
}

impl Default for Outlier {
    fn default() -> Self {
        Self {
            consecutive_connect_failures: 5,
            ejection_time: Duration::from_secs(30),
            ejection_time_max: Duration::from_secs(300),
            ejection_percent_max: 50,
        }
    }
}

/// One server of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Its share relative to the others; 0 takes it out of the choice.
    pub weight: u16,
    /// It gets connections only while no other server of its pool is available.
    pub backup: bool,
    /// Whether the health checks of its pool are made of it.
    pub check: bool,
}

impl Server {
    /// A server of weight 1.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            weight: 1,
            backup: false,
            check: true,
        }
    }
}

/// How a pool chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Balance {
    /// In turn, by weight (smooth weighted round robin).
    RoundRobin,
    /// At random, by weight.
    Weighted,
    /// Fewest open connections for its weight.
    LeastConnections,
    /// The less loaded of two drawn at random.
    RandomTwo,
    /// Maglev consistent hashing (Eisenbud et al., NSDI 2016) over what [`HashOn`] names.
    Maglev(HashOn),
}

/// What the engine must know of a policy. Without wildcards on purpose: a new policy answers each
/// question before it compiles.
impl Balance {
    /// True when it compares numbers of open connections: the engine then looks for connections
    /// that have ended in the kernel before the pool chooses.
    pub fn goes_by_load(&self) -> bool {
        match self {
            Self::LeastConnections | Self::RandomTwo => true,
            Self::RoundRobin | Self::Weighted | Self::Maglev(_) => false,
        }
    }

    /// True when a server may be chosen before its client is known, for a connection that the
    /// kernel begins: the choice depends on neither the client nor the load at that moment.
    pub fn may_choose_ahead(&self) -> bool {
        match self {
            Self::RoundRobin | Self::Weighted => true,
            Self::LeastConnections | Self::RandomTwo | Self::Maglev(_) => false,
        }
    }

    /// What it hashes, if it hashes.
    pub fn hash_on(&self) -> Option<&HashOn> {
        match self {
            Self::Maglev(on) => Some(on),
            Self::RoundRobin | Self::Weighted | Self::LeastConnections | Self::RandomTwo => None,
        }
    }
}

/// What a hashing balance hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashOn {
    /// The client's address, without its port.
    ClientAddress,
    /// The value of an HTTP header; the client's address where it is missing.
    Header(String),
    /// The value of a cookie; the client's address where it is missing.
    Cookie(String),
}

/// Version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyVersion {
    /// Text.
    V1,
    /// Binary.
    V2,
}

/// Timers of a service's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the first data to a whole head.
    pub head: Duration,
    /// How long a client of a TLS service that says nothing is waited for: after that it is taken
    /// for one that does not speak TLS. Without it, such clients cost no memory.
    pub first_bytes: Option<Duration>,
    /// A connection that has outlived its socket is ended after this time without a request.
    pub sleep: Duration,
    /// A request that wakes one waits so long for a process to listen.
    pub wake: Duration,
    /// Without any packet on a spliced connection. The default is above the time after which Linux
    /// gives up a peer that answers no keep-alive: 7,200 s + 9 × 75 s (`tcp(7)`).
    pub idle: Duration,
    /// From its record's beginning until a spliced connection is reset, active or not.
    pub lifetime: Option<Duration>,
    /// Without any packet after one side has closed. Whoever waits for a reader that has paused
    /// asks again after two minutes at most, as does who sends again what was lost (Linux's
    /// `TCP_RTO_MAX`): sooner than that, silence says nothing.
    pub half_closed: Duration,
    /// A closed connection's record stays this long (2 MSL).
    pub time_wait: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            first_bytes: None,
            sleep: Duration::from_secs(3_600),
            wake: Duration::from_secs(10),
            idle: Duration::from_secs(8_100),
            lifetime: None,
            half_closed: Duration::from_secs(150),
            time_wait: Duration::from_secs(60),
        }
    }
}

/// Bounds on everything that strangers can make grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections of which a record is kept, closing ones included.
    pub connections: u32,
    /// Connections being set up (from first data to splice) at once.
    pub setups: u32,
    /// Heads not yet whole, in all.
    pub half_read: u32,
    /// Heads not yet whole, and answers not yet acknowledged, of one client address.
    pub half_read_per_client: u32,
    /// Clients that say nothing, of services with [`Timeouts::first_bytes`], in all.
    pub silent_clients: u32,
    /// Connections that may outlive their sockets, in all ([`Route::sleep`]).
    pub sleepers: u32,
    /// Connections of one client that are served request by request.
    pub front_per_client: u32,
    /// Bytes held in heads, in all.
    pub buffered_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 262_144,
            setups: 65_536,
            half_read: 16_384,
            half_read_per_client: 256,
            silent_clients: 4_096,
            sleepers: 65_536,
            front_per_client: 4_096,
            buffered_bytes: 256 << 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matchers_on_other_header_fields_or_on_tls_are_not_decided_by_a_plain_head() {
        let texts = || vec!["x".to_owned()];
        let names = || vec![NamePattern::Exact("x".into())];
        let decided = [
            Matcher::Listen(Vec::new()),
            Matcher::Host(names()),
            Matcher::Path(texts()),
            Matcher::PathPrefix(texts()),
            Matcher::PathSuffix(texts()),
            Matcher::PathRegex(Vec::new()),
            Matcher::Method(texts()),
            Matcher::Query("x".into(), ValuePattern::Present),
        ];
        for matcher in decided {
            assert!(matcher.decided_by_plain_head(), "{matcher:?}");
        }
        let undecided = [
            Matcher::Clients(AccessList::new("", false, Vec::new())),
            Matcher::Header("x".into(), ValuePattern::Present),
            Matcher::Cookie("x".into(), ValuePattern::Present),
            Matcher::Sni(names()),
            Matcher::Alpn(texts()),
        ];
        for matcher in undecided {
            assert!(!matcher.decided_by_plain_head(), "{matcher:?}");
        }
    }

    /// A choice that depends on the load, or on the client, cannot be made ahead.
    #[test]
    fn policies_that_look_at_load_or_client_do_not_choose_ahead() {
        let answers = |balance: &Balance| {
            (
                balance.goes_by_load(),
                balance.may_choose_ahead(),
                balance.hash_on().is_some(),
            )
        };
        assert_eq!(answers(&Balance::RoundRobin), (false, true, false));
        assert_eq!(answers(&Balance::Weighted), (false, true, false));
        assert_eq!(answers(&Balance::LeastConnections), (true, false, false));
        assert_eq!(answers(&Balance::RandomTwo), (true, false, false));
        let hashing = Balance::Maglev(HashOn::ClientAddress);
        assert_eq!(answers(&hashing), (false, false, true));
    }
}
