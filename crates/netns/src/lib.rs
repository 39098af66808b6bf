//! Worlds of network namespaces for demonstrations, end-to-end tests and benches.
//!
//! A [`World`] is a handful of hosts, each a network namespace of its own, joined by veth pairs:
//!
//! ```no_run
//! # fn main() -> Result<(), fairlead_netns::Error> {
//! let mut world = fairlead_netns::World::new()?;
//! let client = world.host("client")?;
//! let server = world.host("server")?;
//! world.link((&client, &["10.0.0.1/24"]), (&server, &["10.0.0.2/24"]))?;
//! let listener = server.enter(|| std::net::TcpListener::bind("10.0.0.2:80"))??;
//! let stream = client.enter(|| std::net::TcpStream::connect("10.0.0.2:80"))??;
//! # Ok(())
//! # }
//! ```
//!
//! Namespaces are held only by file descriptors and by the processes in them: no name under
//! `/run/netns`, rule, route or setting of the machine's own network is touched, and when the last
//! descriptor is closed the kernel removes everything, even after a crash. Creating them needs
//! `CAP_SYS_ADMIN`, or a user namespace in which an ordinary user has it: [`allowed`] finds out
//! which, [`enter_user_namespace`] enters one.
//!
//! Devices, addresses and routes are created with the `ip` tool (Debian package `iproute2`);
//! [`allowed`] reports if it is missing.

pub mod cards;
mod command;
pub mod named;
mod process;
mod rights;
pub mod trial;
mod world;

pub use command::program;
pub use named::Namespace;
pub use process::{Running, Signal, raise_open_files};
pub use rights::{Rights, Why, allowed, enter_user_namespace, in_user_namespace, tun_allowed};
pub use world::{Error, Host, Link, World};
