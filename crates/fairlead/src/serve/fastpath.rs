//! The kernel fast path of a running switch: which way, on which interfaces, or why none.

use std::sync::Arc;

use fairlead_bpf_loader::{Counters, FlowTable, Kernel, Mode as Way, Pins};
use fairlead_datapath::Datapath;

use crate::config::{Mode, Settings};

/// What was chosen.
#[derive(Debug)]
pub(super) struct Fastpath {
    kernel: Option<Kernel>,
    /// It goes on without this process.
    outlives: bool,
    /// In words: what forwards packets, and on which interfaces.
    pub(super) state: String,
}

/// Why the kernel fast path that the configuration asks for cannot be had.
#[derive(Debug)]
pub(super) struct Unavailable(pub(super) String);

impl Fastpath {
    /// Tries the ways that the configuration permits, best first, and gives the datapath the one
    /// that works. With `mode = "auto"` none need work.
    pub(super) fn start(
        settings: &Settings,
        datapath: &Datapath,
        origin_ns: u64,
        pins: Option<&Arc<Pins>>,
    ) -> Result<(Self, Option<FlowTable>), Unavailable> {
        if settings.fastpath.mode == Mode::Engine {
            return Ok((Self::engine("mode = \"engine\"".into()), None));
        }
        let mut refusals = Vec::new();
        for &way in ways(settings.fastpath.mode) {
            match attach(settings, datapath, origin_ns, way, pins) {
                Ok((kernel, table, interfaces)) => {
                    let state = format!("{} on {}", way.name(), interfaces.join(", "));
                    let this = Self {
                        kernel: Some(kernel),
                        outlives: pins.is_some(),
                        state,
                    };
                    return Ok((this, Some(table)));
                }
                Err(why) => refusals.push(format!("{}: {why}", way.name())),
            }
        }
        let why = refusals.join("; ");
        match settings.fastpath.mode {
            Mode::Auto => Ok((Self::engine(why), None)),
            _ => Err(Unavailable(why)),
        }
    }

    fn engine(why: String) -> Self {
        Self {
            kernel: None,
            outlives: false,
            state: format!("engine ({why})"),
        }
    }

    /// True while the kernel forwards.
    pub(super) fn is_in_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    /// True when it goes on without this process.
    pub(super) fn outlives(&self) -> bool {
        self.outlives
    }

    /// What the kernel counted, where there is one.
    pub(super) fn counters(&self) -> Option<Counters> {
        self.kernel.as_ref().and_then(|one| one.counters().ok())
    }
}

/// The ways that a mode permits, best first: what [`Fastpath::start`] tries and what
/// `fairlead doctor` foretells.
pub(crate) fn ways(mode: Mode) -> &'static [Way] {
    match mode {
        Mode::Engine => &[],
        // Interfaces that carry super-packets lose them under XDP.
        Mode::Auto | Mode::Tc => &[Way::Tc],
        Mode::Xdp => &[Way::XdpNative],
        Mode::XdpGeneric => &[Way::XdpGeneric],
    }
}

/// The interfaces that the program is attached to: those that the configuration names, or all
/// Ethernet interfaces that are up.
pub(crate) fn interfaces(settings: &Settings) -> Result<Vec<String>, String> {
    let mut interfaces = settings.fastpath.interfaces.clone();
    if interfaces.is_empty() {
        interfaces = fairlead_bpf_loader::ethernet_interfaces()
            .map_err(|error| format!("interfaces cannot be listed: {error}"))?;
    }
    if interfaces.is_empty() {
        return Err("no Ethernet interface is up".into());
    }
    Ok(interfaces)
}

fn attach(
    settings: &Settings,
    datapath: &Datapath,
    origin_ns: u64,
    way: Way,
    pins: Option<&Arc<Pins>>,
) -> Result<(Kernel, FlowTable, Vec<String>), String> {
    let records = settings.switch.limits.connections;
    let cookie = datapath.cookie_words();
    let endpoints = datapath.endpoints();
    let loaded = Kernel::load_pinned(way, records, endpoints, cookie, origin_ns, pins.cloned());
    let (mut kernel, table) = loaded.map_err(|error| in_full(&error))?;
    let interfaces = interfaces(settings)?;
    let mut attached = Vec::new();
    for interface in &interfaces {
        attached.push(kernel.attach(interface).map_err(|error| in_full(&error))?);
    }
    for other in kernel.detach_others(&attached) {
        tracing::info!("removed {other}, which an earlier run used");
    }
    Ok((kernel, table, interfaces))
}

/// An error with its causes, each said once.
pub(crate) fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(one) = cause {
        let said = one.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = one.source();
    }
    text
}
