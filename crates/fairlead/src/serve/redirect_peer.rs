//! Veths for which the tc program uses `bpf_redirect_peer`: packets reach the peer directly,
//! without the backlog queue in between (docs/decisions/0020).

use fairlead_bpf_loader::{Kernel, LoadError, Mode as AttachMode};
use fairlead_survey::{
    Link, Offload, chain_at_egress, is_seen_at_egress, link_elsewhere, links, offloads,
};

use crate::config::VethRedirect;

/// Tells the program which of the served interfaces these are, and returns their indexes.
///
/// # Errors
/// The kernel refuses the update.
pub(super) fn tell(
    kernel: &mut Kernel,
    veth: VethRedirect,
    served: &[u32],
) -> Result<Vec<u32>, LoadError> {
    if kernel.mode() != AttachMode::Tc || veth == VethRedirect::Queue {
        return Ok(Vec::new());
    }
    let links = links().unwrap_or_default();
    let ours = links.iter().filter(|link| served.contains(&link.index));
    let straight = ours.filter(|link| straight(link).is_some_and(|one| one.is_ok()));
    let straight: Vec<u32> = straight.map(|link| link.index).collect();
    kernel.set_straight(&straight)?;
    Ok(straight)
}

/// Whether packets may be redirected to the peer of this link. Only if that bypasses nothing that
/// the administrator set up, as far as this can be seen from here. `Err` says what would be
/// bypassed; `None`: the link is not a veth.
pub(crate) fn straight(link: &Link) -> Option<Result<(), String>> {
    (link.kind.as_deref() == Some("veth")).then(|| passes_nothing_by(link))
}

fn passes_nothing_by(link: &Link) -> Result<(), String> {
    let (Some(namespace), Some(index)) = (link.elsewhere, link.below) else {
        return Err("its peer is in this network namespace".into());
    };
    if link.qdisc != "noqueue" {
        return Err(format!("it has a queueing discipline ({})", link.qdisc));
    }
    // With single segments the queue is better: the receiver processes them in batches.
    let cuts = offloads(&link.name).is_ok_and(|found| !found.is_on(Offload::Tso));
    if cuts {
        return Err(format!(
            "it sends single segments (`ethtool -K {} tso on`)",
            link.name
        ));
    }
    match is_seen_at_egress(link.index) {
        Ok(false) => {}
        Ok(true) => return Err("a program or filter is attached to its egress".into()),
        Err(error) => {
            return Err(format!(
                "cannot determine what is attached to its egress: {error}"
            ));
        }
    }
    // A kernel without nftables has no such chains.
    if let Ok(Some(chain)) = chain_at_egress() {
        return Err(format!("the chain {chain} may filter its egress"));
    }
    match link_elsewhere(namespace, index) {
        Ok(other) if other.xdp.is_empty() => Ok(()),
        Ok(_) => Err("its peer has an XDP program".into()),
        Err(error) => Err(format!("cannot inspect its peer: {error}")),
    }
}
