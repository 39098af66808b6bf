//! What `fairlead run` has set in the environment.

use std::path::PathBuf;
use std::sync::OnceLock;

/// Environment variables.
const SOCKET: &str = "FAIRLEAD_OFFLOAD_SOCKET";
const PORTS: &str = "FAIRLEAD_OFFLOAD_PORTS";
const AFTER: &str = "FAIRLEAD_OFFLOAD_AFTER";
const COPY: &str = "FAIRLEAD_OFFLOAD_COPY";
const FLIP: &str = "FAIRLEAD_OFFLOAD_FLIP";

/// Turns until a connection is handed off, unless something else is set.
const AFTER_DEFAULT: u32 = 2;

/// How this program's connections are treated.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Where cards are, at most [`CARDS`](crate::channel::CARDS).
    pub(crate) sockets: Vec<PathBuf>,
    /// Listening ports, or ports connected to; empty: all.
    ports: Vec<u16>,
    /// Turns until a connection is handed off.
    pub(crate) after: u32,
    /// `sendfile` copies.
    pub(crate) copies_files: bool,
    /// For tests: about every how many calls a connection moves to the other side; 0: never.
    pub(crate) flip: u32,
}

impl Settings {
    /// True if connections of this port are offloaded.
    pub(crate) fn has_port(&self, port: u16) -> bool {
        self.ports.is_empty() || self.ports.contains(&port)
    }
}

/// As they were when this was first called.
pub(crate) fn settings() -> &'static Settings {
    static READ: OnceLock<Settings> = OnceLock::new();
    READ.get_or_init(|| {
        let text = |name: &str| std::env::var(name).unwrap_or_default();
        Settings {
            sockets: sockets(),
            ports: text(PORTS)
                .split(',')
                .filter_map(|port| port.parse().ok())
                .collect(),
            after: text(AFTER).parse().unwrap_or(AFTER_DEFAULT),
            copies_files: text(COPY) == "1",
            flip: text(FLIP).parse().unwrap_or(0),
        }
    })
}

/// Paths with colons between them, as in `PATH`.
fn sockets() -> Vec<PathBuf> {
    let named = std::env::var_os(SOCKET).unwrap_or_default();
    let all = std::env::split_paths(&named).filter(|path| !path.as_os_str().is_empty());
    all.take(crate::channel::CARDS).collect()
}
