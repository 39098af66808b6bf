//! Checks of each interface that receives packets: driver, offloads, other programs.

use fairlead_bpf_loader::Mode as AttachMode;
use fairlead_survey::{
    Link, Offload, Offloads, XdpFeatures, offloads, program_name, tc_programs, xdp_features,
};

use super::mode::{Expected, is_our_name};
use super::{Check, Facts, read};
use crate::config::VethRedirect;
use crate::screen::plural;
use crate::serve::interfaces::hidden_tags;
use crate::serve::redirect_peer::straight;
use crate::serve::vlans::{carrier, carriers, each_once};

/// Maximum number of interfaces checked.
const INTERFACES_MAX: usize = 64;

/// Checks the interfaces that the kernel fast path would be attached to.
pub(super) fn look(facts: &Facts, expected: &Expected, checks: &mut Vec<Check>) {
    let links = match &facts.links {
        Ok(links) => links,
        Err(error) => {
            let what = format!("cannot list interfaces: {error}");
            checks.push(Check::unseen("interfaces", "interfaces", what));
            return;
        }
    };
    if expected.interfaces.is_empty() {
        let what = "no Ethernet interface is up: no packets can arrive";
        checks.push(
            Check::warning("interfaces", "interfaces", what)
                .advise("`ip link set NAME up`, or set `interfaces` in [fastpath]"),
        );
    }
    let attach_mode = expected.wanted_mode();
    // Also the interfaces that would carry the fast path for them.
    let at = attach_mode.map_or_else(Vec::new, |attach_mode| {
        carriers(links, attach_mode, &expected.interfaces)
    });
    let names = each_once([expected.interfaces.clone(), at].concat());
    for name in names.iter().take(INTERFACES_MAX) {
        let about = format!("interface {name}");
        match links.iter().find(|link| link.name == *name) {
            Some(link) => one(&about, link, facts, attach_mode, checks),
            None => checks.push(
                Check::problem(
                    &about,
                    "interface",
                    format!("interface {name} does not exist"),
                )
                .advise("`ip link` lists interfaces; `interfaces` in [fastpath] selects them"),
            ),
        }
    }
}

fn one(
    about: &str,
    link: &Link,
    facts: &Facts,
    attach_mode: Option<AttachMode>,
    checks: &mut Vec<Check>,
) {
    let found = offloads(&link.name).unwrap_or_default();
    let features = xdp_features(link.index);
    checks.push(state(about, link));
    let links = facts.links.as_deref().unwrap_or_default();
    checks.push(
        match attach_mode.map(|attach_mode| carrier(links, attach_mode, link)) {
            Some(at) if at.index != link.index => {
                Check::ok(about, "driver", format!("VLAN, served at {}", at.name))
            }
            _ => driver(about, link, &found, features),
        },
    );
    checks.extend(xdp_programs(about, link, attach_mode));
    checks.push(tc(about, &link.name));
    checks.push(queues(about, link, &found));
    let mtu = facts.settings.as_ref().map(|settings| settings.network.mtu);
    checks.push(length(about, link, mtu));
    checks.push(offload(about, link, &found, attach_mode));
    if attach_mode.is_some_and(|attach_mode| attach_mode != AttachMode::Tc)
        && let Some(hidden) = hidden_tags(&link.name)
    {
        checks.push(Check::warning(about, "vlan-tags", hidden));
    }
    checks.extend(other_end(about, link, facts, attach_mode));
    checks.push(reverse_path(about, &link.name));
}

/// How packets from tc reach the peer of a veth.
fn other_end(
    about: &str,
    link: &Link,
    facts: &Facts,
    attach_mode: Option<AttachMode>,
) -> Option<Check> {
    const NAME: &str = "other-end";
    let veth = facts
        .settings
        .as_ref()
        .map(|one| one.fastpath.veth_redirect);
    if attach_mode != Some(AttachMode::Tc) || veth == Some(VethRedirect::Queue) {
        return None;
    }
    let what = match straight(link)? {
        Ok(()) => {
            "packets are redirected to its peer, bypassing the peer's backlog queue, receive \
                   steering and GRO (`veth_redirect = \"queue\"` changes that)"
                .to_owned()
        }
        Err(why) => format!("packets go through the queue of its peer: {why}"),
    };
    Some(Check::ok(about, NAME, what))
}

fn state(about: &str, link: &Link) -> Check {
    if link.is_up {
        return Check::ok(about, "state", "up");
    }
    Check::warning(about, "state", "down: no packets can arrive")
        .advise(format!("`ip link set {} up`", link.name))
}

/// Mainline drivers that supported native XDP before the kernel could report it.
const WITH_XDP: [&str; 18] = [
    "atlantic",
    "bnxt_en",
    "ena",
    "gve",
    "i40e",
    "ice",
    "igb",
    "igc",
    "ixgbe",
    "ixgbevf",
    "mlx4_en",
    "mlx5_core",
    "mvneta",
    "mvpp2",
    "nfp",
    "qede",
    "veth",
    "virtio_net",
];

fn driver(
    about: &str,
    link: &Link,
    found: &Offloads,
    features: std::io::Result<Option<XdpFeatures>>,
) -> Check {
    const NAME: &str = "driver";
    let driver = match (&found.driver, &link.kind) {
        (driver, _) if !driver.is_empty() => format!("driver {driver}"),
        (_, Some(kind)) => format!("kind {kind}"),
        _ => "unknown driver".to_owned(),
    };
    match features {
        Ok(Some(one)) if one.basic() && one.redirect() => {
            let copies = if one.zero_copy() {
                ", AF_XDP zero copy"
            } else {
                ""
            };
            let what = format!("{driver}: native XDP (reported by the driver){copies}");
            Check::ok(about, NAME, what)
        }
        Ok(Some(one)) if one.basic() => Check::ok(
            about,
            NAME,
            format!("{driver}: native XDP without redirect; use tc"),
        ),
        Ok(Some(_)) => Check::ok(
            about,
            NAME,
            format!("{driver}: no native XDP (reported by the driver); tc and generic XDP work"),
        ),
        _ if WITH_XDP.contains(&found.driver.as_str()) => Check::ok(
            about,
            NAME,
            format!(
                "{driver}: native XDP is likely (judging by its name; this kernel does not \
                     report it)"
            ),
        ),
        _ => Check::unseen(
            about,
            NAME,
            format!("{driver}: this kernel does not report native XDP support; it will be tried"),
        ),
    }
}

fn xdp_programs(about: &str, link: &Link, attach_mode: Option<AttachMode>) -> Vec<Check> {
    const NAME: &str = "xdp-program";
    if link.xdp.is_empty() {
        return vec![Check::ok(about, NAME, "no XDP program is attached")];
    }
    let told = link.xdp.iter().map(|program| {
        let (id, how) = (program.id, program.way);
        let name = program_name(id);
        let whose = match &name {
            Ok(name) => name.clone(),
            Err(_) => "name not visible without CAP_SYS_ADMIN".to_owned(),
        };
        let what = format!("{how} XDP program {id} ({whose}) is attached");
        if name.is_ok_and(|name| is_our_name(&name)) {
            return Check::ok(about, NAME, format!("{what} by a running switch"));
        }
        let advice = format!(
            "it is never replaced: stop its owner (`bpftool prog show id {id}`), or use mode = \
             \"tc\" for {}",
            link.name
        );
        match attach_mode {
            Some(AttachMode::XdpNative | AttachMode::XdpGeneric) => {
                Check::problem(about, NAME, what).advise(advice)
            }
            _ => Check::warning(about, NAME, format!("{what} and sees every packet first"))
                .advise(advice),
        }
    });
    told.collect()
}

fn tc(about: &str, name: &str) -> Check {
    const NAME: &str = "tc-programs";
    let programs = match tc_programs(name) {
        Ok(programs) => programs,
        Err(error) => {
            let what = format!("cannot list the programs at tc ingress: {error}");
            return Check::unseen(about, NAME, what).advise(
                "run the doctor as root; before Linux 6.6 use `tc filter show dev NAME ingress`",
            );
        }
    };
    let foreign = programs.iter().filter(|one| !is_our_name(&one.name));
    let names: Vec<String> = foreign
        .map(|one| format!("{} ({})", one.id, one.name))
        .collect();
    if names.is_empty() {
        return Check::ok(about, NAME, "no other programs at tc ingress");
    }
    let what = format!("other programs at tc ingress: {}", names.join(", "));
    Check::warning(about, NAME, what).advise(
        "programs that run earlier may consume packets, programs that run later do not see packets \
         of the fast path; `tc filter show` and `bpftool net` show the order",
    )
}

fn queues(about: &str, link: &Link, found: &Offloads) -> Check {
    const NAME: &str = "queues";
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (used, possible) = found
        .queues
        .unwrap_or((link.rx_queues.max(1), link.rx_queues.max(1)));
    let on = plural(cores, "core");
    let what = format!("{} for {on}", plural(used as usize, "receive queue"));
    if (used as usize) < cores && possible > used {
        let wanted = (possible as usize).min(cores);
        return Check::warning(about, NAME, format!("{what}; {possible} possible"))
            .advise(format!("`ethtool -L {} combined {wanted}`", link.name));
    }
    if (used as usize) < cores {
        let name = &link.name;
        let what = format!(
            "{what}; receive packet steering (queues/rx-0/rps_cpus of {name}) can use the other \
             cores"
        );
        return Check::ok(about, NAME, what);
    }
    Check::ok(about, NAME, what)
}

fn length(about: &str, link: &Link, device: Option<u16>) -> Check {
    const NAME: &str = "mtu";
    let what = format!("MTU {}", link.mtu);
    match device {
        Some(device) if u32::from(device) > link.mtu => Check::warning(
            about,
            NAME,
            format!("{what}, smaller than the switch's {device}"),
        )
        .advise(format!(
            "set mtu = {} in [network], which caps the advertised MSS",
            link.mtu
        )),
        _ => Check::ok(about, NAME, what),
    }
}

fn offload(about: &str, link: &Link, found: &Offloads, attach_mode: Option<AttachMode>) -> Check {
    const NAME: &str = "offloads";
    let name = &link.name;
    if found.on.is_empty() {
        return Check::unseen(about, NAME, "the driver does not report its offloads");
    }
    let on: Vec<&str> = found
        .on
        .iter()
        .filter(|(_, on)| *on)
        .map(|(which, _)| which.name())
        .collect();
    let what = match on.is_empty() {
        true => "no offloads enabled".to_owned(),
        false => format!("offloads enabled: {}", on.join(" ")),
    };
    if found.is_on(Offload::Lro) {
        let what = format!("{what}; packets merged by LRO cannot be forwarded");
        return Check::warning(about, NAME, what).advise(format!("`ethtool -K {name} lro off`"));
    }
    let is_virtual = ["veth", "virtio_net"].contains(&found.driver.as_str());
    let xdp = matches!(
        attach_mode,
        Some(AttachMode::XdpNative | AttachMode::XdpGeneric)
    );
    if xdp && is_virtual && (found.is_on(Offload::Tso) || found.is_on(Offload::TxChecksum)) {
        let what = format!(
            "{what}; XDP leaves super-packets and partial checksums from its peer to the \
                     engine"
        );
        return Check::warning(about, NAME, what).advise(format!(
            "`ethtool -K {name} tso off gso off tx off` on both ends, or mode = \"tc\", which \
             supports them"
        ));
    }
    if attach_mode != Some(AttachMode::XdpNative) && !found.is_on(Offload::Gro) && !is_virtual {
        let what = format!("{what}; without GRO every segment is handled separately");
        return Check::warning(about, NAME, what).advise(format!("`ethtool -K {name} gro on`"));
    }
    Check::ok(about, NAME, what)
}

/// The kernel applies the stricter of the two settings.
fn reverse_path(about: &str, name: &str) -> Check {
    let value = |of: &str| {
        let text = read(&format!("/proc/sys/net/ipv4/conf/{of}/rp_filter")).ok();
        text.and_then(|text| text.parse::<u8>().ok())
    };
    match value(name).max(value("all")) {
        None => Check::unseen(
            about,
            "rp-filter",
            "cannot read the reverse-path filter setting",
        ),
        Some(1) => Check::warning(
            about,
            "rp-filter",
            "strict reverse-path filter: IPv4 packets are dropped silently if the route back to \
             their source uses another interface",
        )
        .advise(format!(
            "with more than one path to clients or servers, or with clients that use transparent \
             servers directly: `sysctl -w net.ipv4.conf.{name}.rp_filter=2`"
        )),
        Some(mode) => {
            let word = if mode == 0 { "off" } else { "loose" };
            Check::ok(about, "rp-filter", format!("reverse-path filter: {word}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use fairlead_survey::XdpProgram;

    use super::super::State;
    use super::*;

    fn link() -> Link {
        Link {
            index: 3,
            name: "eth9".into(),
            mtu: 1_500,
            is_up: true,
            rx_queues: 1,
            ..Link::default()
        }
    }

    fn with(driver: &str, on: &[Offload]) -> Offloads {
        Offloads {
            driver: driver.into(),
            on: Offload::ALL
                .iter()
                .map(|one| (*one, on.contains(one)))
                .collect(),
            queues: None,
        }
    }

    #[test]
    fn offloads_are_checked_by_attach_mode() {
        let judged =
            |found: &Offloads, attach_mode| offload("interface eth9", &link(), found, attach_mode);
        let joined = with("ixgbe", &[Offload::Lro, Offload::Gro]);
        let found = judged(&joined, Some(AttachMode::Tc));
        assert_eq!(found.advice.unwrap(), "`ethtool -K eth9 lro off`");
        let plain = with("ixgbe", &[Offload::Gro]);
        assert_eq!(judged(&plain, Some(AttachMode::Tc)).state, State::Ok);
        assert_eq!(
            judged(&with("ixgbe", &[]), Some(AttachMode::Tc)).state,
            State::Warning
        );
        assert_eq!(
            judged(&with("ixgbe", &[]), Some(AttachMode::XdpNative)).state,
            State::Ok
        );
        let pair = with("veth", &[Offload::Tso, Offload::TxChecksum]);
        assert_eq!(
            judged(&pair, Some(AttachMode::XdpNative)).state,
            State::Warning
        );
        assert_eq!(judged(&pair, Some(AttachMode::Tc)).state, State::Ok);
        assert_eq!(judged(&Offloads::default(), None).state, State::Unseen);
    }

    #[test]
    fn an_mtu_above_the_interfaces_is_a_warning() {
        assert_eq!(length("i", &link(), Some(1_500)).state, State::Ok);
        assert_eq!(length("i", &link(), None).state, State::Ok);
        let found = length("i", &link(), Some(9_000));
        assert_eq!(found.state, State::Warning);
        assert!(found.advice.unwrap().starts_with("set mtu = 1500"));
    }

    #[test]
    fn another_program_conflicts_with_xdp_only() {
        let mut link = link();
        link.xdp.push(XdpProgram {
            id: u32::MAX,
            way: "native",
        });
        let state = |attach_mode| xdp_programs("i", &link, attach_mode)[0].state;
        assert_eq!(state(Some(AttachMode::XdpNative)), State::Problem);
        assert_eq!(state(Some(AttachMode::Tc)), State::Warning);
        assert_eq!(state(None), State::Warning);
    }

    #[test]
    fn unused_queues_come_with_the_command() {
        let mut found = Offloads {
            queues: Some((1, 1_024)),
            ..Offloads::default()
        };
        let judged = queues("i", &link(), &found);
        if std::thread::available_parallelism().map_or(1, std::num::NonZero::get) > 1 {
            assert!(
                judged
                    .advice
                    .unwrap()
                    .starts_with("`ethtool -L eth9 combined ")
            );
        }
        found.queues = Some((1_024, 1_024));
        assert_eq!(queues("i", &link(), &found).state, State::Ok);
    }
}
