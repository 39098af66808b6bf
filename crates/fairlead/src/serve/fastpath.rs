//! The kernel fast path of a running switch: which way, on which interfaces, or why none.

use fairlead_bpf_loader::{Counters, FlowTable, Kernel, Mode as Way};
use fairlead_datapath::Datapath;

use crate::config::{Mode, Settings};

/// What was chosen.
#[derive(Debug)]
pub(super) struct Fastpath {
    kernel: Option<Kernel>,
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
    ) -> Result<(Self, Option<FlowTable>), Unavailable> {
        if settings.fastpath.mode == Mode::Engine {
            return Ok((Self::engine("mode = \"engine\"".into()), None));
        }
        let mut refusals = Vec::new();
        for &way in ways(settings.fastpath.mode) {
            match attach(settings, datapath, origin_ns, way) {
                Ok((kernel, table, interfaces)) => {
                    let state = format!("{} on {}", way.name(), interfaces.join(", "));
                    let kernel = Some(kernel);
                    return Ok((Self { kernel, state }, Some(table)));
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
            state: format!("engine ({why})"),
        }
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
) -> Result<(Kernel, FlowTable, Vec<String>), String> {
    let records = settings.switch.limits.connections;
    let cookie = datapath.cookie_words();
    let loaded = Kernel::load(way, records, datapath.endpoints(), cookie, origin_ns);
    let (mut kernel, table) = loaded.map_err(|error| in_full(&error))?;
    let interfaces = interfaces(settings)?;
    for interface in &interfaces {
        kernel.attach(interface).map_err(|error| in_full(&error))?;
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
