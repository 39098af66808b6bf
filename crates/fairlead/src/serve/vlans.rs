//! VLAN interfaces with native XDP. They do not support it themselves; the program on the parent
//! interface serves them.

use fairlead_bpf_loader::{Mode as AttachMode, Tag, Vlan};
use fairlead_survey::Link;

/// The interface at which a program sees packets received on `link`: the link itself or its parent.
/// Stacked VLANs and VLANs with priority mappings are not served this way.
pub(crate) fn carrier<'a>(links: &'a [Link], attach: AttachMode, link: &'a Link) -> &'a Link {
    below(links, link)
        .filter(|_| attach == AttachMode::XdpNative)
        .unwrap_or(link)
}

fn below<'a>(links: &'a [Link], link: &Link) -> Option<&'a Link> {
    link.vlan?;
    let below = links.iter().find(|one| Some(one.index) == link.below)?;
    (below.kind.as_deref() != Some("vlan")).then_some(below)
}

/// The names of the interfaces at which a program sees packets received on `interfaces`, in the
/// same order.
pub(crate) fn carriers(links: &[Link], attach: AttachMode, interfaces: &[String]) -> Vec<String> {
    let of = |name: &String| {
        let link = links.iter().find(|link| link.name == *name);
        link.map_or_else(
            || name.clone(),
            |link| carrier(links, attach, link).name.clone(),
        )
    };
    interfaces.iter().map(of).collect()
}

/// The names with VLANs last: the kernel accepts no XDP program on a parent of an interface that
/// has one.
pub(super) fn from_below(links: &[Link], mut names: Vec<String>) -> Vec<String> {
    names.sort_by_key(|name| {
        let link = links.iter().find(|link| link.name == *name);
        link.is_some_and(|link| link.kind.as_deref() == Some("vlan"))
    });
    names
}

/// The names without duplicates.
pub(crate) fn each_once(mut names: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

/// The VLANs that are up and can be served on their parent interface.
pub(super) fn vlans(links: &[Link]) -> impl Iterator<Item = Vlan> {
    let up = links.iter().filter(|link| link.is_up);
    up.filter_map(|link| {
        let tag = link.vlan?;
        Some(Vlan {
            interface: link.index,
            device: below(links, link)?.index,
            tag: Tag {
                protocol: tag.protocol,
                vlan: tag.id,
            },
        })
    })
}

#[cfg(test)]
mod tests {
    use fairlead_survey::Vlan as Told;

    use super::*;

    fn link(index: u32, name: &str, below: Option<(u32, u16)>) -> Link {
        let protocol = 0x8100;
        Link {
            index,
            name: name.into(),
            is_up: true,
            kind: below.map(|_| "vlan".into()),
            below: below.map(|(index, _)| index),
            vlan: below.map(|(_, id)| Told { protocol, id }),
            ..Link::default()
        }
    }

    fn links() -> Vec<Link> {
        let mut links = vec![
            link(2, "eth0", None),
            link(3, "eth0.5", Some((2, 5))),
            link(4, "eth0.6", Some((2, 6))),
            link(5, "eth0.6.7", Some((4, 7))),
            link(6, "eth0.8", Some((2, 8))),
            link(7, "eth0.9", Some((2, 9))),
        ];
        links[4].vlan = None; // with priorities, or in another namespace
        links[5].is_up = false;
        links
    }

    #[test]
    fn native_xdp_serves_vlans_on_their_parent() {
        let names = ["eth0.5", "eth0", "eth0.6", "eth0.6.7", "eth0.8", "gone"].map(String::from);
        let on = carriers(&links(), AttachMode::XdpNative, &names);
        assert_eq!(on, ["eth0", "eth0", "eth0", "eth0.6.7", "eth0.8", "gone"]);
        assert_eq!(each_once(on), ["eth0", "eth0.6.7", "eth0.8", "gone"]);
        let mixed = ["eth0.5", "eth0", "gone"].map(String::from).to_vec();
        assert_eq!(from_below(&links(), mixed), ["eth0", "gone", "eth0.5"]);
        for attach in [AttachMode::Tc, AttachMode::XdpGeneric] {
            assert_eq!(carriers(&links(), attach, &names), names);
        }
    }

    #[test]
    fn only_vlans_that_are_up_have_tags() {
        let all = links();
        let told: Vec<Vlan> = vlans(&all).collect();
        let vlan = |interface, vlan| Vlan {
            interface,
            device: 2,
            tag: Tag {
                protocol: 0x8100,
                vlan,
            },
        };
        assert_eq!(told, [vlan(3, 5), vlan(4, 6)]);
    }
}
