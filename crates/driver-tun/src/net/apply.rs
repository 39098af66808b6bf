//! Making the settings, and taking them back.

use core::net::IpAddr;
use std::io;

use super::bypass::Bypass;
use super::kernel::{self, Interface, Kernel, Route, Rule, name_of, with_kernel};
use super::leftover::rules_to;
use super::local::LOCAL;
use super::{DUMMY_ADDRESS, NetError, NetworkPlan, Prefix, TABLES};

/// The main routing table's number.
pub(super) const MAIN: u32 = libc::RT_TABLE_MAIN as u32;

/// Settings that were created. Dropping it removes those that would outlive the device; the others
/// go with the device. Settings of an earlier run stay, like the device and the connections that
/// need them.
#[derive(Debug)]
pub struct Network {
    pub(super) plan: NetworkPlan,
    made: Vec<String>,
    rules: Vec<Rule>,
    bypasses: Vec<Bypass>,
    /// Of an earlier run, and wanted still.
    found: Vec<Rule>,
    found_bypasses: Vec<Bypass>,
}

impl Network {
    /// Descriptions of what was created, one line each.
    pub fn made(&self) -> &[String] {
        &self.made
    }

    /// The table of the rules, if there are any.
    pub(super) fn table(&self) -> Option<u32> {
        let rule = self.rules.first().or(self.found.first());
        rule.map(|rule| rule.table)
    }

    /// Removes the rules, including those of an earlier run. Drop the device afterwards; its routes
    /// go with it.
    pub fn remove(mut self) -> Result<(), NetError> {
        self.rules.append(&mut self.found);
        self.bypasses.append(&mut self.found_bypasses);
        self.undo()
    }

    /// Leaves the rules for the next run, like the device ([`crate::TunDevice::set_persistent`]).
    pub fn leave(mut self) {
        self.rules.clear();
        self.bypasses.clear();
    }

    fn undo(&mut self) -> Result<(), NetError> {
        let rules = std::mem::take(&mut self.rules);
        let bypasses = std::mem::take(&mut self.bypasses);
        if rules.is_empty() && bypasses.is_empty() {
            return Ok(());
        }
        with_kernel(async |kernel| {
            let mut outcome = Ok(());
            for rule in &rules {
                outcome = outcome.and(kernel.remove_rule(rule).await);
            }
            for bypass in &bypasses {
                outcome = outcome.and(bypass.remove(kernel).await);
            }
            outcome
        })
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // A failure cannot be reported here; the next start removes what remains.
        let _ = self.undo();
    }
}

/// Sets the existing device ([`crate::TunDevice::open`]) up and routes packets to it. If a step
/// fails, the previous ones are undone.
pub fn apply(plan: &NetworkPlan) -> Result<Network, NetError> {
    let mut network = Network {
        plan: plan.clone(),
        made: Vec::new(),
        rules: Vec::new(),
        bypasses: Vec::new(),
        found: Vec::new(),
        found_bypasses: Vec::new(),
    };
    with_kernel(async |kernel| {
        let interfaces = kernel.interfaces().await?;
        let device = interfaces
            .iter()
            .find(|interface| interface.name == plan.device)
            .map(|interface| interface.index)
            .ok_or_else(|| NetError::Refused(plan.device.clone(), "no such device".to_owned()))?;
        adjust_device(plan)?;
        kernel.bring_up(device, plan.mtu, &plan.owner).await?;
        network
            .made
            .push(format!("device {}, MTU {}", plan.device, plan.mtu));
        for destination in plan.destinations() {
            kernel
                .add_route(destination, device, MAIN, plan.resumed)
                .await?;
            network
                .made
                .push(format!("route {destination} dev {}", plan.device));
        }
        for address in &plan.own {
            if kernel.add_own(*address, device).await? {
                let made = format!("address {address} dev {}", plan.device);
                network.made.push(made);
            }
        }
        bring_answers(kernel, plan, device, &mut network).await?;
        if plan.resumed {
            remove_outdated(kernel, plan, device, &mut network).await?;
        }
        confirm(kernel, plan, device, &interfaces).await
    })?;
    Ok(network)
}

/// Settings of our own device only.
fn adjust_device(plan: &NetworkPlan) -> Result<(), NetError> {
    let device = &plan.device;
    // Packets that we emit carry addresses whose way back is not the device (a client's own
    // address in transparent mode), which a strict reverse-path filter (1) takes for forged. The
    // kernel uses the larger of this value and the one for all devices; 2 is the loose filter,
    // which is strict on a device without any address (see `DUMMY_ADDRESS`).
    let own = format!("ipv4/conf/{device}/rp_filter");
    let strict = kernel::setting("ipv4/conf/all/rp_filter").is_ok_and(|value| value == "1")
        || kernel::setting(&own).is_ok_and(|value| value == "1");
    if let Err(error) = kernel::set_setting(&own, "2")
        && strict
    {
        return Err(not_written(&own, &error));
    }
    // What the engine sends has the source address of a service, which this machine may have
    // itself. Without the setting, such packets are dropped as forged where they take the stack.
    let _ = kernel::set_setting(&format!("ipv4/conf/{device}/accept_local"), "1");
    // Devices inherit this from `default`, which may differ from `ip_forward`.
    for own in [
        format!("ipv4/conf/{device}/forwarding"),
        format!("ipv6/conf/{device}/forwarding"),
    ] {
        if kernel::setting(&own).is_ok_and(|value| value == "0") {
            let v4 = own.starts_with("ipv4");
            match kernel::set_setting(&own, "1") {
                Err(error) if plan.has_family(v4) => return Err(not_written(&own, &error)),
                _ => {}
            }
        }
    }
    // Without IPv6 to serve, none is spoken: the kernel would report its multicast groups to us.
    // With it, no link-local address: the device would look for routers that are not there. A
    // kernel without these settings does so, which costs a few packets that we drop.
    let disabled = format!("ipv6/conf/{device}/disable_ipv6");
    if !plan.has_family(false) {
        let _ = kernel::set_setting(&disabled, "1");
        return Ok(());
    }
    let _ = kernel::set_setting(&format!("ipv6/conf/{device}/addr_gen_mode"), "1");
    // An earlier run had none to serve, or the default for new devices is such.
    if kernel::setting(&disabled).is_ok_and(|value| value == "1")
        && let Err(error) = kernel::set_setting(&disabled, "0")
    {
        return Err(not_written(&disabled, &error));
    }
    Ok(())
}

fn not_written(path: &str, error: &io::Error) -> NetError {
    let step = format!("writing /proc/sys/net/{path}");
    if error.kind() == io::ErrorKind::PermissionDenied {
        return NetError::NotPermitted(step);
    }
    NetError::Refused(step, error.to_string())
}

/// Leads the answers of transparent servers to the device: first the table, then the rules, so
/// that a rule of ours over an empty table is always a leftover.
async fn bring_answers(
    kernel: &Kernel,
    plan: &NetworkPlan,
    device: u32,
    network: &mut Network,
) -> Result<(), NetError> {
    let servers = plan.returns();
    if servers.is_empty() {
        return Ok(());
    }
    let mut there: Vec<Rule> = Vec::new();
    if plan.resumed {
        for v4 in [true, false] {
            there.extend(rules_to(kernel, v4, device).await?);
        }
    }
    let table = match there.first() {
        Some(rule) => rule.table,
        None => free_table(kernel).await?,
    };
    for bypass in plan.bypasses() {
        let all = everything(bypass.v4);
        kernel.add_route(all, device, table, plan.resumed).await?;
        let made = format!("route {all} dev {} table {table}", plan.device);
        network.made.extend([made, bypass.describe()]);
        if bypass.v4 {
            kernel.add_address(device, DUMMY_ADDRESS).await?;
        }
        match bypass.add(kernel).await? {
            true => network.bypasses.push(bypass),
            false => network.found_bypasses.push(bypass),
        }
    }
    for server in servers {
        match there.iter().find(|rule| rule.server == server) {
            Some(rule) => network.found.push(rule.clone()),
            None => network.rules.push(kernel.add_rule(server, table).await?),
        }
        network.made.push(format!(
            "rule from {} ipproto tcp sport {} lookup {table}",
            server.ip(),
            server.port()
        ));
    }
    Ok(())
}

/// Removes routes and rules of an earlier run that this one does not need. Rules first, so that a
/// rule with an empty table is always a leftover.
async fn remove_outdated(
    kernel: &Kernel,
    plan: &NetworkPlan,
    device: u32,
    network: &mut Network,
) -> Result<(), NetError> {
    let (wanted, servers) = (plan.destinations(), plan.returns());
    for v4 in [true, false] {
        for rule in rules_to(kernel, v4, device).await? {
            if !servers.contains(&rule.server) {
                kernel.remove_rule(&rule).await?;
                network.made.push(format!("removed: {}", rule.describe()));
            }
        }
        let bypass = plan.own_bypass(v4);
        if !plan.bypasses().contains(&bypass) && Bypass::all(kernel, v4).await?.contains(&bypass) {
            bypass.remove(kernel).await?;
            network.made.push(format!("removed: {}", bypass.describe()));
        }
        let rules = network.rules.iter().chain(&network.found);
        let of_family = rules.filter(|rule| rule.server.is_ipv4() == v4);
        let tables: Vec<u32> = of_family.map(|rule| rule.table).collect();
        for route in kernel.routes(v4).await? {
            if !route.is_ours || route.interface != Some(device) {
                continue;
            }
            let destination = route.destination;
            let in_main = route.is_in_main() && !wanted.contains(&destination);
            // A table without rules: later instances would choose another one.
            let unused = TABLES.contains(&route.table) && !tables.contains(&route.table);
            // An address of this machine, which it cannot be in this run's mode.
            let held = route.table == LOCAL
                && !plan.may_be_local
                && !plan.own.contains(&destination.address);
            if in_main || unused || held {
                kernel.remove_route(&route).await?;
                let of_table = match (unused, held) {
                    (true, _) => format!(" table {}", route.table),
                    (_, true) => " table local".to_owned(),
                    _ => String::new(),
                };
                network
                    .made
                    .push(format!("removed: route {destination}{of_table}"));
            }
        }
    }
    Ok(())
}

async fn free_table(kernel: &Kernel) -> Result<u32, NetError> {
    let mut taken = Vec::new();
    for v4 in [true, false] {
        taken.extend(
            kernel
                .routes(v4)
                .await
                .unwrap_or_default()
                .iter()
                .map(|route| route.table),
        );
        taken.extend(kernel.our_rules(v4).await?.iter().map(|rule| rule.table));
    }
    TABLES
        .clone()
        .find(|table| !taken.contains(table))
        .ok_or_else(|| {
            let said = format!("all of {} to {} are in use", TABLES.start, TABLES.end - 1);
            NetError::Refused("choosing a routing table".to_owned(), said)
        })
}

pub(super) fn everything(v4: bool) -> Prefix {
    Prefix {
        address: if v4 { [0; 4].into() } else { [0; 16].into() },
        len: 0,
    }
}

/// Checks where the kernel would send packets now, because another program's rule may precede our
/// routes.
async fn confirm(
    kernel: &Kernel,
    plan: &NetworkPlan,
    device: u32,
    interfaces: &[Interface],
) -> Result<(), NetError> {
    let sources = plan.sources.iter().map(inside);
    for destination in plan.listen.iter().copied().chain(sources) {
        let route = kernel.lookup(destination).await?;
        // Packets of others do not come this way: the kernel program hands them over.
        if plan.may_be_local
            && plan.is_listening(&Prefix::host(destination))
            && route.as_ref().is_some_and(|route| route.is_local)
        {
            continue;
        }
        confirm_one(route, destination.to_string(), device, interfaces)?;
    }
    for server in plan.returns() {
        // A failed lookup (a server on this machine, or one without a route yet) does not prevent
        // the start.
        let Ok(Some(to_server)) = kernel.lookup(server.ip()).await else {
            continue;
        };
        let Some(through) = to_server.interface.filter(|_| !to_server.is_local) else {
            continue;
        };
        let client = example(server.is_ipv4());
        if let Ok(route) = kernel.lookup_forwarded(client, server, through).await {
            confirm_one(
                route,
                format!("clients, from {server},"),
                device,
                interfaces,
            )?;
        }
    }
    Ok(())
}

fn confirm_one(
    route: Option<Route>,
    destination: String,
    device: u32,
    interfaces: &[Interface],
) -> Result<(), NetError> {
    let goes_to = match route {
        Some(route) if route.is_local => "this machine".to_owned(),
        Some(Route {
            interface: Some(index),
            ..
        }) if index == device => return Ok(()),
        Some(Route {
            interface: Some(index),
            ..
        }) => name_of(index, interfaces),
        _ => "nowhere".to_owned(),
    };
    Err(NetError::Diverted {
        destination,
        goes_to,
    })
}

/// An address within a prefix, not its first if there is another.
fn inside(prefix: &Prefix) -> IpAddr {
    if prefix.is_host() {
        return prefix.address;
    }
    match prefix.address {
        IpAddr::V4(first) => IpAddr::V4((u32::from(first) | 1).into()),
        IpAddr::V6(first) => IpAddr::V6((u128::from(first) | 1).into()),
    }
}

/// A stand-in for a client, from the documentation ranges (RFC 5737, RFC 3849).
fn example(v4: bool) -> IpAddr {
    if v4 {
        IpAddr::from([192, 0, 2, 1])
    } else {
        IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1])
    }
}
