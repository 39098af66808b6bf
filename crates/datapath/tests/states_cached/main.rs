//! All of `states` again, with a TCB cache of a few lines: nothing may be different. And what the
//! cache itself owes: the lab's hits, and never another's connection.

#[path = "../states/answer.rs"]
mod answer;
#[path = "../states/close.rs"]
mod close;
#[path = "../states/connect.rs"]
mod connect;
#[path = "../states/fig4.rs"]
mod fig4;
#[path = "../states/fragments.rs"]
mod fragments;
#[path = "../states/hand_back.rs"]
mod hand_back;
#[path = "../states/handshake.rs"]
mod handshake;
#[path = "../states/head.rs"]
mod head;
#[path = "../states/held.rs"]
mod held;
#[path = "../states/icmp.rs"]
mod icmp;
#[path = "../states/limits.rs"]
mod limits;
#[path = "../states/options.rs"]
mod options;
#[path = "../states/probe.rs"]
mod probe;
#[path = "../states/renewal.rs"]
mod renewal;
#[path = "../states/rig.rs"]
mod rig;
#[path = "../states/strangers.rs"]
mod strangers;
#[path = "../states/translate.rs"]
mod translate;

mod lab;
mod tuples;

/// Eight lines, so that they are fought for.
const TCB_CACHE: Option<&str> = Some("spec");
