//! What a packet costs at XDP, and what the tag of a VLAN adds to that.

use anyhow::{Result, ensure};
use fairlead_bpf_loader::{Exit, Fate, Kernel, Mode, Tag, Vlan};

use crate::fastpath_bench::{REPEAT, endpoints, frame, give, plain, server, time};
use crate::table::median;

/// The Ethernet address behind which servers are, here also the switch's own: so that a packet that
/// was sent on is for the switch once more.
const NEXT: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const TAG: Tag = Tag {
    protocol: 0x8100,
    vlan: 5,
};

/// The steps with nanoseconds, medians over rounds in which they take turns. `clients`, `servers`
/// and `wire` are indexes of interfaces.
pub(crate) fn steps(
    [clients, servers, wire]: [u32; 3],
    rounds: usize,
) -> Result<Vec<(&'static str, f64)>> {
    let (mut kernel, mut table) = Kernel::load(Mode::XdpNative, 4, &endpoints(), (1, 2), 0)?;
    ensure!(
        give(&mut table, 0, 0, false),
        "the kernel took no connection"
    );
    kernel.set_addresses(&[(clients, NEXT)])?;
    let mut bare = frame(0, server(false), &plain(false));
    bare[..6].copy_from_slice(&NEXT);
    let [protocol, number] = [TAG.protocol, TAG.vlan].map(u16::to_be_bytes);
    let tagged = [&bare[..12], &protocol, &number, &bare[12..]].concat();
    let cases = [
        ("XDP: translate IPv4", &bare, clients, None),
        ("XDP: translate IPv4, tagged", &tagged, wire, Some(TAG)),
    ];
    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for ((_, frame, by, tag), each) in cases.iter().zip(&mut all) {
            kernel.set_exits(&[Exit {
                interface: servers,
                device: if tag.is_some() { wire } else { servers },
                tag: *tag,
                buffers: false,
            }])?;
            let vlan = tag.map(|tag| Vlan {
                interface: clients,
                device: wire,
                tag,
            });
            kernel.set_vlans(vlan.as_slice())?;
            each.push(time(&mut kernel, frame, *by, (20, REPEAT), Fate::Redirect)?);
        }
    }
    let names = cases.map(|(name, ..)| name);
    Ok(names.into_iter().zip(all.map(median)).collect())
}
