//! The kernel fast path of a running switch: its attach mode and interfaces, or why there is none.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use fairlead_bpf_loader::{
    AccessPrefixes, AttachError, Attachment, CaptureTap, Counters, FlowTable, Kernel, LoadError,
    Mode as AttachMode, Pins, WayIn, WayOut, interface_index, interface_name,
};
use fairlead_datapath::{Datapath, Snapshot};
use fairlead_survey::links;

use super::interfaces::{bundles, hidden_tags, interfaces, other_program, super_packets};
use super::redirect_peer;
use super::vlans::{carriers, each_once, from_below};
use super::{access, exits};
use crate::admin::{FastPathState, InterfaceStatus};
use crate::config::{Mode, Settings, VethRedirect};
use crate::doctor::rights_for_programs;

/// The fast path in use.
#[derive(Debug)]
pub(super) struct Fastpath {
    kernel: Option<Kernel>,
    /// Program for packets sent by the engine; `None` if they go through the stack.
    way_out: Option<WayOut>,
    /// Program for packets to listening addresses that this machine has, under XDP.
    way_in: Option<WayIn>,
    /// The engine's device.
    device: String,
    /// Listening addresses that this machine has, as far as that was dealt with.
    local: BTreeSet<IpAddr>,
    /// Listening addresses that were made this machine's own.
    hosted: BTreeSet<IpAddr>,
    /// True if it keeps forwarding after this process.
    outlives: bool,
    attached: Vec<Attached>,
    /// How packets reach the peers of veths, if that can be chosen.
    veth: VethRedirect,
    /// Calls of [`Self::tend`] until the exits are checked again.
    rounds_to_exits: u32,
    /// Name of the attach mode, or `engine`.
    attach_mode: String,
    /// Why better modes do not work; empty if there are none.
    why_not_better: String,
}

/// An interface that the program serves.
#[derive(Debug)]
struct Attached {
    name: String,
    /// The interface that the program is attached to: this one, or the parent of this VLAN.
    at: String,
    /// Its index while it is served; `None` while the interface does not exist.
    index: Option<u32>,
    /// Why an interface that has reappeared is not served.
    refused: String,
    /// True if the program may transmit on it; otherwise the engine does.
    is_exit: bool,
    /// True if packets are redirected to the veth's peer.
    is_straight: bool,
}

/// Calls of [`Fastpath::tend`] between checks of the exits: one second with XDP, where packets may
/// be lost, ten with tc, where only speed depends on it.
fn exit_rounds(attach_mode: AttachMode) -> u32 {
    match attach_mode {
        AttachMode::XdpNative | AttachMode::XdpGeneric => 4,
        AttachMode::Tc => 40,
    }
}

/// Why the configured kernel fast path is not available.
#[derive(Debug)]
pub(super) struct Unavailable(pub(super) String);

impl Fastpath {
    /// Tries the configured attach modes, best first, and starts the first that works. With `mode =
    /// "auto"` the engine is the fallback.
    pub(super) fn start(
        settings: &Settings,
        datapath: &Datapath,
        origin_ns: u64,
        pins: Option<&Arc<Pins>>,
    ) -> Result<(Self, Option<FlowTable>), Unavailable> {
        let mode = settings.fastpath.mode;
        if mode == Mode::Engine {
            return Ok((Self::engine("mode = \"engine\"".into()), None));
        }
        let found = interfaces(settings).map_err(Unavailable);
        let found = match (found, mode) {
            (Err(Unavailable(why)), Mode::Auto) => return Ok((Self::engine(why), None)),
            (found, _) => found?,
        };
        let mut refusals = Vec::new();
        for (attach_mode, reason) in attach_modes_on(mode, &found) {
            let tried = match reason {
                Some(reason) => Err(reason),
                None => attach(settings, datapath, origin_ns, attach_mode, pins, &found),
            };
            match tried {
                Ok((kernel, table, attached)) => {
                    if let Some(slow) = slow_there(mode, attach_mode, &found) {
                        tracing::warn!("{slow}");
                        refusals.push(slow);
                    }
                    let this = Self {
                        kernel: Some(kernel),
                        way_out: way_out(&settings.network.device),
                        way_in: None,
                        device: settings.network.device.clone(),
                        local: BTreeSet::new(),
                        hosted: BTreeSet::new(),
                        outlives: pins.is_some(),
                        attached,
                        veth: settings.fastpath.veth_redirect,
                        rounds_to_exits: exit_rounds(attach_mode),
                        attach_mode: attach_mode.name().to_owned(),
                        why_not_better: refusals.join("; "),
                    };
                    return Ok((this, Some(table)));
                }
                Err(why) => refusals.push(format!("{}: {why}", attach_mode.name())),
            }
        }
        let mut why = refusals.join("; ");
        if let Some(missing) = rights_for_programs() {
            why = format!("{missing} ({why})");
        }
        match mode {
            Mode::Auto => Ok((Self::engine(why), None)),
            _ => Err(Unavailable(why)),
        }
    }

    fn engine(why: String) -> Self {
        Self {
            kernel: None,
            way_out: None,
            way_in: None,
            device: String::new(),
            local: BTreeSet::new(),
            hosted: BTreeSet::new(),
            outlives: false,
            attached: Vec::new(),
            veth: VethRedirect::Queue,
            rounds_to_exits: 0,
            attach_mode: "engine".to_owned(),
            why_not_better: why,
        }
    }

    /// The state for `/status`.
    pub(super) fn state(&self) -> FastPathState {
        let interface = |one: &Attached| InterfaceStatus {
            name: one.name.clone(),
            served: one.index.is_some(),
        };
        FastPathState {
            way: self.attach_mode.clone(),
            told: self.told(),
            interfaces: self.attached.iter().map(interface).collect(),
        }
    }

    /// Describes mode and interfaces, and why no better mode is used.
    fn told(&self) -> String {
        let mut text = self.attach_mode.clone();
        let names = |is: fn(&Attached) -> bool| -> Vec<String> {
            let all = self.attached.iter().filter(|one| is(one));
            all.map(Attached::described).collect()
        };
        let there = names(|one| one.index.is_some());
        let gone = names(|one| one.index.is_none());
        let closed = names(|one| one.index.is_some() && !one.is_exit);
        let straight = names(|one| one.index.is_some() && one.is_straight);
        if !there.is_empty() {
            text += &format!(" on {}", there.join(", "));
        }
        if !gone.is_empty() {
            text += &format!(", lost: {}", gone.join(", "));
        }
        if !straight.is_empty() {
            text += &format!(", redirected to the peer of {}", straight.join(", "));
        }
        if !closed.is_empty() {
            text += &format!(
                ", transmitted by the engine on {} ({CLOSED})",
                closed.join(", ")
            );
        }
        if self.kernel.is_some() && self.way_out.is_none() {
            text += ", the engine transmits through the stack";
        }
        if !self.why_not_better.is_empty() {
            text += &format!(" ({})", self.why_not_better);
        }
        text
    }

    /// Checks for interfaces that have disappeared or reappeared, and attaches the program to the
    /// latter. True if something has changed.
    pub(super) fn tend(&mut self) -> bool {
        let Some(kernel) = &mut self.kernel else {
            return false;
        };
        let mut changed = false;
        let attach_mode = kernel.mode();
        for one in &mut self.attached {
            let index = interface_index(&one.name);
            if index == one.index {
                continue;
            }
            if index.is_some() {
                one.at = at(attach_mode, std::slice::from_ref(&one.name)).remove(0);
            }
            let name = &one.name;
            let served = match index.map(|_| kernel.attach(&one.at)) {
                None => {
                    tracing::warn!("interface {name} is {}", gone(one.index));
                    one.refused.clear();
                    None
                }
                Some(Ok(_)) => {
                    tracing::info!("interface {name} is back");
                    one.refused.clear();
                    index
                }
                // Tried again at the next call.
                Some(Err(error)) => {
                    let why = in_full(&error);
                    if one.refused != why {
                        tracing::warn!("interface {name} is back, but cannot be served: {why}");
                        one.refused = why;
                    }
                    None
                }
            };
            changed |= served != one.index;
            one.index = served;
        }
        if changed {
            kernel.forget_gone();
        }
        self.rounds_to_exits = self.rounds_to_exits.saturating_sub(1);
        if changed || self.rounds_to_exits == 0 {
            self.rounds_to_exits = exit_rounds(attach_mode);
            match tell_exits(kernel, self.veth, &mut self.attached) {
                Ok(told) => changed |= told,
                Err(error) => tracing::warn!("cannot update the exits: {}", in_full(&error)),
            }
        }
        changed
    }

    /// Sees that packets to listening addresses that this machine has itself reach the engine:
    /// under tc they do, under XDP by another program. Where they cannot, a warning says so.
    pub(super) fn serve_local(&mut self, local: &BTreeSet<IpAddr>) {
        if *local == self.local {
            return;
        }
        let names: Vec<String> = local.iter().map(ToString::to_string).collect();
        let names = names.join(", ");
        match self.bring_local(local) {
            Ok(()) if local.is_empty() => {
                tracing::info!("no listening address is an address of this machine any more");
            }
            Ok(()) => tracing::info!("serving local addresses of this machine, too: {names}"),
            Err(why) => tracing::warn!(
                "local addresses of this machine are not served, its own stack takes their \
                 packets: {names} ({why})"
            ),
        }
        self.local.clone_from(local);
    }

    fn bring_local(&mut self, local: &BTreeSet<IpAddr>) -> Result<(), String> {
        let Some(kernel) = &self.kernel else {
            return match local.is_empty() {
                true => Ok(()),
                false => Err("mode \"engine\"; mode = \"tc\" serves them".to_owned()),
            };
        };
        let all: BTreeSet<IpAddr> = local.union(&self.hosted).copied().collect();
        if kernel.mode() == AttachMode::Tc || (all.is_empty() && self.way_in.is_none()) {
            return Ok(());
        }
        if self.way_in.is_none() {
            let device = interface_index(&self.device).ok_or("the device is gone")?;
            let loaded = WayIn::load(device).map_err(|error| in_full(&error))?;
            self.way_in = Some(loaded);
        }
        let interfaces = self.interfaces();
        match &mut self.way_in {
            Some(way_in) => way_in
                .set(&interfaces, &all)
                .map_err(|error| in_full(&error)),
            None => Ok(()),
        }
    }

    /// Brings packets to these addresses to the engine, too: they are made this machine's own.
    pub(super) fn serve_hosted(&mut self, hosted: &BTreeSet<IpAddr>) -> Result<(), String> {
        self.hosted.clone_from(hosted);
        let local = self.local.clone();
        self.bring_local(&local)
    }

    /// The interfaces that are served, by name.
    pub(super) fn interfaces(&self) -> Vec<String> {
        self.attached.iter().map(|one| one.name.clone()).collect()
    }

    /// The program, if there is one.
    pub(super) fn kernel(&self) -> Option<&Kernel> {
        self.kernel.as_ref()
    }

    /// How the program is attached; `None` without one.
    pub(super) fn mode(&self) -> Option<AttachMode> {
        self.kernel.as_ref().map(Kernel::mode)
    }

    /// True while the kernel forwards.
    pub(super) fn is_in_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    /// True if it keeps forwarding after this process.
    pub(super) fn outlives(&self) -> bool {
        self.outlives
    }

    /// The capture ring, if the kernel forwards.
    pub(super) fn take_capture(&mut self) -> Option<CaptureTap> {
        let taken = self.kernel.as_mut()?.take_capture();
        taken
            .inspect_err(|error| {
                tracing::warn!(
                    "captures will only show packets of the engine: \
                                                 {error}"
                )
            })
            .ok()
    }

    /// The prefixes of access lists in the kernel, if it forwards.
    pub(super) fn take_access(&mut self) -> Option<AccessPrefixes> {
        self.kernel.as_mut()?.take_access()
    }

    /// Adds the SYNs that the kernel program denied to those that the engine denied.
    pub(super) fn add_access_denied(&self, switch: &mut Snapshot) {
        if let Some(kernel) = &self.kernel {
            access::add_denied(kernel, switch);
        }
    }

    /// The kernel program's counters, if it is running.
    pub(super) fn counters(&self) -> Option<Counters> {
        self.kernel.as_ref().and_then(|one| one.counters().ok())
    }
}

fn way_out(device: &str) -> Option<WayOut> {
    WayOut::attach(device)
        .inspect_err(|error| {
            let why = in_full(error);
            tracing::info!("the engine transmits through the stack: {why}");
        })
        .ok()
}

/// The attach modes that a configured mode permits, best first. [`Fastpath::start`] tries them, and
/// `fairlead doctor` predicts the result.
pub(crate) fn attach_modes(mode: Mode) -> &'static [AttachMode] {
    match mode {
        Mode::Engine => &[],
        Mode::Auto => &[
            AttachMode::XdpNative,
            AttachMode::Tc,
            AttachMode::XdpGeneric,
        ],
        Mode::Tc => &[AttachMode::Tc],
        Mode::Xdp => &[AttachMode::XdpNative],
        Mode::XdpGeneric => &[AttachMode::XdpGeneric],
    }
}

/// The attach modes of a configured mode, each with the reason not to try it on these interfaces.
/// All interfaces use the same mode, because XDP can only transmit to interfaces with XDP.
pub(crate) fn attach_modes_on(
    mode: Mode,
    interfaces: &[String],
) -> Vec<(AttachMode, Option<String>)> {
    let modes = attach_modes(mode).iter();
    let reason = |attach_mode| {
        let on = at(attach_mode, interfaces);
        let any = |why: fn(&str) -> Option<String>| on.iter().find_map(|name| why(name));
        match (mode, attach_mode) {
            (Mode::Auto, AttachMode::XdpNative) => any(bundles)
                .or_else(|| any(super_packets))
                .or_else(|| any(hidden_tags)),
            (Mode::Auto, AttachMode::XdpGeneric) => any(hidden_tags),
            _ => None,
        }
    };
    modes
        .map(|&attach_mode| (attach_mode, reason(attach_mode)))
        .collect()
}

/// A warning if the configured mode leaves packets of these interfaces to the engine where `auto`
/// would choose another mode.
pub(crate) fn slow_there(
    mode: Mode,
    attach_mode: AttachMode,
    interfaces: &[String],
) -> Option<String> {
    if mode == Mode::Auto || attach_mode == AttachMode::Tc {
        return None;
    }
    let bundled = |name: &String| bundles(name).filter(|_| attach_mode == AttachMode::XdpNative);
    let why = at(attach_mode, interfaces)
        .iter()
        .find_map(|name| bundled(name).or_else(|| super_packets(name)))?;
    Some(format!(
        "{why}, which are left to the engine; mode = \"tc\" forwards them in the kernel"
    ))
}

/// The interfaces that a program for these interfaces is attached to, in the same order.
fn at(attach_mode: AttachMode, interfaces: &[String]) -> Vec<String> {
    carriers(&links().unwrap_or_default(), attach_mode, interfaces)
}

/// Describes what happened to an interface whose name no longer exists.
fn gone(index: Option<u32>) -> String {
    match index.and_then(interface_name) {
        Some(name) => format!(
            "now called {name} and no longer fully served: rename it back, or restart with the new \
             name"
        ),
        None => "gone; the other interfaces are still served".to_owned(),
    }
}

/// The interfaces to attach to, in this order.
fn places(at: &[String]) -> Vec<String> {
    from_below(&links().unwrap_or_default(), each_once(at.to_vec()))
}

fn attach(
    settings: &Settings,
    datapath: &Datapath,
    origin_ns: u64,
    attach_mode: AttachMode,
    pins: Option<&Arc<Pins>>,
    interfaces: &[String],
) -> Result<(Kernel, FlowTable, Vec<Attached>), String> {
    let at = at(attach_mode, interfaces);
    let places = places(&at);
    for interface in &places {
        if let Some(other) = other_program(interface, attach_mode, pins.map(|pins| &**pins)) {
            return Err(other);
        }
        if attach_mode != AttachMode::Tc
            && let Some(hidden) = hidden_tags(interface)
        {
            tracing::warn!("{hidden}");
        }
    }
    let records = settings.switch.limits.connections;
    let cookie = datapath.cookie_words();
    let endpoints = datapath.endpoints();
    let kind = settings.fastpath.flow_table;
    let earlier = pins.map(|pins| pins.interfaces()).unwrap_or_default();
    let pins = pins.cloned();
    let loaded = Kernel::load_pinned(
        attach_mode,
        kind,
        records,
        endpoints,
        cookie,
        origin_ns,
        pins,
    );
    let (mut kernel, mut table) = loaded.map_err(|error| in_full(&error))?;
    kernel.set_instance(&settings.instance.name);
    if let Some(device) = interface_index(&settings.network.device) {
        table.set_engine(device).map_err(|error| in_full(&error))?;
    }
    let of = interfaces.iter().zip(at);
    let mut attached: Vec<Attached> = of.map(|(name, at)| Attached::new(name, at)).collect();
    foretell_exits(&mut kernel, &earlier, &attached).map_err(|error| in_full(&error))?;
    access::tell(
        &mut kernel,
        &mut table,
        &settings.switch,
        &endpoints.listens,
    )
    .map_err(|error| in_full(&error))?;
    let mut done: Vec<Attachment> = Vec::new();
    for interface in &places {
        done.push(kernel.attach(interface).map_err(|error| refused(&error))?);
    }
    let veth = settings.fastpath.veth_redirect;
    tell_exits(&mut kernel, veth, &mut attached).map_err(|error| in_full(&error))?;
    let closed = attached.iter().find(|one| !one.is_exit);
    if let (Mode::Auto, Some(closed)) = (settings.fastpath.mode, closed) {
        return Err(format!("cannot transmit on {}: {CLOSED}", closed.name));
    }
    for other in kernel.detach_others(&done) {
        tracing::info!("removed {other}, which an earlier run used");
    }
    Ok((kernel, table, attached))
}

/// Explains a failed attachment.
fn refused(error: &AttachError) -> String {
    let said = in_full(error);
    match error.mode {
        AttachMode::XdpNative if error.is_unsupported() => {
            format!(
                "{said}; its driver does not support native XDP, which tc and xdp-generic do \
                     not need"
            )
        }
        _ => said,
    }
}

/// Why the program cannot transmit on an interface.
const CLOSED: &str = "it does not accept packets from XDP; a veth needs GRO on its peer (`ethtool \
                      -K … gro on`) and Linux 6.3 or newer, which reports it";

/// Tells the program its exits before it is attached: if it replaces the program of an `earlier`
/// run, it forwards from the first moment, and keeps forwarding if this start fails.
fn foretell_exits(
    kernel: &mut Kernel,
    earlier: &[u32],
    attached: &[Attached],
) -> Result<(), LoadError> {
    let ours = attached.iter().filter_map(|one| one.index);
    let served: Vec<u32> = ours.chain(earlier.iter().copied()).collect();
    let at = attached.iter().filter_map(|one| interface_index(&one.at));
    exits::foretell(kernel, &served, &at.collect::<Vec<_>>())
}

/// Tells the program its interfaces. True if how packets leave one of them has changed.
fn tell_exits(
    kernel: &mut Kernel,
    veth: VethRedirect,
    attached: &mut [Attached],
) -> Result<bool, LoadError> {
    let served: Vec<u32> = attached.iter().filter_map(|one| one.index).collect();
    let at = attached.iter().filter(|one| one.index.is_some());
    let at: Vec<u32> = at.filter_map(|one| interface_index(&one.at)).collect();
    let exits = exits::tell(kernel, &served, &at)?;
    let straight = redirect_peer::tell(kernel, veth, &served)?;
    let mut changed = false;
    for one in attached {
        let is_among = |these: &[u32]| one.index.is_some_and(|index| these.contains(&index));
        let is_exit = kernel.mode() == AttachMode::Tc || is_among(&exits);
        let is_straight = is_among(&straight);
        changed |= is_exit != one.is_exit || is_straight != one.is_straight;
        (one.is_exit, one.is_straight) = (is_exit, is_straight);
    }
    Ok(changed)
}

impl Attached {
    /// Before it is known how packets leave it.
    fn new(name: &str, at: String) -> Self {
        Self {
            name: name.to_owned(),
            at,
            index: interface_index(name),
            refused: String::new(),
            is_exit: true,
            is_straight: false,
        }
    }

    fn described(&self) -> String {
        match self.at == self.name {
            true => self.name.clone(),
            false => format!("{} (at {})", self.name, self.at),
        }
    }
}

/// An error with its causes, each mentioned once.
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
