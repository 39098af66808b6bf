//! The switch state by state: the paper's Tables 1 to 3 and Fig. 4, and the traps of today's TCP.
//! Tests are named by state, event and outcome.

mod answer;
mod apply;
mod armed;
mod close;
mod connect;
mod fig4;
mod fragments;
mod front;
mod hand_back;
mod handshake;
mod head;
mod held;
mod host;
mod icmp;
mod inherit;
mod later;
mod limits;
mod options;
mod pairs;
mod probe;
mod renewal;
mod request;
mod rig;
mod strangers;
mod tickets;
mod translate;

/// Scheme of the TCB cache of every switch here; `states_cached` has one.
const TCB_CACHE: Option<&str> = None;
