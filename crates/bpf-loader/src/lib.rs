//! The kernel fast path from user space: loads the program of `bpf/`, attaches it to interfaces,
//! feeds its maps, and reads what it counted.
//!
//! | file | concern |
//! |---|---|
//! | `layout.rs` | what both sides of a map agree on |
//! | `memory.rs` | the record array, shared with the kernel |
//! | `keys.rs` | which key leads to which line: the index, and the map of keys |
//! | `index.rs` | the index of keys, shared with the kernel |
//! | `joins.rs` | what joins armed connections, shared with the kernel |
//! | `lanes.rs` | tickets for connections that the program begins, shared with the kernel |
//! | `maps.rs`, `declared.rs` | which maps are pinned, as their definitions say |
//! | `mapping.rs` | an array of the kernel's, mapped |
//! | `kernel.rs` | loading, the maps, the port [`fairlead_tcp::FastPath`] |
//! | `flow_table.rs` | the kinds of the flow table, and what they count |
//! | `access.rs` | access lists, asked at SYNs |
//! | `attach.rs` | interfaces: tc and XDP |
//! | `interfaces.rs` | which interfaces there are |
//! | `exits.rs` | which of them take packets from XDP |
//! | `straight.rs` | which veths' other ends receive at once what the program at tc sends |
//! | `vlans.rs` | which VLANs XDP serves on the interfaces that those stand on |
//! | `way_in.rs` | past the stack to the engine's device, for addresses that the host has too |
//! | `way_out.rs` | the engine's device, where what it sends takes a shorter way |
//! | `host.rs` | before the fast path, for connections that become sockets of this machine |
//! | `pairs.rs` | what records of pairs lack, and their addresses |
//! | `gate.rs` | what becomes of packets of connections that a proxy hands off |
//! | `sleep.rs` | such connections that outlive the sockets of their processes |
//! | `unread.rs` | requests that these sockets may leave unread |
//! | `lasting.rs` | what of that outlives the process |
//! | `capture.rs` | packets that the program shows |
//! | `content.rs` | what the programs for content have in common |
//! | `refer.rs`, `resolve.rs` | the two ends of a link that blocks of files cross as references |
//! | `meter.rs` | what packets of any server consist of: files, pages, other memory |
//! | `offload.rs` | steering at a card of offloaded connections |
//! | `counters.rs` | what was counted, summed over CPUs |
//! | `rehearsal.rs` | whether this kernel takes the program |
//! | `pins.rs` | the folder in which maps and links outlive the process |
//! | `remains.rs` | what an earlier run left there, checked |
//! | `sys.rs` | system calls |
//! | `trial.rs` | single packets through the program, for tests and measurements |

mod access;
mod addresses;
mod answered;
mod attach;
mod capture;
mod clock;
mod content;
mod counters;
#[cfg(test)]
mod declared;
mod exits;
mod filter;
mod flow_table;
mod footprint;
mod gate;
mod hits;
mod host;
mod index;
mod interfaces;
mod joins;
mod kernel;
mod keys;
mod lanes;
mod lasting;
mod layout;
mod mapping;
mod maps;
mod memory;
mod meter;
mod offload;
mod pairs;
mod pins;
mod refer;
mod rehearsal;
mod remains;
mod resolve;
mod sleep;
mod straight;
mod sys;
mod told;
mod trial;
mod unread;
mod vlans;
mod way_in;
mod way_out;

pub use access::{AccessPrefix, AccessPrefixes, AccessRule};
pub use attach::{AttachError, Attachment, Mode};
pub use capture::{CaptureFilter, CaptureTap, Captured};
pub use clock::monotonic_ns;
pub use content::{ContentError, token};
pub use counters::{Counters, KernelCounters};
pub use exits::Exit;
pub use filter::remove_filters;
pub use flow_table::{FlowLookups, FlowTableKind, TcbGeometry, TcbLine};
pub use footprint::map_bytes_for;
pub use gate::{Gate, GateSeen, Gates, Heard};
pub use hits::{HitBase, HitEvent, HitMaps, HitObject};
pub use host::{Forgotten, Gives, HostPrograms, has_host_function};
pub use interfaces::{ethernet_interfaces, interface_index, interface_name};
pub use kernel::{FlowTable, Kernel, LoadError};
pub use layout::LAYOUT_VERSION;
pub use meter::{LostAtMeter, MeterProgram, MeteredPacket, MeteredPiece};
pub use offload::{CardDevices, LEASE, Moving, card_counts, forget_card, steer};
pub use pins::{Pins, PinsError, Removed, is_pinned};
pub use refer::{ReferCounts, ReferProgram};
pub use rehearsal::rehearse;
pub use remains::{Remains, is_at_work_elsewhere, retire, survey};
pub use resolve::{ResolveCounts, ResolveProgram};
pub use sleep::{Life, Lives, ResponseSpan, Shown, ShownHead, TakenOver, What};
pub use trial::{Fate, PassProgram, Trial};
pub use vlans::{Tag, Vlan};
pub use way_in::WayIn;
pub use way_out::WayOut;

/// True when this build has the kernel program in it (there was a compiler for it).
pub fn is_built_in() -> bool {
    !kernel::object(Mode::Tc, &FlowTableKind::Hash).is_empty()
}
