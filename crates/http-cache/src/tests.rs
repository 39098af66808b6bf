//! The cache as a driver sees it.

mod collapse;
mod restore;
mod rig;
mod serve;
