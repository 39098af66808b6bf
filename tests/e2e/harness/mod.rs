//! What every test stands on.

mod client;
mod lab;
mod nginx;
mod origin;
mod switch;
mod worlds;

pub(crate) use client::{Connection, send_stream};
pub(crate) use lab::{Family, Lab};
pub(crate) use nginx::{Nginx, wait_for_listener};
pub(crate) use origin::{Origin, Preamble, Seen, show, web};
pub(crate) use switch::{PREFIX, Switch, binary, raw_service, web_service};
pub(crate) use worlds::{in_a_lab, long, on_the_fast_path, rounds, seeds};
