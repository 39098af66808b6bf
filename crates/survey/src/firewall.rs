//! Chains of nftables (and of iptables over nftables) that see packets.

use std::collections::BTreeMap;
use std::io;

use crate::netlink::{Message, ask, attribute, attributes, text};

/// Types of messages: the subsystem in the high octet.
const SUBSYSTEM: u16 = 10 << 8;
const GET_CHAIN: u16 = SUBSYSTEM | 4;
const GET_RULE: u16 = SUBSYSTEM | 7;
/// Octets of `struct nfgenmsg`: family, version, resource.
const HEADER_BYTES: usize = 4;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
const EXPRESSION_NAME: u16 = 1;

/// A chain that the kernel calls for packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// `ip`, `ip6`, `inet`, `netdev`, `bridge` or `arp`.
    pub family: &'static str,
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// `prerouting`, `input`, `forward`, `output`, `postrouting`, `ingress` or `egress`.
    pub hook: &'static str,
    /// Lower comes first.
    pub priority: i32,
    /// What no rule decides is dropped.
    pub drops_by_default: bool,
    /// Rules in it.
    pub rules: u64,
    /// True if any rule of its table uses connection tracking (`ct`).
    pub table_tracks: bool,
}

/// All chains with a hook.
///
/// # Errors
/// [`io::ErrorKind::PermissionDenied`] without CAP_NET_ADMIN in this network namespace; another
/// error where the kernel has no nftables.
pub fn chains() -> io::Result<Vec<Chain>> {
    let chains = ask(libc::NETLINK_NETFILTER, GET_CHAIN, true, &[0; HEADER_BYTES])?;
    let rules = ask(libc::NETLINK_NETFILTER, GET_RULE, true, &[0; HEADER_BYTES])?;
    Ok(read(&chains, &rules))
}

/// The first chain, as table and name, at the egress hook of any interface (family `netdev`, hook
/// `egress`, Linux 5.16). Does not read rules, which can be many.
///
/// # Errors
/// As [`chains`].
pub fn chain_at_egress() -> io::Result<Option<String>> {
    let chains = ask(libc::NETLINK_NETFILTER, GET_CHAIN, true, &[0; HEADER_BYTES])?;
    let found = read(&chains, &[]).into_iter();
    let mut found = found.filter(|chain| chain.family == "netdev" && chain.hook == "egress");
    Ok(found
        .next()
        .map(|chain| format!("{} {}", chain.table, chain.name)))
}

fn read(chains: &[Message], rules: &[Message]) -> Vec<Chain> {
    let mut counts: BTreeMap<(u8, String, String), u64> = BTreeMap::new();
    let mut tracking: BTreeMap<(u8, String), bool> = BTreeMap::new();
    for rule in rules {
        let Some(rest) = rule.body.get(HEADER_BYTES..) else {
            continue;
        };
        let name = |kind| attribute(rest, kind).map(text).unwrap_or_default();
        let family = rule.body[0];
        let table = name(RULE_TABLE);
        *counts
            .entry((family, table.clone(), name(RULE_CHAIN)))
            .or_default() += 1;
        let expressions = attribute(rest, RULE_EXPRESSIONS).unwrap_or_default();
        let tracks = attributes(expressions)
            .any(|(_, one)| attribute(one, EXPRESSION_NAME).is_some_and(|name| text(name) == "ct"));
        *tracking.entry((family, table)).or_default() |= tracks;
    }
    let chain = |message: &Message| {
        let rest = message.body.get(HEADER_BYTES..)?;
        let family = message.body[0];
        let hook = attribute(rest, CHAIN_HOOK)?;
        let table = text(attribute(rest, CHAIN_TABLE)?);
        let name = text(attribute(rest, CHAIN_NAME)?);
        let policy = attribute(rest, CHAIN_POLICY).map(be32);
        let key = (family, table.clone(), name.clone());
        Some(Chain {
            family: family_name(family),
            hook: hook_name(family, be32(attribute(hook, HOOK_NUMBER)?)),
            priority: attribute(hook, HOOK_PRIORITY).map(be32).unwrap_or(0) as i32,
            // NF_DROP
            drops_by_default: policy == Some(0),
            rules: counts.get(&key).copied().unwrap_or(0),
            table_tracks: tracking
                .get(&(family, table.clone()))
                .copied()
                .unwrap_or(false),
            table,
            name,
        })
    };
    chains.iter().filter_map(chain).collect()
}

fn be32(bytes: &[u8]) -> u32 {
    bytes
        .first_chunk::<4>()
        .map_or(0, |four| u32::from_be_bytes(*four))
}

fn family_name(number: u8) -> &'static str {
    match number {
        1 => "inet",
        2 => "ip",
        3 => "arp",
        5 => "netdev",
        7 => "bridge",
        10 => "ip6",
        _ => "other",
    }
}

fn hook_name(family: u8, number: u32) -> &'static str {
    match (family, number) {
        (5, 0) | (1, 5) => "ingress",
        (5, 1) => "egress",
        (_, 0) => "prerouting",
        (_, 1) => "input",
        (_, 2) => "forward",
        (_, 3) => "output",
        (_, 4) => "postrouting",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::push;

    #[test]
    fn chains_and_their_rules_are_joined() {
        let mut hook = Vec::new();
        push(&mut hook, HOOK_NUMBER, &2u32.to_be_bytes());
        push(&mut hook, HOOK_PRIORITY, &(-5i32).to_be_bytes());
        let mut body = vec![1, 0, 0, 0];
        push(&mut body, CHAIN_TABLE, b"filter\0");
        push(&mut body, CHAIN_NAME, b"forward\0");
        push(&mut body, CHAIN_HOOK, &hook);
        push(&mut body, CHAIN_POLICY, &0u32.to_be_bytes());
        let chain = Message { kind: 0, body };
        // A chain that only others jump to.
        let mut body = vec![1, 0, 0, 0];
        push(&mut body, CHAIN_TABLE, b"filter\0");
        push(&mut body, CHAIN_NAME, b"inner\0");
        let inner = Message { kind: 0, body };
        let (mut expression, mut list) = (Vec::new(), Vec::new());
        push(&mut expression, EXPRESSION_NAME, b"ct\0");
        push(&mut list, 1, &expression);
        let mut body = vec![1, 0, 0, 0];
        push(&mut body, RULE_TABLE, b"filter\0");
        push(&mut body, RULE_CHAIN, b"forward\0");
        push(&mut body, RULE_EXPRESSIONS, &list);
        let rule = Message { kind: 0, body };
        let found = read(&[chain, inner], &[rule.clone(), rule]);
        assert_eq!(
            found,
            [Chain {
                family: "inet",
                table: "filter".into(),
                name: "forward".into(),
                hook: "forward",
                priority: -5,
                drops_by_default: true,
                rules: 2,
                table_tracks: true,
            }]
        );
    }

    #[test]
    fn hooks_have_names() {
        assert_eq!(hook_name(2, 0), "prerouting");
        assert_eq!(hook_name(5, 0), "ingress");
        assert_eq!(hook_name(10, 4), "postrouting");
    }
}
