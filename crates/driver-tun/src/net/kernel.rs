//! Questions to the kernel and orders to it, over routing netlink and `/proc/sys/net`.

use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::time::Duration;
use std::fs;
use std::io;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::IpProtocol;
use rtnetlink::packet_route::address::{AddressAttribute, AddressScope};
use rtnetlink::packet_route::link::{LinkAttribute, LinkFlags};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage, RulePortRange};
use rtnetlink::{Handle, IpVersion, LinkUnspec, RouteMessageBuilder};

use super::local::LOCAL;
use super::{NetError, PROTOCOL, Prefix, QUEUE_PACKETS, RULE_PRIORITY, Subnet};

/// The kernel answers within microseconds; one that does not in this time is broken.
const PATIENCE: Duration = Duration::from_secs(5);

/// The answers to the question where a packet would go that mean nowhere.
const NOWHERE: [i32; 4] = [
    libc::ENETUNREACH,
    libc::EHOSTUNREACH,
    libc::EINVAL,
    libc::EACCES,
];

/// Runs `work` with a connection to the kernel's routing tables, on the calling thread and so in
/// its network namespace. Must not be called from asynchronous code.
pub(super) fn with_kernel<T>(
    work: impl AsyncFnOnce(&Kernel) -> Result<T, NetError>,
) -> Result<T, NetError> {
    let failed = |error: io::Error| {
        NetError::Refused("opening a netlink socket".to_owned(), error.to_string())
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(failed)?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(failed)?;
        let connection = tokio::spawn(connection);
        let outcome = tokio::time::timeout(PATIENCE, work(&Kernel { handle })).await;
        connection.abort();
        outcome.unwrap_or_else(|_| {
            let said = format!("no answer within {} s", PATIENCE.as_secs());
            Err(NetError::Refused("querying the kernel".to_owned(), said))
        })
    })
}

/// A connection to the kernel.
pub(super) struct Kernel {
    handle: Handle,
}

/// A network interface.
#[derive(Clone, Debug)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) alias: Option<String>,
    pub(super) up: bool,
    /// It has a carrier: of a TUN device, a process.
    pub(super) running: bool,
}

/// A route as far as it matters here.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) destination: Prefix,
    pub(super) table: u32,
    pub(super) interface: Option<u32>,
    pub(super) is_local: bool,
    pub(super) gateway: Option<IpAddr>,
    /// Made by this program.
    pub(super) is_ours: bool,
    message: RouteMessage,
}

/// A rule of ours.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) server: SocketAddr,
    pub(super) table: u32,
    message: RuleMessage,
}

impl Kernel {
    pub(super) async fn interfaces(&self) -> Result<Vec<Interface>, NetError> {
        let links: Vec<_> = self
            .handle
            .link()
            .get()
            .execute()
            .try_collect()
            .await
            .map_err(|error| refused("listing the network interfaces", &error))?;
        let named = links.into_iter().filter_map(|link| {
            let (mut name, mut alias, mut running) = (None, None, false);
            for attribute in link.attributes {
                match attribute {
                    LinkAttribute::IfName(text) => name = Some(text),
                    LinkAttribute::IfAlias(text) => alias = Some(text),
                    // The flag that says so goes with a device that is set down.
                    LinkAttribute::Carrier(carrier) => running = carrier != 0,
                    _ => {}
                }
            }
            Some(Interface {
                index: link.header.index,
                name: name?,
                alias,
                up: link.header.flags.contains(LinkFlags::Up),
                running,
            })
        });
        Ok(named.collect())
    }

    /// Packets that the kernel had for an interface and dropped; `None` without such an interface.
    pub(super) async fn queue_dropped(&self, name: &str) -> Result<Option<u64>, NetError> {
        let ask = self.handle.link().get().match_name(name).execute();
        let link = match core::pin::pin!(ask).try_next().await {
            Ok(link) => link,
            Err(error) if is_errno(&error, libc::ENODEV) => return Ok(None),
            Err(error) => return Err(refused("reading an interface's drop counter", &error)),
        };
        let mut attributes = link.into_iter().flat_map(|link| link.attributes);
        Ok(attributes.find_map(|attribute| match attribute {
            LinkAttribute::Stats64(stats) => Some(stats.tx_dropped),
            _ => None,
        }))
    }

    /// Every address that an interface has, with the interface's index.
    pub(super) async fn addresses(&self) -> Result<Vec<(IpAddr, u32)>, NetError> {
        let subnets = self.subnets().await?.into_iter();
        Ok(subnets.map(|one| (one.address, one.interface)).collect())
    }

    /// The same with the lengths of their prefixes.
    pub(super) async fn subnets(&self) -> Result<Vec<Subnet>, NetError> {
        let messages: Vec<_> = self
            .handle
            .address()
            .get()
            .execute()
            .try_collect()
            .await
            .map_err(|error| refused("listing the addresses", &error))?;
        let addresses = messages.into_iter().filter_map(|message| {
            let interface = message.header.index;
            // On a point-to-point interface `Address` is the peer's and `Local` is ours.
            let local = message
                .attributes
                .iter()
                .find_map(|attribute| match attribute {
                    AddressAttribute::Local(ip) => Some(*ip),
                    _ => None,
                });
            let plain = message
                .attributes
                .iter()
                .find_map(|attribute| match attribute {
                    AddressAttribute::Address(ip) => Some(*ip),
                    _ => None,
                });
            Some(Subnet {
                address: local.or(plain)?,
                len: message.header.prefix_len,
                interface,
            })
        });
        Ok(addresses.collect())
    }

    /// Every route of one family, of all tables.
    pub(super) async fn routes(&self, v4: bool) -> Result<Vec<Route>, NetError> {
        let mut ask = RouteMessage::default();
        ask.header.address_family = family(v4);
        let messages: Vec<_> = self
            .handle
            .route()
            .get(ask)
            .execute()
            .try_collect()
            .await
            .map_err(|error| refused("listing the routes", &error))?;
        Ok(messages
            .iter()
            .filter_map(|message| Route::of(message, v4))
            .collect())
    }

    /// Where the kernel would send a packet of this machine's own for `destination`.
    pub(super) async fn lookup(&self, destination: IpAddr) -> Result<Option<Route>, NetError> {
        self.ask_route(question(destination)).await
    }

    /// Where the kernel would forward a TCP packet from `from` received on the interface `through`.
    pub(super) async fn lookup_forwarded(
        &self,
        destination: IpAddr,
        from: SocketAddr,
        through: u32,
    ) -> Result<Option<Route>, NetError> {
        let mut ask = question(destination);
        ask.header.source_prefix_length = Prefix::host(from.ip()).len;
        ask.attributes.extend([
            RouteAttribute::Source(from.ip().into()),
            RouteAttribute::IpProto(libc::IPPROTO_TCP as u8),
            RouteAttribute::Sport(from.port()),
            RouteAttribute::Iif(through),
        ]);
        self.ask_route(ask).await
    }

    async fn ask_route(&self, ask: RouteMessage) -> Result<Option<Route>, NetError> {
        let v4 = ask.header.address_family == AddressFamily::Inet;
        match self.handle.route().get(ask).execute().try_next().await {
            Ok(answer) => Ok(answer.and_then(|message| Route::of(&message, v4))),
            // No route, or one of the types `unreachable`, `blackhole` and `prohibit`.
            Err(error) if NOWHERE.iter().any(|errno| is_errno(&error, *errno)) => Ok(None),
            Err(error) => Err(refused("looking up a route", &error)),
        }
    }

    /// The rules of all instances of this program that route servers' answers.
    pub(super) async fn our_rules(&self, v4: bool) -> Result<Vec<Rule>, NetError> {
        let rules = self.rules(v4).await?;
        Ok(rules.into_iter().filter_map(Rule::of).collect())
    }

    /// Every rule of one family.
    pub(super) async fn rules(&self, v4: bool) -> Result<Vec<RuleMessage>, NetError> {
        let version = if v4 { IpVersion::V4 } else { IpVersion::V6 };
        let asked = self
            .handle
            .rule()
            .get(version)
            .execute()
            .try_collect::<Vec<_>>()
            .await;
        match asked {
            Ok(messages) => Ok(messages),
            // A kernel without rules for this family has none of ours.
            Err(error) if is_errno(&error, libc::EOPNOTSUPP) => Ok(Vec::new()),
            Err(error) => Err(refused("listing the rules", &error)),
        }
    }

    pub(super) async fn remove_rule(&self, rule: &Rule) -> Result<(), NetError> {
        let step = format!("removing the rule for {}", rule.server);
        self.remove_message(rule.message.clone(), &step).await
    }

    /// Removes a rule, if it is there.
    pub(super) async fn remove_message(
        &self,
        rule: RuleMessage,
        step: &str,
    ) -> Result<(), NetError> {
        match self.handle.rule().del(rule).execute().await {
            Err(error) if !is_errno(&error, libc::ENOENT) => Err(refused(step, &error)),
            _ => Ok(()),
        }
    }

    /// Adds a rule; false when it is there already.
    pub(super) async fn add_message(
        &self,
        rule: RuleMessage,
        step: &str,
    ) -> Result<bool, NetError> {
        let mut request = self.handle.rule().add();
        *request.message_mut() = rule;
        match request.execute().await {
            Ok(()) => Ok(true),
            Err(error) if is_errno(&error, libc::EEXIST) => Ok(false),
            Err(error) => Err(refused(step, &error)),
        }
    }

    /// Gives the device an address that is never chosen as a source; false when it has it already.
    pub(super) async fn add_address(
        &self,
        device: u32,
        address: Ipv4Addr,
    ) -> Result<bool, NetError> {
        let mut request = self.handle.address().add(device, address.into(), 32);
        request.message_mut().header.scope = AddressScope::Host;
        match request.execute().await {
            Ok(()) => Ok(true),
            Err(error) if is_errno(&error, libc::EEXIST) => Ok(false),
            Err(error) => Err(refused(&format!("adding the address {address}"), &error)),
        }
    }

    /// Adds the rule that brings a server's answers to `table`.
    pub(super) async fn add_rule(&self, server: SocketAddr, table: u32) -> Result<Rule, NetError> {
        let rule = Rule::new(server, table);
        let mut request = self.handle.rule().add();
        *request.message_mut() = rule.message.clone();
        match request.execute().await {
            Ok(()) => Ok(rule),
            Err(error) => Err(refused(
                &format!("adding a rule for {server}'s answers"),
                &error,
            )),
        }
    }

    /// Adds a route to the device; false if it exists, which is possible only with a `resumed`
    /// device.
    pub(super) async fn add_route(
        &self,
        destination: Prefix,
        device: u32,
        table: u32,
        resumed: bool,
    ) -> Result<bool, NetError> {
        let (kind, scope) = (RouteType::Unicast, RouteScope::Link);
        let added = self.add(destination, device, table, kind, scope).await;
        match added {
            Ok(false) if !resumed => Err(NetError::Refused(
                format!("adding the route to {destination}"),
                io::Error::from_raw_os_error(libc::EEXIST).to_string(),
            )),
            added => added,
        }
    }

    /// Makes an address one of this machine; false if it is one by such a route.
    pub(super) async fn add_local(&self, address: Prefix, device: u32) -> Result<bool, NetError> {
        let (kind, scope) = (RouteType::Local, RouteScope::Host);
        self.add(address, device, LOCAL, kind, scope).await
    }

    /// Adds an address of the device's own; false if it exists.
    pub(super) async fn add_own(&self, address: IpAddr, device: u32) -> Result<bool, NetError> {
        match address {
            IpAddr::V4(address) => self.add_address(device, address).await,
            IpAddr::V6(_) => self.add_local(Prefix::host(address), device).await,
        }
    }

    /// Adds a route to the device; false if it exists.
    async fn add(
        &self,
        destination: Prefix,
        device: u32,
        table: u32,
        kind: RouteType,
        scope: RouteScope,
    ) -> Result<bool, NetError> {
        let builder = RouteMessageBuilder::<IpAddr>::new();
        let builder = builder
            .destination_prefix(destination.address, destination.len)
            .map_err(|error| {
                NetError::Refused(
                    format!("describing a route to {destination}"),
                    error.to_string(),
                )
            })?;
        let mut message = builder
            .output_interface(device)
            .table_id(table)
            .protocol(RouteProtocol::Other(PROTOCOL))
            .kind(kind)
            .build();
        if destination.address.is_ipv4() {
            message.header.scope = scope;
        }
        match self.handle.route().add(message).execute().await {
            Ok(()) => Ok(true),
            Err(error) if is_errno(&error, libc::EEXIST) => Ok(false),
            Err(error) => Err(refused(
                &format!("adding the route to {destination}"),
                &error,
            )),
        }
    }

    /// Removes a route to the device that an earlier run added.
    pub(super) async fn remove_route(&self, route: &Route) -> Result<(), NetError> {
        match self
            .handle
            .route()
            .del(route.message.clone())
            .execute()
            .await
        {
            Err(error) if !is_errno(&error, libc::ESRCH) => Err(refused(
                &format!("removing the route to {}", route.destination),
                &error,
            )),
            _ => Ok(()),
        }
    }

    /// Removes an interface.
    pub(super) async fn remove_link(&self, index: u32) -> Result<(), NetError> {
        let removed = self.handle.link().del(index).execute().await;
        removed.map_err(|error| refused("removing the device", &error))
    }

    /// Sets the device up: MTU, queue, no multicast, then up.
    pub(super) async fn bring_up(
        &self,
        device: u32,
        mtu: u32,
        owner: &str,
    ) -> Result<(), NetError> {
        let mut settings = LinkUnspec::new_with_index(device)
            .mtu(mtu)
            .txqueuelen(QUEUE_PACKETS)
            .multicast(false)
            .build();
        let alias = LinkAttribute::IfAlias(owner.to_owned());
        settings.attributes.push(alias);
        self.handle
            .link()
            .set(settings)
            .execute()
            .await
            .map_err(|error| refused("setting the device's MTU and queue", &error))?;
        self.handle
            .link()
            .set(LinkUnspec::new_with_index(device).up().build())
            .execute()
            .await
            .map_err(|error| refused("setting the device up", &error))
    }
}

impl Route {
    /// The device it leads to, if it is a route of this program.
    pub(super) fn device_of_ours<'a>(&self, interfaces: &'a [Interface]) -> Option<&'a Interface> {
        let index = self.interface.filter(|_| self.is_ours)?;
        interfaces.iter().find(|one| one.index == index)
    }

    fn of(message: &RouteMessage, v4: bool) -> Option<Self> {
        let mut route = Self {
            destination: Prefix {
                address: if v4 { [0; 4].into() } else { [0; 16].into() },
                len: message.header.destination_prefix_length,
            },
            table: u32::from(message.header.table),
            interface: None,
            is_local: message.header.kind == RouteType::Local,
            gateway: None,
            is_ours: u8::from(message.header.protocol) == PROTOCOL,
            message: message.clone(),
        };
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Destination(address) => {
                    route.destination.address = plain(address)?;
                }
                RouteAttribute::Table(table) => route.table = *table,
                RouteAttribute::Oif(index) => route.interface = Some(*index),
                RouteAttribute::Gateway(address) => route.gateway = plain(address),
                _ => {}
            }
        }
        Some(route)
    }

    pub(super) fn is_in_main(&self) -> bool {
        self.table == u32::from(RouteHeader::RT_TABLE_MAIN)
    }

    /// As `ip route` would write it.
    pub(super) fn describe(&self, interfaces: &[Interface]) -> String {
        let mut text = if self.is_local {
            "local ".to_owned()
        } else {
            String::new()
        };
        text.push_str(&self.destination.to_string());
        if let Some(gateway) = self.gateway {
            text.push_str(&format!(" via {gateway}"));
        }
        if let Some(index) = self.interface {
            text.push_str(&format!(" dev {}", name_of(index, interfaces)));
        }
        text
    }
}

impl Rule {
    pub(super) fn describe(&self) -> String {
        let (server, table) = (self.server, self.table);
        let (ip, port) = (server.ip(), server.port());
        format!("rule from {ip} tcp port {port} to table {table}")
    }

    fn new(server: SocketAddr, table: u32) -> Self {
        let mut message = RuleMessage::default();
        message.header.family = family(server.is_ipv4());
        message.header.src_len = Prefix::host(server.ip()).len;
        message.header.action = RuleAction::ToTable;
        let port = RulePortRange {
            start: server.port(),
            end: server.port(),
        };
        message.attributes = vec![
            RuleAttribute::Source(server.ip()),
            RuleAttribute::IpProtocol(IpProtocol::Tcp),
            RuleAttribute::SourcePortRange(port),
            RuleAttribute::Table(table),
            RuleAttribute::Priority(RULE_PRIORITY),
            RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
        ];
        Self {
            server,
            table,
            message,
        }
    }

    /// Recognizes a rule of ours by its protocol and priority; `None` for others.
    fn of(message: RuleMessage) -> Option<Self> {
        let mut table = u32::from(message.header.table);
        let (mut ours, mut priority, mut address, mut port) = (false, 0, None, 0);
        for attribute in &message.attributes {
            match attribute {
                RuleAttribute::Protocol(by) => ours = u8::from(*by) == PROTOCOL,
                RuleAttribute::Priority(number) => priority = *number,
                RuleAttribute::Table(number) => table = *number,
                RuleAttribute::Source(ip) => address = Some(*ip),
                RuleAttribute::SourcePortRange(range) => port = range.start,
                _ => {}
            }
        }
        if !ours || priority != RULE_PRIORITY {
            return None;
        }
        Some(Self {
            server: SocketAddr::new(address?, port),
            table,
            message,
        })
    }
}

/// A setting below `/proc/sys/net`, without the white space around it.
pub(super) fn setting(path: &str) -> io::Result<String> {
    fs::read_to_string(format!("/proc/sys/net/{path}")).map(|text| text.trim().to_owned())
}

/// Changes a setting of our own device.
pub(super) fn set_setting(path: &str, value: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/net/{path}"), value)
}

pub(super) fn name_of(index: u32, interfaces: &[Interface]) -> String {
    interfaces
        .iter()
        .find(|interface| interface.index == index)
        .map_or_else(
            || format!("interface {index}"),
            |interface| interface.name.clone(),
        )
}

pub(super) fn family(v4: bool) -> AddressFamily {
    if v4 {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

fn question(destination: IpAddr) -> RouteMessage {
    let mut ask = RouteMessage::default();
    ask.header.address_family = family(destination.is_ipv4());
    ask.header.destination_prefix_length = Prefix::host(destination).len;
    ask.attributes
        .push(RouteAttribute::Destination(destination.into()));
    ask
}

fn plain(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}

pub(super) fn is_errno(error: &rtnetlink::Error, errno: i32) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(message) if message.raw_code() == -errno)
}

fn refused(step: &str, error: &rtnetlink::Error) -> NetError {
    if is_errno(error, libc::EPERM) || is_errno(error, libc::EACCES) {
        return NetError::NotPermitted(step.to_owned());
    }
    let said = match error {
        rtnetlink::Error::NetlinkError(message) => {
            io::Error::from_raw_os_error(-message.raw_code()).to_string()
        }
        other => other.to_string(),
    };
    NetError::Refused(step.to_owned(), said)
}
