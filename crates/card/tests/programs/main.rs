//! Unmodified programs, clients, and a card between them, in network namespaces of their own.
//! Needs root, python3 and the bypass library (`cargo build -p fairlead-bypass`); else each test
//! says what is missing, and passes.
//!
//! | file | concern |
//! |---|---|
//! | `bench.rs` | a host, a client and a card |
//! | `whole.rs` | a web server, both families, and the way back |
//! | `calls.rs` | each call means on the card what it means in the kernel |
//! | `orders.rs` | the operator lists connections, gives and takes; scarce room |
//! | `routes.rs` | changes of the host's addresses and routes |
//! | `two_cards.rs` | one program, two cards |
//! | `vlans.rs` | a card on a VLAN |
//! | `apart.rs` | a card as a process of its own |
//! | `moving.rs` | what a program does during a handoff |
//! | `deaths.rs` | a card that dies at each step of a move |
//! | `flips.rs` | connections that move at random |
//! | `peers.rs` | iperf3, Redis, Node, asyncio and curl, with their own clients |
//! | `ports.rs` | ports of connections that a program has made |
//! | `reasons.rs` | why connections are not on the card |
//! | `rest.rs` | SYNs on the ports of connections in TIME_WAIT |
//! | `hostile.rs` | programs that break their shared memory |

mod apart;
mod bench;
mod calls;
mod deaths;
mod flips;
mod hostile;
mod moving;
mod orders;
mod peers;
mod ports;
mod reasons;
mod rest;
mod routes;
mod two_cards;
mod vlans;
mod whole;
