//! What every test stands on.

use std::time::Duration;

mod client;
mod content;
mod lab;
mod nginx;
mod origin;
mod switch;
mod worlds;

/// How long anything may take that must happen. Every wait ends as soon as it has, so it may be
/// generous: only a fault takes that long, or a machine that has no time for us.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) use client::{Connection, Response, send_stream};
pub(crate) use content::Content;
pub(crate) use lab::{Family, Lab, links_take_xdp, offloads, xdp_is_asked_for};
pub(crate) use nginx::{Nginx, wait_for_listener, wait_for_listener_on};
pub(crate) use origin::{Origin, Preamble, Seen, request_heads, show, web};
pub(crate) use switch::{PREFIX, Switch, binary, kernel_mode, prefix_in, raw_service, web_service};
pub(crate) use worlds::{
    SetAtEnd, in_a_lab, in_a_lab_of, long, makes_sockets_of_cookies, may_load_programs,
    on_the_fast_path, rounds, seeds, with_and_without_the_fast_path, with_sockets_of_cookies,
};
