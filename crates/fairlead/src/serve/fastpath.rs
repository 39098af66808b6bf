//! The kernel fast path of a running switch: which way, on which interfaces, or why none.

use std::sync::Arc;

use fairlead_bpf_loader::{
    AttachError, Attachment, CaptureTap, Counters, FlowTable, Kernel, LoadError, Mode as Way, Pins,
    WayOut, interface_index, interface_name,
};
use fairlead_datapath::Datapath;
use fairlead_survey::links;

use super::exits;
use super::interfaces::{bundles, hidden_tags, interfaces, other_program, super_packets};
use super::straight;
use super::vlans::{carriers, each_once, from_below};
use crate::admin::{FastPathState, InterfaceStatus};
use crate::config::{Mode, Settings, Veth};
use crate::doctor::rights_for_programs;

/// What was chosen.
#[derive(Debug)]
pub(super) struct Fastpath {
    kernel: Option<Kernel>,
    /// For what the engine sends; `None` where that goes by the stack.
    way_out: Option<WayOut>,
    /// It goes on without this process.
    outlives: bool,
    attached: Vec<Attached>,
    /// How packets reach other ends of veths, where that can be chosen.
    veth: Veth,
    /// Until interfaces are looked at again for how packets can leave by them.
    rounds_to_exits: u32,
    /// What works, or why nothing does.
    way: String,
    /// Why the better ways do not work; empty when there are none.
    why_not_better: String,
}

/// An interface that the program is to serve.
#[derive(Debug)]
struct Attached {
    name: String,
    /// Where the program is for it: there, or at the interface that this VLAN's stands on.
    at: String,
    /// Its index while the program serves it; `None` while the interface is gone.
    index: Option<u32>,
    /// Why one that has come back is not served.
    refused: String,
    /// Whether the program may send packets out of it; where not, the engine does.
    is_exit: bool,
    /// Whether what it sends goes straight to its other end.
    is_straight: bool,
}

/// How often [`Fastpath::tend`] is called until it asks again how packets can leave. A second under
/// XDP, whose packets may be lost; ten at tc, where that changes only what is quickest.
fn exit_rounds(way: Way) -> u32 {
    match way {
        Way::XdpNative | Way::XdpGeneric => 4,
        Way::Tc => 40,
    }
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
        for (way, reason) in ways_on(mode, &found) {
            let tried = match reason {
                Some(reason) => Err(reason),
                None => attach(settings, datapath, origin_ns, way, pins, &found),
            };
            match tried {
                Ok((kernel, table, attached)) => {
                    if let Some(slow) = slow_there(mode, way, &found) {
                        tracing::warn!("{slow}");
                        refusals.push(slow);
                    }
                    let this = Self {
                        kernel: Some(kernel),
                        way_out: way_out(&settings.fastpath.device),
                        outlives: pins.is_some(),
                        attached,
                        veth: settings.fastpath.veth,
                        rounds_to_exits: exit_rounds(way),
                        way: way.name().to_owned(),
                        why_not_better: refusals.join("; "),
                    };
                    return Ok((this, Some(table)));
                }
                Err(why) => refusals.push(format!("{}: {why}", way.name())),
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
            outlives: false,
            attached: Vec::new(),
            veth: Veth::Queue,
            rounds_to_exits: 0,
            way: "engine".to_owned(),
            why_not_better: why,
        }
    }

    /// What forwards packets.
    pub(super) fn state(&self) -> FastPathState {
        let interface = |one: &Attached| InterfaceStatus {
            name: one.name.clone(),
            served: one.index.is_some(),
        };
        FastPathState {
            way: self.way.clone(),
            told: self.told(),
            interfaces: self.attached.iter().map(interface).collect(),
        }
    }

    /// In words: on which interfaces, and why nothing better does.
    fn told(&self) -> String {
        let mut text = self.way.clone();
        let names = |is: fn(&Attached) -> bool| -> Vec<String> {
            let all = self.attached.iter().filter(|one| is(one));
            all.map(Attached::said).collect()
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
            text += &format!(", straight to the other end of {}", straight.join(", "));
        }
        if !closed.is_empty() {
            text += &format!(", the engine sends on {} ({CLOSED})", closed.join(", "));
        }
        if self.kernel.is_some() && self.way_out.is_none() {
            text += ", the engine sends by the stack";
        }
        if !self.why_not_better.is_empty() {
            text += &format!(" ({})", self.why_not_better);
        }
        text
    }

    /// Looks whether interfaces have gone or come back; the program is attached again to those
    /// that have. True when something has changed.
    pub(super) fn tend(&mut self) -> bool {
        let Some(kernel) = &mut self.kernel else {
            return false;
        };
        let mut changed = false;
        let way = kernel.mode();
        for one in &mut self.attached {
            let index = interface_index(&one.name);
            if index == one.index {
                continue;
            }
            if index.is_some() {
                one.at = at(way, std::slice::from_ref(&one.name)).remove(0);
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
                // It is looked at again the next time.
                Some(Err(error)) => {
                    let why = in_full(&error);
                    if one.refused != why {
                        tracing::warn!("interface {name} is back, and cannot be served: {why}");
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
            self.rounds_to_exits = exit_rounds(way);
            match tell_exits(kernel, self.veth, &mut self.attached) {
                Ok(told) => changed |= told,
                Err(error) => tracing::warn!("ways out of interfaces: {}", in_full(&error)),
            }
        }
        changed
    }

    /// True while the kernel forwards.
    pub(super) fn is_in_kernel(&self) -> bool {
        self.kernel.is_some()
    }

    /// True when it goes on without this process.
    pub(super) fn outlives(&self) -> bool {
        self.outlives
    }

    /// The window for captures, where the kernel forwards.
    pub(super) fn take_capture(&mut self) -> Option<CaptureTap> {
        let taken = self.kernel.as_mut()?.take_capture();
        taken
            .inspect_err(|error| tracing::warn!("captures show the engine alone: {error}"))
            .ok()
    }

    /// What the kernel counted, where there is one.
    pub(super) fn counters(&self) -> Option<Counters> {
        self.kernel.as_ref().and_then(|one| one.counters().ok())
    }
}

fn way_out(device: &str) -> Option<WayOut> {
    WayOut::attach(device)
        .inspect_err(|error| {
            let why = in_full(error);
            tracing::info!("what the engine sends goes by the stack: {why}");
        })
        .ok()
}

/// The ways that a mode permits, best first: what [`Fastpath::start`] tries and what
/// `fairlead doctor` foretells.
pub(crate) fn ways(mode: Mode) -> &'static [Way] {
    match mode {
        Mode::Engine => &[],
        Mode::Auto => &[Way::XdpNative, Way::Tc, Way::XdpGeneric],
        Mode::Tc => &[Way::Tc],
        Mode::Xdp => &[Way::XdpNative],
        Mode::XdpGeneric => &[Way::XdpGeneric],
    }
}

/// The ways of a mode, each with the reason not to try it on these interfaces. One way serves all
/// of them: XDP can only send to interfaces that have XDP, too.
pub(crate) fn ways_on(mode: Mode, interfaces: &[String]) -> Vec<(Way, Option<String>)> {
    let ways = ways(mode).iter();
    let reason = |way| {
        let on = at(way, interfaces);
        let any = |why: fn(&str) -> Option<String>| on.iter().find_map(|name| why(name));
        match (mode, way) {
            (Mode::Auto, Way::XdpNative) => any(bundles)
                .or_else(|| any(super_packets))
                .or_else(|| any(hidden_tags)),
            (Mode::Auto, Way::XdpGeneric) => any(hidden_tags),
            _ => None,
        }
    };
    ways.map(|&way| (way, reason(way))).collect()
}

/// What of these interfaces' packets goes by the engine because a way was asked for that is not
/// theirs: `auto` would take another.
pub(crate) fn slow_there(mode: Mode, way: Way, interfaces: &[String]) -> Option<String> {
    if mode == Mode::Auto || way == Way::Tc {
        return None;
    }
    let bundled = |name: &String| bundles(name).filter(|_| way == Way::XdpNative);
    let why = at(way, interfaces)
        .iter()
        .find_map(|name| bundled(name).or_else(|| super_packets(name)))?;
    Some(format!(
        "{why}, which go by the engine; mode = \"tc\" forwards them in the kernel"
    ))
}

/// Where a program that serves these interfaces is, each in its place.
fn at(way: Way, interfaces: &[String]) -> Vec<String> {
    carriers(&links().unwrap_or_default(), way, interfaces)
}

/// What became of an interface that there is not by its name any more.
fn gone(index: Option<u32>) -> String {
    match index.and_then(interface_name) {
        Some(name) => format!(
            "called {name} now, and no longer served by all means: give it its name back, or \
             start again with the new one"
        ),
        None => "gone; the others go on".to_owned(),
    }
}

/// The places to attach it to, in this order.
fn places(at: &[String]) -> Vec<String> {
    from_below(&links().unwrap_or_default(), each_once(at.to_vec()))
}

fn attach(
    settings: &Settings,
    datapath: &Datapath,
    origin_ns: u64,
    way: Way,
    pins: Option<&Arc<Pins>>,
    interfaces: &[String],
) -> Result<(Kernel, FlowTable, Vec<Attached>), String> {
    let at = at(way, interfaces);
    let places = places(&at);
    for interface in &places {
        if let Some(other) = other_program(interface, way, pins.map(|pins| &**pins)) {
            return Err(other);
        }
        if way != Way::Tc
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
    let loaded = Kernel::load_pinned(way, kind, records, endpoints, cookie, origin_ns, pins);
    let (mut kernel, mut table) = loaded.map_err(|error| in_full(&error))?;
    kernel.set_instance(&settings.instance.name);
    if let Some(device) = interface_index(&settings.fastpath.device) {
        table.set_engine(device).map_err(|error| in_full(&error))?;
    }
    let mut attached: Vec<Attached> = Vec::new();
    for (name, at) in interfaces.iter().zip(at) {
        attached.push(Attached {
            name: name.clone(),
            at,
            index: interface_index(name),
            refused: String::new(),
            is_exit: true,
            is_straight: false,
        });
    }
    foretell_exits(&mut kernel, &earlier, &attached).map_err(|error| in_full(&error))?;
    let mut done: Vec<Attachment> = Vec::new();
    for interface in &places {
        done.push(kernel.attach(interface).map_err(|error| refused(&error))?);
    }
    let veth = settings.fastpath.veth;
    tell_exits(&mut kernel, veth, &mut attached).map_err(|error| in_full(&error))?;
    let closed = attached.iter().find(|one| !one.is_exit);
    if let (Mode::Auto, Some(closed)) = (settings.fastpath.mode, closed) {
        return Err(format!(
            "nothing can be sent out of {}: {CLOSED}",
            closed.name
        ));
    }
    for other in kernel.detach_others(&done) {
        tracing::info!("removed {other}, which an earlier run used");
    }
    Ok((kernel, table, attached))
}

/// What the kernel said when the program was to be attached, and what that means.
fn refused(error: &AttachError) -> String {
    let said = in_full(error);
    match error.mode {
        Way::XdpNative if error.is_unsupported() => {
            format!("{said}; its driver has no XDP of its own, tc and xdp-generic need none")
        }
        _ => said,
    }
}

/// Why nothing can be sent.
const CLOSED: &str = "it takes no packets from XDP; of a veth the other end must join received \
                      segments (`ethtool -K … gro on`), and Linux be 6.3 or newer, which tells \
                      whether it does";

/// Tells the program by which interfaces packets can leave before it is anywhere: in the place of
/// one of an `earlier` run it forwards from the first moment, and goes on where this start fails.
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

/// Tells the program of its interfaces. True when it has changed how packets leave by one of them.
fn tell_exits(
    kernel: &mut Kernel,
    veth: Veth,
    attached: &mut [Attached],
) -> Result<bool, LoadError> {
    let served: Vec<u32> = attached.iter().filter_map(|one| one.index).collect();
    let at = attached.iter().filter(|one| one.index.is_some());
    let at: Vec<u32> = at.filter_map(|one| interface_index(&one.at)).collect();
    let exits = exits::tell(kernel, &served, &at)?;
    let straight = straight::tell(kernel, veth, &served)?;
    let mut changed = false;
    for one in attached {
        let is_among = |these: &[u32]| one.index.is_some_and(|index| these.contains(&index));
        let is_exit = kernel.mode() == Way::Tc || is_among(&exits);
        let is_straight = is_among(&straight);
        changed |= is_exit != one.is_exit || is_straight != one.is_straight;
        (one.is_exit, one.is_straight) = (is_exit, is_straight);
    }
    Ok(changed)
}

impl Attached {
    fn said(&self) -> String {
        match self.at == self.name {
            true => self.name.clone(),
            false => format!("{} (at {})", self.name, self.at),
        }
    }
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
