//! End to end: the real switch on its TUN device, between real clients and real servers, each in a
//! network namespace of its own.
//!
//! Needs root or user namespaces, `/dev/net/tun` and the programs that `harness/lab.rs` lists.
//! Where something is missing each test says `SKIPPED` with the reason, and passes.
//! `FAIRLEAD_LONG=1` runs more rounds of what is drawn by seed, `FAIRLEAD_SEED=n` one seed,
//! `FAIRLEAD_BINARY=path` another binary than the one built here.

mod harness;

mod access;
mod api;
mod availability;
mod capture;
mod chromium;
mod content_cache;
mod cost;
mod direct;
mod fastpath;
mod flood;
mod flow_tables;
mod fragments;
mod front_ways;
mod handoff;
mod handoff_busy;
mod handoff_faults;
mod handoff_nginx;
mod handoff_turns;
mod haproxy;
mod high_availability;
mod host;
mod http;
mod kernel_hits;
mod lifecycle;
mod load;
mod local_servers;
mod logs;
mod loss;
mod meter;
mod modes;
mod orders;
mod pages;
mod path_mtu;
mod per_request;
mod references;
mod refusals;
mod reload;
mod restart;
mod servers;
mod sleep;
mod sleepers;
mod straight;
mod streams;
mod tickets;
mod tls;
mod upgrades;
mod vlan;
