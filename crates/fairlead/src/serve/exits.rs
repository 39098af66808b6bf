//! What XDP has to know of interfaces: which it may send packets out of, their addresses, and the
//! tags of VLANs.

use std::collections::BTreeMap;

use fairlead_bpf_loader::{Exit, Kernel, LoadError, Mode as Way};
use fairlead_survey::{Link, XdpFeatures, all_xdp_features, links};

use super::vlans::vlans;

/// Tells the program of the interfaces that it serves, by index; `at` are those where it is. Gives
/// the indexes of those, among all, that it may send out of.
///
/// # Errors
/// When the kernel does not take it.
pub(super) fn tell(kernel: &mut Kernel, served: &[u32], at: &[u32]) -> Result<Vec<u32>, LoadError> {
    if kernel.mode() == Way::Tc {
        return Ok(Vec::new());
    }
    let links = links().unwrap_or_default();
    let exits = tell_own(kernel, &links, served, at)?;
    let ours = links.iter().filter(|link| served.contains(&link.index));
    let addresses = ours.filter_map(|link| Some((link.index, link.address?)));
    kernel.set_addresses(&addresses.collect::<Vec<_>>())?;
    Ok(exits)
}

/// Tells it what is this program's own and nothing that the one before it goes by, `served` among
/// others then: from when it is at the first interface, it can forward, should it stay at that one
/// alone.
///
/// # Errors
/// When the kernel does not take it.
pub(super) fn foretell(kernel: &mut Kernel, served: &[u32], at: &[u32]) -> Result<(), LoadError> {
    match kernel.mode() {
        Way::Tc => Ok(()),
        _ => tell_own(kernel, &links().unwrap_or_default(), served, at).map(drop),
    }
}

fn tell_own(
    kernel: &mut Kernel,
    links: &[Link],
    served: &[u32],
    at: &[u32],
) -> Result<Vec<u32>, LoadError> {
    let way = kernel.mode();
    let exits = exits(way, links, served, at);
    kernel.set_exits(&exits)?;
    // Before the stack, and without the driver, a VLAN's interface has a program of its own.
    if way == Way::XdpNative {
        let ours = vlans(links).filter(|vlan| served.contains(&vlan.interface));
        kernel.set_vlans(&ours.collect::<Vec<_>>())?;
    }
    Ok(exits.iter().map(|exit| exit.interface).collect())
}

/// The interfaces that take what the program sends, by the way it is attached, first those that it
/// serves. Others come by the stack, whatever they are.
///
/// A driver may take packets from XDP only while something else is so: of a veth the other end must
/// have a program or join received segments (`gro`), of many cards a program must be attached to
/// the interface itself. So this is to be asked again from time to time.
fn exits(way: Way, links: &[Link], served: &[u32], at: &[u32]) -> Vec<Exit> {
    let features = match way {
        Way::XdpNative => all_xdp_features().ok().flatten(),
        _ => None,
    };
    exits_of(way, (served, at), links, features.as_ref())
}

fn exits_of(
    way: Way,
    (served, at): (&[u32], &[u32]),
    links: &[Link],
    features: Option<&BTreeMap<u32, XdpFeatures>>,
) -> Vec<Exit> {
    // What has no Ethernet header would be sent one.
    let usable = links.iter().filter(|link| link.is_up && link.is_ethernet);
    let exits = usable.filter_map(|link| match (way, features) {
        // Before the stack, every interface takes what the stack would send.
        (Way::XdpGeneric, _) => Some(exit(link.index, true)),
        (_, Some(told)) => told
            .get(&link.index)
            .and_then(|one| by_driver(link.index, *one)),
        // Before Linux 6.3 nobody tells.
        (_, None) => {
            (at.contains(&link.index) && has_a_wire(link)).then(|| exit(link.index, false))
        }
    });
    let mut exits: Vec<Exit> = exits.collect();
    if way == Way::XdpNative {
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

/// Whether an interface takes packets from XDP by what there is on this side alone. A veth loses
/// them in silence while its other end, which may be in another's namespace, is not ready for them;
/// and as it is made, it is not.
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
    fn where_nobody_tells_a_veth_is_not_believed_to_take_packets() {
        let link = |index, kind: Option<&str>| Link {
            index,
            is_up: true,
            is_ethernet: true,
            kind: kind.map(Into::into),
            ..Link::default()
        };
        let links = [link(2, None), link(3, Some("veth")), link(4, None)];
        let indexes = |way, features| {
            let all = exits_of(way, (&[2, 3], &[2, 3]), &links, features);
            all.iter().map(|one| one.interface).collect::<Vec<_>>()
        };
        assert_eq!(indexes(Way::XdpNative, None), [2]);
        assert_eq!(indexes(Way::XdpGeneric, None), [2, 3, 4]);
        let nobody_takes_any = BTreeMap::new();
        assert!(indexes(Way::XdpNative, Some(&nobody_takes_any)).is_empty());
    }
}
