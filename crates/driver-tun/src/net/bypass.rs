//! Rules by which packets and look-ups pass the rules for servers' answers.
//!
//! A server's packet that belongs to no connection of the switch is written back to the device,
//! and must not return to it: `iif DEVICE goto 7601` comes before the rules for answers, and an
//! empty rule at 7601 behind them. Rules of others between there and the main table hold for these
//! packets, too. All instances share the empty rule; the last one removes it.
//!
//! A strict reverse-path filter looks up where the answer to a packet would leave. For packets from
//! clients that use a server directly, that must not be the device:
//! `iif lo from SERVER ipproto tcp sport PORT goto 7601`. A server on this very machine has no such
//! rule: its answers are looked up in the same way.

use core::net::SocketAddr;

use rtnetlink::packet_route::IpProtocol;
use rtnetlink::packet_route::route::RouteProtocol;
use rtnetlink::packet_route::rule::{RuleAction, RuleAttribute, RuleMessage, RulePortRange};

use super::kernel::{Kernel, family};
use super::{BYPASS_PRIORITY, BYPASS_TARGET, NetError, PROTOCOL, Prefix};

/// The interface in look-ups of reverse-path filters, as in those for this machine's own packets.
const LOOPBACK: &str = "lo";

/// A rule that goes past those for answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bypass {
    /// For packets from a device.
    Device {
        /// Its name.
        name: String,
        /// Of this IP version.
        v4: bool,
    },
    /// For look-ups on behalf of this server's answers.
    Server(SocketAddr),
}

impl Bypass {
    pub(super) fn is_v4(&self) -> bool {
        match self {
            Self::Device { v4, .. } => *v4,
            Self::Server(server) => server.is_ipv4(),
        }
    }

    /// Adds what is missing of this rule and the empty one; false when nothing was. This one comes
    /// first: an empty rule alone is always a leftover.
    pub(super) async fn add(&self, kernel: &Kernel) -> Result<bool, NetError> {
        let step = format!("adding the {}", self.describe());
        let first = kernel.add_message(self.message(), &step).await?;
        let target = kernel.add_message(target(self.is_v4()), &step).await?;
        Ok(first || target)
    }

    /// Removes it, with the shared one if it was the last.
    pub(super) async fn remove(&self, kernel: &Kernel) -> Result<(), NetError> {
        let step = format!("removing the {}", self.describe());
        kernel.remove_message(self.message(), &step).await?;
        if Self::all(kernel, self.is_v4()).await?.is_empty() {
            let target = target(self.is_v4());
            kernel.remove_message(target, &step).await?;
        }
        Ok(())
    }

    /// Those that instances of this program made.
    pub(super) async fn all(kernel: &Kernel, v4: bool) -> Result<Vec<Self>, NetError> {
        let rules = kernel.rules(v4).await?;
        Ok(rules.iter().filter_map(|rule| Self::of(rule, v4)).collect())
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Self::Device { name, v4 } => {
                let version = if *v4 { "IPv4" } else { "IPv6" };
                format!("{version} rule iif {name} goto {BYPASS_TARGET}")
            }
            Self::Server(server) => {
                let (ip, port) = (server.ip(), server.port());
                format!("rule iif lo from {ip} tcp port {port} goto {BYPASS_TARGET}")
            }
        }
    }

    fn message(&self) -> RuleMessage {
        let mut rule = rule_of_ours(self.is_v4(), RuleAction::Goto, BYPASS_PRIORITY);
        rule.attributes.push(RuleAttribute::Goto(BYPASS_TARGET));
        match self {
            Self::Device { name, .. } => {
                rule.attributes.push(RuleAttribute::Iifname(name.clone()));
            }
            Self::Server(server) => {
                rule.header.src_len = Prefix::host(server.ip()).len;
                let port = RulePortRange {
                    start: server.port(),
                    end: server.port(),
                };
                rule.attributes.extend([
                    RuleAttribute::Iifname(LOOPBACK.to_owned()),
                    RuleAttribute::Source(server.ip()),
                    RuleAttribute::IpProtocol(IpProtocol::Tcp),
                    RuleAttribute::SourcePortRange(port),
                ]);
            }
        }
        rule
    }

    fn of(rule: &RuleMessage, v4: bool) -> Option<Self> {
        let (mut ours, mut priority, mut name, mut source, mut port) = (false, 0, None, None, 0);
        for attribute in &rule.attributes {
            match attribute {
                RuleAttribute::Protocol(by) => ours = u8::from(*by) == PROTOCOL,
                RuleAttribute::Priority(number) => priority = *number,
                RuleAttribute::Iifname(device) => name = Some(device.clone()),
                RuleAttribute::Source(ip) => source = Some(*ip),
                RuleAttribute::SourcePortRange(range) => port = range.start,
                _ => {}
            }
        }
        let name = name.filter(|_| ours && priority == BYPASS_PRIORITY)?;
        Some(match source {
            None => Self::Device { name, v4 },
            Some(ip) => Self::Server(SocketAddr::new(ip, port)),
        })
    }
}

/// Where they lead: an empty rule.
fn target(v4: bool) -> RuleMessage {
    rule_of_ours(v4, RuleAction::Nop, BYPASS_TARGET)
}

fn rule_of_ours(v4: bool, action: RuleAction, priority: u32) -> RuleMessage {
    let mut rule = RuleMessage::default();
    rule.header.family = family(v4);
    rule.header.action = action;
    rule.attributes = vec![
        RuleAttribute::Priority(priority),
        RuleAttribute::Protocol(RouteProtocol::Other(PROTOCOL)),
    ];
    rule
}
