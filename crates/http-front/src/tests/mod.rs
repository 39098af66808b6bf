//! A front between clients and servers made of byte strings.

mod announced;
mod bodies;
mod caching;
mod chaos;
mod ends;
mod parting;
mod routing;
mod smuggling;
mod tunnels;
mod world;
