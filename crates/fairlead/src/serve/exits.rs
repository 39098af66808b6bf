//! What the XDP program must know about interfaces: which ones it may transmit on, their addresses,
//! and VLAN tags.

use std::collections::BTreeMap;

use fairlead_bpf_loader::{Exit, Kernel, LoadError, Mode as AttachMode};
use fairlead_survey::{Link, XdpFeatures, all_xdp_features, links};

use super::vlans::vlans;

/// Tells the program which interfaces it serves, by index; `at` are those it is attached to.
/// Returns the indexes of all interfaces that it may transmit on.
///
/// # Errors
/// The kernel refuses the update.
pub(super) fn tell(kernel: &mut Kernel, served: &[u32], at: &[u32]) -> Result<Vec<u32>, LoadError> {
    if kernel.mode() == AttachMode::Tc {
        return Ok(Vec::new());
    }
    let links = links().unwrap_or_default();
    let exits = tell_own(kernel, &links, served, at)?;
    let ours = links.iter().filter(|link| served.contains(&link.index));
    let addresses = ours.filter_map(|link| Some((link.index, link.address?)));
    kernel.set_addresses(&addresses.collect::<Vec<_>>())?;
    Ok(exits)
}

/// Prepares a program before it is attached, without touching what a program of an earlier run
/// uses. From the first attachment on it can forward, even if attaching to the other interfaces
/// fails.
///
/// # Errors
/// The kernel refuses the update.
pub(super) fn foretell(kernel: &mut Kernel, served: &[u32], at: &[u32]) -> Result<(), LoadError> {
    match kernel.mode() {
        AttachMode::Tc => Ok(()),
        _ => tell_own(kernel, &links().unwrap_or_default(), served, at).map(drop),
    }
}

fn tell_own(
    kernel: &mut Kernel,
    links: &[Link],
    served: &[u32],
    at: &[u32],
) -> Result<Vec<u32>, LoadError> {
    let attach = kernel.mode();
    let exits = exits(attach, links, served, at);
    kernel.set_exits(&exits)?;
    // In generic mode a VLAN interface has its own program.
    if attach == AttachMode::XdpNative {
        let ours = vlans(links).filter(|vlan| served.contains(&vlan.interface));
        kernel.set_vlans(&ours.collect::<Vec<_>>())?;
    }
    Ok(exits.iter().map(|exit| exit.interface).collect())
}

/// The interfaces that accept packets from the program in this attach mode, served ones first.
/// Packets to other interfaces go through the stack.
///
/// A driver may accept XDP redirects only under a condition that can change: the peer of a veth
/// must have a program or GRO enabled, and many NICs need a program attached to the interface
/// itself. So this is queried again from time to time.
fn exits(attach: AttachMode, links: &[Link], served: &[u32], at: &[u32]) -> Vec<Exit> {
    let features = match attach {
        AttachMode::XdpNative => all_xdp_features().ok().flatten(),
        _ => None,
    };
    exits_of(attach, (served, at), links, features.as_ref())
}

fn exits_of(
    attach: AttachMode,
    (served, at): (&[u32], &[u32]),
    links: &[Link],
    features: Option<&BTreeMap<u32, XdpFeatures>>,
) -> Vec<Exit> {
    // An interface without Ethernet headers would get packets with one.
    let usable = links.iter().filter(|link| link.is_up && link.is_ethernet);
    let exits = usable.filter_map(|link| match (attach, features) {
        // Generic XDP transmits like the stack, on any interface.
        (AttachMode::XdpGeneric, _) => Some(exit(link.index, true)),
        (_, Some(told)) => told
            .get(&link.index)
            .and_then(|one| by_driver(link.index, *one)),
        // Before Linux 6.3 the kernel does not report XDP features.
        (_, None) => {
            (at.contains(&link.index) && has_a_wire(link)).then(|| exit(link.index, false))
        }
    });
    let mut exits: Vec<Exit> = exits.collect();
    if attach == AttachMode::XdpNative {
        let tagged = vlans(links).filter_map(|vlan| {
            let device = exits.iter().find(|exit| exit.interface == vlan.device)?;
            Some(Exit {
                interface: vlan.interface,
                tag: Some(vlan.tag),
                ..*device
            })
        });
        let tagged: Vec<Exit> = tagged.collect();
        exits.extend(tagged);
    }
    exits.sort_by_key(|exit| !served.contains(&exit.interface));
    exits
}

/// True if XDP redirects to this interface depend on this side only. A veth drops them silently
/// until its peer, perhaps in another namespace, is ready; by default it is not.
fn has_a_wire(link: &Link) -> bool {
    link.kind.as_deref() != Some("veth")
}

fn by_driver(interface: u32, features: XdpFeatures) -> Option<Exit> {
    let takes = features.redirect_target();
    takes.then(|| exit(interface, features.several_buffers_target()))
}

fn exit(interface: u32, buffers: bool) -> Exit {
    Exit {
        interface,
        device: interface,
        tag: None,
        buffers,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_reported_features_a_veth_is_no_exit() {
        let link = |index, kind: Option<&str>| Link {
            index,
            is_up: true,
            is_ethernet: true,
            kind: kind.map(Into::into),
            ..Link::default()
        };
        let links = [link(2, None), link(3, Some("veth")), link(4, None)];
        let indexes = |attach, features| {
            let all = exits_of(attach, (&[2, 3], &[2, 3]), &links, features);
            all.iter().map(|one| one.interface).collect::<Vec<_>>()
        };
        assert_eq!(indexes(AttachMode::XdpNative, None), [2]);
        assert_eq!(indexes(AttachMode::XdpGeneric, None), [2, 3, 4]);
        let nobody_takes_any = BTreeMap::new();
        assert!(indexes(AttachMode::XdpNative, Some(&nobody_takes_any)).is_empty());
    }
}
