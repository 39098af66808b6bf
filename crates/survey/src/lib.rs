//! What this machine's network is made of, for whoever has to explain it to an operator. Asks,
//! never changes anything; what it may not see it says.
//!
//! Everything is asked of the calling thread's network namespace.
//!
//! | file | concern |
//! |---|---|
//! | `netlink.rs` | questions to the kernel and the form of its answers |
//! | `links.rs` | interfaces and the XDP programs on them |
//! | `offload.rs` | drivers, queues and offloads (ethtool) |
//! | `xdp_features.rs` | what a driver says of its own XDP support |
//! | `programs.rs` | names of kernel programs, those of others at tc |
//! | `ways.rs` | where packets would go, how long they may be, is that neighbour known |
//! | `firewall.rs` | chains of nftables that see packets |

mod firewall;
mod links;
mod netlink;
mod offload;
mod programs;
mod ways;
mod xdp_features;

pub use firewall::{Chain, chain_at_egress, chains};
pub use links::{Link, Vlan, XdpProgram, link_elsewhere, links};
pub use offload::{Offload, Offloads, offloads};
pub use programs::{
    ProgramName, is_seen_at_egress, loaded_by, program_name, tc_program_ids, tc_programs,
};
pub use ways::{Neighbour, Way, mtu_to, way_to};
pub use xdp_features::{XdpFeatures, all_xdp_features, xdp_features};
