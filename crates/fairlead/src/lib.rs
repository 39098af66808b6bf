//! What the `fairlead` binary is made of, for the binary itself and for its tests: the
//! configuration file, the command line, the admin pages, the log.

pub mod config;
