//! The cache as a driver sees it.

mod collapse;
mod rig;
mod serve;
