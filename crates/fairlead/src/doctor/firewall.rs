//! Firewall rules that may drop the switch's packets.

use std::io::{self, ErrorKind};

use fairlead_survey::Chain;

use super::{Check, Facts, read};

const ABOUT: &str = "network";

/// Runs all checks of this file.
pub(super) fn look(facts: &Facts, checks: &mut Vec<Check>) {
    let device = facts
        .settings
        .as_ref()
        .map_or("fairlead0", |settings| settings.network.device.as_str());
    chains(&facts.chains, device, checks);
    checks.extend(legacy(read("/proc/net/ip_tables_names")));
    checks.push(tracked(
        read("/proc/sys/net/netfilter/nf_conntrack_count").ok(),
        read("/proc/sys/net/netfilter/nf_conntrack_max").ok(),
    ));
}

fn chains(found: &io::Result<Vec<Chain>>, device: &str, checks: &mut Vec<Check>) {
    const NAME: &str = "firewall";
    let chains = match found {
        Ok(chains) => chains,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let what = "nftables rules cannot be read without CAP_NET_ADMIN";
            checks.push(Check::unseen(ABOUT, NAME, what).advise("run the doctor as root"));
            return;
        }
        Err(_) => {
            checks.push(Check::ok(ABOUT, NAME, "this kernel has no nftables"));
            return;
        }
    };
    // Hooks on the path of the switch's packets, through the stack to its device and back.
    let of_ours = |chain: &&Chain| {
        ["prerouting", "forward", "postrouting", "ingress", "egress"].contains(&chain.hook)
    };
    let before = checks.len();
    for chain in chains.iter().filter(of_ours) {
        let Chain {
            family,
            table,
            name,
            hook,
            rules,
            ..
        } = chain;
        let place = format!("{family} {table} {name}");
        if chain.drops_by_default {
            let what = format!("chain `{place}` ({hook}, {rules} rules) drops by default");
            checks.push(Check::warning(ABOUT, NAME, what).advise(format!(
                "`nft insert rule {place} iifname {device} accept` and the same with oifname"
            )));
        } else if *rules > 0 && *hook != "egress" {
            let what = format!("chain `{place}` ({hook}) has {rules} rules and accepts by default");
            checks.push(Check::ok(ABOUT, NAME, what));
        }
    }
    if let Some(chain) = chains.iter().find(|chain| chain.table_tracks) {
        let Chain { family, table, .. } = chain;
        let what = format!(
            "table `{family} {table}` uses connection tracking (ct): packets of the kernel fast \
             path bypass it, so the remaining ones appear invalid"
        );
        checks.push(Check::warning(ABOUT, NAME, what).advise(
            "do not drop `ct state invalid` for the services' addresses, or exempt them with \
             `notrack` at prerouting, priority raw",
        ));
    }
    if checks.len() == before {
        checks.push(Check::ok(
            ABOUT,
            NAME,
            "no nftables chain sees forwarded packets",
        ));
    }
}

/// Rules of this machine that look as if they protected a service, and do not: the kernel program
/// takes packets before they are asked.
pub(super) fn bypassed(facts: &Facts, mode: &str, checks: &mut Vec<Check>) {
    if let Ok(chains) = &facts.chains {
        let settings = facts.settings.as_ref();
        let unlisted = settings.is_none_or(|settings| {
            let services = &settings.switch.services;
            services.iter().any(|service| service.access.is_empty())
        });
        checks.extend(unprotected(chains, mode, unlisted));
    }
}

fn unprotected(chains: &[Chain], mode: &str, unlisted: bool) -> Option<Check> {
    let asked = |chain: &&Chain| {
        let hook = ["prerouting", "input", "forward", "ingress"].contains(&chain.hook);
        hook && (chain.rules > 0 || chain.drops_by_default)
    };
    let chain = chains.iter().find(asked)?;
    if mode == "engine" || !unlisted {
        return None;
    }
    let Chain {
        family,
        table,
        name,
        ..
    } = chain;
    let what = format!(
        "rules of nftables (chain `{family} {table} {name}`) do not apply to services in mode \
         {mode}"
    );
    Some(
        Check::warning(ABOUT, "access", what)
            .advise("to keep clients out, name an [[access]] list under `access` of the service"),
    )
}

/// Tables of iptables-legacy. Only its own tool can show their rules.
fn legacy(tables: io::Result<String>) -> Option<Check> {
    const NAME: &str = "iptables";
    let tables = match tables {
        Ok(tables) => tables,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let what = "tables of iptables-legacy are not visible to this user";
            return Some(Check::unseen(ABOUT, NAME, what).advise("run the doctor as root"));
        }
        Err(_) => return None,
    };
    if tables.is_empty() {
        return None;
    }
    let names = tables.replace('\n', ", ");
    let what = format!("iptables-legacy has tables ({names}); their rules are not checked");
    Some(
        Check::unseen(ABOUT, NAME, what)
            .advise("check that `iptables-legacy -S FORWARD` does not drop the services' packets"),
    )
}

/// How full the connection tracking table is.
fn tracked(count: Option<String>, max: Option<String>) -> Check {
    const NAME: &str = "conntrack";
    let number = |text: Option<String>| text.and_then(|text| text.parse::<u64>().ok());
    let (Some(count), Some(max)) = (number(count), number(max)) else {
        return Check::ok(ABOUT, NAME, "connection tracking is off");
    };
    let what = format!("{count} of {max} connections tracked");
    if max > 0 && count.saturating_mul(5) >= max.saturating_mul(4) {
        return Check::warning(
            ABOUT,
            NAME,
            format!("{what}: new connections are dropped when the table is full"),
        )
        .advise("`notrack` for the services' addresses, or raise net.netfilter.nf_conntrack_max");
    }
    Check::ok(ABOUT, NAME, what)
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    fn chain(hook: &'static str, drops_by_default: bool, rules: u64, table_tracks: bool) -> Chain {
        Chain {
            family: "inet",
            table: "filter".into(),
            name: hook.into(),
            hook,
            priority: 0,
            drops_by_default,
            rules,
            table_tracks,
        }
    }

    fn judged(chains_found: io::Result<Vec<Chain>>) -> Vec<State> {
        let mut checks = Vec::new();
        chains(&chains_found, "fl0", &mut checks);
        checks.iter().map(|check| check.state).collect()
    }

    #[test]
    fn chains_on_the_path_are_checked() {
        use State::{Ok as Well, Unseen, Warning};
        assert_eq!(judged(Ok(vec![])), [Well]);
        assert_eq!(judged(Ok(vec![chain("input", true, 9, false)])), [Well]);
        assert_eq!(
            judged(Ok(vec![chain("forward", true, 0, false)])),
            [Warning]
        );
        assert_eq!(
            judged(Ok(vec![chain("forward", false, 3, true)])),
            [Well, Warning]
        );
        assert_eq!(judged(Err(ErrorKind::PermissionDenied.into())), [Unseen]);
        assert_eq!(judged(Err(ErrorKind::InvalidInput.into())), [Well]);
    }

    #[test]
    fn rules_that_do_not_protect_a_service_are_named() {
        let warned = |chain: Chain, mode: &str, unlisted: bool| {
            unprotected(&[chain], mode, unlisted).map(|check| check.what)
        };
        let told = warned(chain("prerouting", false, 2, false), "tc", true).unwrap();
        assert!(told.contains("inet filter prerouting"), "{told}");
        assert!(told.contains("mode tc"), "{told}");
        assert!(warned(chain("input", true, 0, false), "xdp", true).is_some());
        for (found, mode, unlisted) in [
            (chain("prerouting", false, 2, false), "engine", true),
            (chain("prerouting", false, 2, false), "tc", false),
            (chain("prerouting", false, 0, false), "tc", true),
            (chain("output", false, 3, false), "tc", true),
        ] {
            assert_eq!(warned(found, mode, unlisted), None);
        }
    }

    #[test]
    fn a_nearly_full_table_is_a_warning() {
        let state = |count: &str, max: &str| tracked(Some(count.into()), Some(max.into())).state;
        assert_eq!(state("10", "1000"), State::Ok);
        assert_eq!(state("800", "1000"), State::Warning);
        assert_eq!(tracked(None, None).state, State::Ok);
    }

    #[test]
    fn older_tables_are_mentioned() {
        assert_eq!(legacy(Ok(String::new())), None);
        assert_eq!(legacy(Err(ErrorKind::NotFound.into())), None);
        let found = legacy(Ok("filter\nnat".into())).unwrap();
        assert!(found.what.contains("filter, nat"));
    }
}
