//! What XDP has to know of interfaces: which it may send packets out of, and their addresses.

use fairlead_bpf_loader::{Exit, Mode as Way};
use fairlead_survey::{XdpFeatures, all_xdp_features, links};

/// The interfaces that take what the program sends, by the way it is attached; those in `attached`,
/// by index, come first. Others come by the stack, whatever they are.
///
/// A driver may take packets from XDP only while something else is so: of a veth the other end must
/// have a program or join received segments (`gro`), of many cards a program must be attached to
/// the interface itself. So this is to be asked again from time to time.
pub(super) fn exits(way: Way, attached: &[u32]) -> Vec<Exit> {
    if way == Way::Tc {
        return Vec::new();
    }
    let features = match way {
        Way::XdpNative => all_xdp_features().ok().flatten(),
        _ => None,
    };
    let Ok(mut links) = links() else {
        return Vec::new();
    };
    links.sort_by_key(|link| !attached.contains(&link.index));
    // What has no Ethernet header would be sent one.
    let usable = links.iter().filter(|link| link.is_up && link.is_ethernet);
    let exits = usable.filter_map(|link| match (way, &features) {
        // Before the stack, every interface takes what the stack would send.
        (Way::XdpGeneric, _) => Some(exit(link.index, true)),
        (_, Some(told)) => told
            .get(&link.index)
            .and_then(|one| by_driver(link.index, *one)),
        // Before Linux 6.3 nobody tells.
        (_, None) => attached
            .contains(&link.index)
            .then(|| exit(link.index, false)),
    });
    exits.collect()
}

/// The Ethernet addresses of those in `attached`, by index.
pub(super) fn addresses(attached: &[u32]) -> Vec<(u32, [u8; 6])> {
    let links = links().unwrap_or_default();
    let ours = links.iter().filter(|link| attached.contains(&link.index));
    ours.filter_map(|link| Some((link.index, link.address?)))
        .collect()
}

fn by_driver(interface: u32, features: XdpFeatures) -> Option<Exit> {
    let takes = features.redirect_target();
    takes.then(|| exit(interface, features.several_buffers_target()))
}

fn exit(interface: u32, buffers: bool) -> Exit {
    Exit { interface, buffers }
}
