//! Each interface that packets come in on: its driver, its offloads, what else is attached.

use fairlead_bpf_loader::Mode as Way;
use fairlead_survey::{
    Link, Offload, Offloads, XdpFeatures, offloads, program_name, tc_programs, xdp_features,
};

use super::mode::{Expected, is_our_name};
use super::{Check, Facts, read};
use crate::config::Veth;
use crate::screen::plural;
use crate::serve::interfaces::hidden_tags;
use crate::serve::straight::straight;
use crate::serve::vlans::{carrier, carriers, each_once};

/// Interfaces that are looked at, at most.
const INTERFACES_MAX: usize = 64;

/// Looks at the interfaces that the kernel fast path would be attached to.
pub(super) fn look(facts: &Facts, expected: &Expected, checks: &mut Vec<Check>) {
    let links = match &facts.links {
        Ok(links) => links,
        Err(error) => {
            let what = format!("interfaces cannot be listed: {error}");
            checks.push(Check::unseen("interfaces", "interfaces", what));
            return;
        }
    };
    if expected.interfaces.is_empty() {
        let what = "no Ethernet interface is up: nothing can come in";
        checks.push(
            Check::warning("interfaces", "interfaces", what)
                .advise("`ip link set NAME up`, or name some in `interfaces` of [fastpath]"),
        );
    }
    let way = expected.way_wanted();
    // And those on which the fast path would be for them.
    let at = way.map_or_else(Vec::new, |way| carriers(links, way, &expected.interfaces));
    let names = each_once([expected.interfaces.clone(), at].concat());
    for name in names.iter().take(INTERFACES_MAX) {
        let about = format!("interface {name}");
        match links.iter().find(|link| link.name == *name) {
            Some(link) => one(&about, link, facts, way, checks),
            None => checks.push(
                Check::problem(&about, "interface", format!("there is no interface {name}"))
                    .advise("`ip link` lists them; `interfaces` in [fastpath] names those to use"),
            ),
        }
    }
}

fn one(about: &str, link: &Link, facts: &Facts, way: Option<Way>, checks: &mut Vec<Check>) {
    let found = offloads(&link.name).unwrap_or_default();
    let features = xdp_features(link.index);
    checks.push(state(about, link));
    let links = facts.links.as_deref().unwrap_or_default();
    checks.push(match way.map(|way| carrier(links, way, link)) {
        Some(at) if at.index != link.index => {
            Check::ok(about, "driver", format!("a VLAN's, served at {}", at.name))
        }
        _ => driver(about, link, &found, features),
    });
    checks.extend(xdp_programs(about, link, way));
    checks.push(tc(about, &link.name));
    checks.push(queues(about, link, &found));
    let mtu = facts
        .settings
        .as_ref()
        .map(|settings| settings.fastpath.mtu);
    checks.push(length(about, link, mtu));
    checks.push(offload(about, link, &found, way));
    if way.is_some_and(|way| way != Way::Tc)
        && let Some(hidden) = hidden_tags(&link.name)
    {
        checks.push(Check::warning(about, "vlan-tags", hidden));
    }
    checks.extend(other_end(about, link, facts, way));
    checks.push(reverse_path(about, &link.name));
}

/// How packets from tc reach the other end of a veth.
fn other_end(about: &str, link: &Link, facts: &Facts, way: Option<Way>) -> Option<Check> {
    const NAME: &str = "other-end";
    let veth = facts.settings.as_ref().map(|one| one.fastpath.veth);
    if way != Some(Way::Tc) || veth == Some(Veth::Queue) {
        return None;
    }
    let what = match straight(link)? {
        Ok(()) => "packets go straight to its other end, past that one's queue, its steering over \
                   cores and its joining of segments (`veth = \"queue\"` changes that)"
            .to_owned(),
        Err(why) => format!("packets go by the queue of its other end: {why}"),
    };
    Some(Check::ok(about, NAME, what))
}

fn state(about: &str, link: &Link) -> Check {
    if link.is_up {
        return Check::ok(about, "state", "it is up");
    }
    Check::warning(about, "state", "it is down: no packet comes in")
        .advise(format!("`ip link set {} up`", link.name))
}

/// Drivers of the mainline kernel that have had native XDP since before the kernel could be asked.
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
        _ => "a driver without a name".to_owned(),
    };
    match features {
        Ok(Some(one)) if one.basic() && one.redirect() => {
            let copies = if one.zero_copy() {
                ", AF_XDP without copies"
            } else {
                ""
            };
            let what = format!("{driver}: native XDP (the driver says so){copies}");
            Check::ok(about, NAME, what)
        }
        Ok(Some(one)) if one.basic() => Check::ok(
            about,
            NAME,
            format!("{driver}: native XDP that cannot send packets on; tc can"),
        ),
        Ok(Some(_)) => Check::ok(
            about,
            NAME,
            format!("{driver}: no native XDP (the driver says so); tc and generic XDP work"),
        ),
        _ if WITH_XDP.contains(&found.driver.as_str()) => Check::ok(
            about,
            NAME,
            format!("{driver}: native XDP is likely (by its name; this kernel cannot be asked)"),
        ),
        _ => Check::unseen(
            about,
            NAME,
            format!("{driver}: this kernel cannot be asked about native XDP; it will be tried"),
        ),
    }
}

fn xdp_programs(about: &str, link: &Link, way: Option<Way>) -> Vec<Check> {
    const NAME: &str = "xdp-program";
    if link.xdp.is_empty() {
        return vec![Check::ok(about, NAME, "no XDP program is attached")];
    }
    let told = link.xdp.iter().map(|program| {
        let (id, how) = (program.id, program.way);
        let name = program_name(id);
        let whose = match &name {
            Ok(name) => name.clone(),
            Err(_) => "its name is not shown without CAP_SYS_ADMIN".to_owned(),
        };
        let what = format!("{how} XDP program {id} ({whose}) is attached");
        if name.is_ok_and(|name| is_our_name(&name)) {
            return Check::ok(about, NAME, format!("{what}: a running switch's"));
        }
        let advice = format!(
            "whose is it? `bpftool prog show id {id}`; it is never replaced: stop its owner, or \
             leave {} to mode = \"tc\"",
            link.name
        );
        match way {
            Some(Way::XdpNative | Way::XdpGeneric) => {
                Check::problem(about, NAME, what).advise(advice)
            }
            _ => Check::warning(about, NAME, format!("{what}: it sees every packet first"))
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
            let what = format!("programs at tc ingress cannot be listed: {error}");
            return Check::unseen(about, NAME, what).advise(
                "run the doctor as root; before Linux 6.6 `tc filter show dev NAME ingress`",
            );
        }
    };
    let foreign = programs.iter().filter(|one| !is_our_name(&one.name));
    let names: Vec<String> = foreign
        .map(|one| format!("{} ({})", one.id, one.name))
        .collect();
    if names.is_empty() {
        return Check::ok(about, NAME, "tc ingress has no program of others");
    }
    let what = format!("tc ingress has programs of others: {}", names.join(", "));
    Check::warning(about, NAME, what).advise(
        "those that come first may take packets away, those that come later do not see packets \
         of the fast path: `tc filter show` and `bpftool net` tell the order",
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
        return Check::warning(about, NAME, format!("{what}; {possible} are possible"))
            .advise(format!("`ethtool -L {} combined {wanted}`", link.name));
    }
    if (used as usize) < cores {
        let name = &link.name;
        let what = format!(
            "{what}: receive packet steering (queues/rx-0/rps_cpus of {name}) would use the others"
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
            format!("{what}, less than the switch's {device}"),
        )
        .advise(format!(
            "mtu = {} in [fastpath], so that nobody is offered longer segments",
            link.mtu
        )),
        _ => Check::ok(about, NAME, what),
    }
}

fn offload(about: &str, link: &Link, found: &Offloads, way: Option<Way>) -> Check {
    const NAME: &str = "offloads";
    let name = &link.name;
    if found.on.is_empty() {
        return Check::unseen(about, NAME, "the driver does not tell its offloads");
    }
    let on: Vec<&str> = found
        .on
        .iter()
        .filter(|(_, on)| *on)
        .map(|(which, _)| which.name())
        .collect();
    let what = match on.is_empty() {
        true => "offloads: none is on".to_owned(),
        false => format!("offloads on: {}", on.join(" ")),
    };
    if found.is_on(Offload::Lro) {
        let what = format!("{what}; packets joined by lro cannot be forwarded whole");
        return Check::warning(about, NAME, what).advise(format!("`ethtool -K {name} lro off`"));
    }
    let is_virtual = ["veth", "virtio_net"].contains(&found.driver.as_str());
    let xdp = matches!(way, Some(Way::XdpNative | Way::XdpGeneric));
    if xdp && is_virtual && (found.is_on(Offload::Tso) || found.is_on(Offload::TxChecksum)) {
        let what =
            format!("{what}; XDP leaves its peer's super-packets and open checksums to the engine");
        return Check::warning(about, NAME, what).advise(format!(
            "`ethtool -K {name} tso off gso off tx off` on both ends, or mode = \"tc\", which is \
             made for them"
        ));
    }
    if way != Some(Way::XdpNative) && !found.is_on(Offload::Gro) && !is_virtual {
        let what = format!("{what}; without gro every segment is handled alone");
        return Check::warning(about, NAME, what).advise(format!("`ethtool -K {name} gro on`"));
    }
    Check::ok(about, NAME, what)
}

/// The stricter of the two settings holds.
fn reverse_path(about: &str, name: &str) -> Check {
    let value = |of: &str| {
        let text = read(&format!("/proc/sys/net/ipv4/conf/{of}/rp_filter")).ok();
        text.and_then(|text| text.parse::<u8>().ok())
    };
    match value(name).max(value("all")) {
        None => Check::unseen(about, "rp-filter", "its reverse-path filter cannot be read"),
        Some(1) => Check::warning(
            about,
            "rp-filter",
            "strict reverse-path filter: IPv4 packets whose answers would leave elsewhere are \
             dropped in silence",
        )
        .advise(format!(
            "where clients or servers come by more than one way: `sysctl -w \
             net.ipv4.conf.{name}.rp_filter=2`"
        )),
        Some(mode) => {
            let word = if mode == 0 { "off" } else { "loose" };
            Check::ok(about, "rp-filter", format!("reverse-path filter {word}"))
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
    fn offloads_matter_by_the_way_that_packets_take() {
        let judged = |found: &Offloads, way| offload("interface eth9", &link(), found, way);
        let joined = with("ixgbe", &[Offload::Lro, Offload::Gro]);
        let found = judged(&joined, Some(Way::Tc));
        assert_eq!(found.advice.unwrap(), "`ethtool -K eth9 lro off`");
        let plain = with("ixgbe", &[Offload::Gro]);
        assert_eq!(judged(&plain, Some(Way::Tc)).state, State::Ok);
        assert_eq!(
            judged(&with("ixgbe", &[]), Some(Way::Tc)).state,
            State::Warning
        );
        assert_eq!(
            judged(&with("ixgbe", &[]), Some(Way::XdpNative)).state,
            State::Ok
        );
        let pair = with("veth", &[Offload::Tso, Offload::TxChecksum]);
        assert_eq!(judged(&pair, Some(Way::XdpNative)).state, State::Warning);
        assert_eq!(judged(&pair, Some(Way::Tc)).state, State::Ok);
        assert_eq!(judged(&Offloads::default(), None).state, State::Unseen);
    }

    #[test]
    fn longer_packets_than_the_interface_carries_are_told() {
        assert_eq!(length("i", &link(), Some(1_500)).state, State::Ok);
        assert_eq!(length("i", &link(), None).state, State::Ok);
        let found = length("i", &link(), Some(9_000));
        assert_eq!(found.state, State::Warning);
        assert!(found.advice.unwrap().starts_with("mtu = 1500"));
    }

    #[test]
    fn another_program_is_in_the_way_of_xdp_only() {
        let mut link = link();
        link.xdp.push(XdpProgram {
            id: u32::MAX,
            way: "native",
        });
        let state = |way| xdp_programs("i", &link, way)[0].state;
        assert_eq!(state(Some(Way::XdpNative)), State::Problem);
        assert_eq!(state(Some(Way::Tc)), State::Warning);
        assert_eq!(state(None), State::Warning);
    }

    #[test]
    fn unused_queues_are_told_with_the_command() {
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
