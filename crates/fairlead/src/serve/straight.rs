//! Veths whose other ends receive at once what the program at tc sends them, past the queue of
//! received packets in between (docs/decisions/0020).

use fairlead_bpf_loader::{Kernel, LoadError, Mode as Way};
use fairlead_survey::{
    Link, Offload, chain_at_egress, is_seen_at_egress, link_elsewhere, links, offloads,
};

use crate::config::Veth;

/// Tells the program of those among the interfaces that it serves, by index, and gives them.
///
/// # Errors
/// When the kernel does not take it.
pub(super) fn tell(kernel: &mut Kernel, veth: Veth, served: &[u32]) -> Result<Vec<u32>, LoadError> {
    if kernel.mode() != Way::Tc || veth == Veth::Queue {
        return Ok(Vec::new());
    }
    let links = links().unwrap_or_default();
    let ours = links.iter().filter(|link| served.contains(&link.index));
    let straight = ours.filter(|link| straight(link).is_some_and(|one| one.is_ok()));
    let straight: Vec<u32> = straight.map(|link| link.index).collect();
    kernel.set_straight(&straight)?;
    Ok(straight)
}

/// Whether packets may go straight to the other end of this link: only where nothing that somebody
/// set up is passed by, as far as that can be seen from here. `Err` says what would be; `None`: it
/// is no veth.
pub(crate) fn straight(link: &Link) -> Option<Result<(), String>> {
    (link.kind.as_deref() == Some("veth")).then(|| passes_nothing_by(link))
}

fn passes_nothing_by(link: &Link) -> Result<(), String> {
    let (Some(namespace), Some(index)) = (link.elsewhere, link.below) else {
        return Err("its other end is in this network namespace".into());
    };
    if link.qdisc != "noqueue" {
        return Err(format!("it has a queueing discipline, {}", link.qdisc));
    }
    // One segment at a time, the receiving end does better with what a queue has gathered.
    let cuts = offloads(&link.name).is_ok_and(|found| !found.is_on(Offload::Tso));
    if cuts {
        return Err(format!(
            "it sends single segments (`ethtool -K {} tso on`)",
            link.name
        ));
    }
    match is_seen_at_egress(link.index) {
        Ok(false) => {}
        Ok(true) => return Err("a program or filter sees what it sends".into()),
        Err(error) => return Err(format!("who sees what it sends is not told: {error}")),
    }
    // A kernel without nftables has no such chains.
    if let Ok(Some(chain)) = chain_at_egress() {
        return Err(format!("the chain {chain} may see what it sends"));
    }
    match link_elsewhere(namespace, index) {
        Ok(other) if other.xdp.is_empty() => Ok(()),
        Ok(_) => Err("its other end has an XDP program".into()),
        Err(error) => Err(format!("its other end cannot be looked at: {error}")),
    }
}
