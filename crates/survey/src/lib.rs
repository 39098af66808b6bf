//! Inspects this machine's network configuration for reports to an operator. Read-only; missing
//! permissions are reported as errors.
//!
//! All queries apply to the calling thread's network namespace.
//!
//! | file | concern |
//! |---|---|
//! | `namespace.rs` | which network namespace this is |
//! | `netlink.rs` | netlink requests and parsing of answers |
//! | `links.rs` | interfaces and the XDP programs on them |
//! | `offload.rs` | drivers, queues and offloads (ethtool) |
//! | `xdp_features.rs` | XDP features reported by drivers |
//! | `programs.rs` | names of kernel programs, programs attached at tc |
//! | `routes.rs` | route lookups, path MTU from interfaces and routes, neighbour state |
//! | `firewall.rs` | nftables chains |

mod firewall;
mod links;
mod namespace;
mod netlink;
mod offload;
mod programs;
mod routes;
mod xdp_features;

pub use firewall::{Chain, chain_at_egress, chains};
pub use links::{Link, Vlan, XdpProgram, link_elsewhere, links};
pub use namespace::namespace_cookie;
pub use offload::{Offload, Offloads, offloads};
pub use programs::{
    ProgramName, is_seen_at_egress, loaded_by, program_name, tc_program_ids, tc_programs,
};
pub use routes::{Neighbour, Route, mtu_to, route_to};
pub use xdp_features::{XdpFeatures, all_xdp_features, xdp_features};
