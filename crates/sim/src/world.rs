//! The world: hosts around a switch, a clock that jumps from one event to the next, and oracles
//! that look after every step.

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use fairlead_base::{Address, Checksum, DropReason, Endpoint, FlowKey, Instant, Packet};
use fairlead_datapath::{Datapath, Event, ServerId, Snapshot, Verdict, tcb_cache};
use fairlead_splice::config::Config;

use crate::app::{ClientApp, ClientEnd, ClientPlan, sooner};
use crate::dice::Dice;
use crate::host::{Host, HostPlan};
use crate::mischief;
use crate::mutant::Mutant;
use crate::net::{Crossing, Link, Segment, merge, split, too_big};
use crate::oracle::{Gauges, Ledger, Role, Taps, Translation, summary};
use crate::order::Order;
use crate::trace::{Place, Trace};

/// A world to be.
#[derive(Clone, Debug)]
pub struct WorldPlan {
    /// Decides all that is left to chance.
    pub seed: u64,
    /// Configuration of the switch.
    pub config: Config,
    /// The TCB cache in front of its connection table.
    pub tcb_cache: Option<tcb_cache::Settings>,
    /// The hosts.
    pub hosts: Vec<HostPlan>,
    /// The device between the hosts.
    pub middle: Middle,
    /// The switch's device merges and cuts packets and finishes checksums.
    pub offload: bool,
    /// Arrivals fall on multiples of this.
    pub grid: Duration,
    /// From then on links only delay packets, so that everything must end.
    pub calm_at: Option<Instant>,
    /// How far the world may run.
    pub budget: Budget,
    /// Every packet is printed as it passes.
    pub printed: bool,
    /// A fault put into the switch's output, to see that it is noticed. Not with `offload`.
    pub mutant: Option<Mutant>,
    /// Uptime of the switch at the start.
    pub uptime: Duration,
}

/// The device between the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Middle {
    /// The datapath.
    Switch,
    /// None: packets go where they are addressed. A control that shows how hosts, links and oracles
    /// behave without a switch.
    Wire,
}

/// Limits of a run. Reaching one is a failure, because every world must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Steps in all.
    pub steps: u64,
    /// Steps without the clock moving.
    pub steps_at_once: u32,
    /// The clock.
    pub until: Instant,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            steps: 2_000_000,
            steps_at_once: 20_000,
            until: Instant::from_millis(1_200_000),
        }
    }
}

/// A broken promise.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The world's seed.
    pub seed: u64,
    /// When.
    pub at: Instant,
    /// What.
    pub what: String,
    /// What was going on, and the last packets.
    pub report: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {} at {} ms: {}",
            self.seed,
            self.at.as_millis(),
            self.what
        )?;
        for line in &self.report {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// Steps between two checks of the switch's invariants.
const STEPS_A_CHECK: u64 = 64;

/// A client's result.
pub(crate) struct Seat {
    host: usize,
    plan: ClientPlan,
    started: bool,
    pub(crate) role: Option<Role>,
    pub(crate) app: Option<ClientApp>,
}

enum Due {
    ToHost(usize, Vec<u8>),
    ToSwitch(Vec<u8>),
}

/// Hosts around a switch.
pub struct World {
    seed: u64,
    now: Instant,
    middle: Middle,
    offload: bool,
    mutant: Option<Mutant>,
    calm_at: Option<Instant>,
    budget: Budget,
    uptime: Duration,
    datapath: Datapath,
    hosts: Vec<Host>,
    homes: BTreeMap<Address, usize>,
    vips: Vec<Endpoint>,
    up: Vec<Link>,
    down: Vec<Link>,
    due: BTreeMap<(Instant, u64), Due>,
    due_number: u64,
    pub(crate) ledger: Ledger,
    taps: Taps,
    translation: Translation,
    gauges: Gauges,
    pub(crate) seats: Vec<Seat>,
    orders: Vec<(Instant, Order)>,
    pub(crate) events: Vec<Event>,
    trace: Trace,
    dice: Dice,
    digest: u64,
    steps: u64,
    steps_at_once: u32,
    failure: Option<String>,
}

/// The switch of a world.
fn switch(
    config: Config,
    cache: Option<&tcb_cache::Settings>,
    seed: u64,
    now: Instant,
) -> Result<Datapath, String> {
    let mut datapath = Datapath::new(config, Dice::new(seed, "switch").word().into(), now)
        .map_err(|error| format!("the switch refuses its configuration: {error}"))?;
    datapath
        .set_tcb_cache(cache, Dice::new(seed, "cache").word())
        .map_err(|error| format!("invalid TCB cache: {error}"))?;
    Ok(datapath)
}

/// The addresses of these hosts.
fn addrs(hosts: &[&HostPlan]) -> BTreeSet<Address> {
    let all = hosts.iter().flat_map(|host| host.addrs.iter());
    all.copied().collect()
}

impl World {
    /// Builds a world. Its clock starts at one second.
    pub fn new(plan: WorldPlan) -> Result<Self, Failure> {
        let now = Instant::from_millis(1_000);
        let seed = plan.seed;
        let refuse = |what: String| Failure {
            seed,
            at: now,
            what,
            report: Vec::new(),
        };
        let limits = plan.config.limits;
        let (servers, clients): (Vec<_>, Vec<_>) =
            plan.hosts.iter().partition(|host| !host.servers.is_empty());
        let translation = Translation::new(&plan.config, addrs(&clients), addrs(&servers));
        let vips = plan
            .config
            .services
            .iter()
            .flat_map(|one| one.listen.iter().copied())
            .collect();
        let started = now + plan.uptime;
        let datapath =
            switch(plan.config, plan.tcb_cache.as_ref(), seed, started).map_err(refuse)?;
        let mut homes = BTreeMap::new();
        let (mut up, mut down, mut hosts) = (Vec::new(), Vec::new(), Vec::new());
        for (number, host) in plan.hosts.into_iter().enumerate() {
            for &addr in &host.addrs {
                homes.insert(addr, number);
            }
            let dice = |way: &str| Dice::new(seed, &format!("{way} {number}"));
            let link = host.link;
            up.push(Link::new(link.up, link.mtu_up, plan.grid, dice("up")));
            down.push(Link::new(link.down, link.mtu_down, plan.grid, dice("down")));
            hosts.push(Host::new(host, dice("host").word(), now));
        }
        Ok(Self {
            seed,
            now,
            middle: plan.middle,
            offload: plan.offload && plan.mutant.is_none(),
            mutant: plan.mutant,
            calm_at: plan.calm_at,
            budget: plan.budget,
            uptime: plan.uptime,
            datapath,
            hosts,
            homes,
            vips,
            up,
            down,
            due: BTreeMap::new(),
            due_number: 0,
            ledger: Ledger::default(),
            taps: Taps::default(),
            translation,
            gauges: Gauges::new(limits),
            seats: Vec::new(),
            orders: Vec::new(),
            events: Vec::new(),
            trace: Trace::new(plan.printed),
            dice: Dice::new(seed, "world"),
            digest: 0,
            steps: 0,
            steps_at_once: 0,
            failure: None,
        })
    }

    /// A client on a host (by its place in the plan). Returns the client's number.
    pub fn add_client(&mut self, host: usize, plan: ClientPlan) -> usize {
        self.seats.push(Seat {
            host,
            plan,
            started: false,
            role: None,
            app: None,
        });
        self.seats.len() - 1
    }

    /// Ends a server's process: its port is closed from now on, its connections are reset.
    pub fn end_server(&mut self, endpoint: Endpoint) {
        if let Some(&host) = self.homes.get(&endpoint.addr) {
            self.hosts[host].end_server(endpoint, &mut self.ledger);
            self.hosts[host].wake = Some(self.now);
        }
    }

    pub(crate) fn add_order(&mut self, at: Instant, order: Order) {
        self.orders.push((at, order));
    }

    /// The device between the hosts.
    pub fn middle(&self) -> Middle {
        self.middle
    }

    /// Virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// The switch's counters.
    pub fn snapshot(&self) -> Snapshot {
        self.datapath.snapshot()
    }

    /// Everything that the switch reported so far.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Changes with every bit of every packet: equal for equal runs.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Steps taken.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Packets through the switch that were compared before and after.
    pub fn compared(&self) -> u64 {
        self.translation.compared
    }

    /// Runs until every client has finished and no host has a connection left.
    pub fn run(&mut self) -> Result<(), Failure> {
        while !self.done() {
            self.step()?;
        }
        Ok(())
    }

    /// Runs on until the switch has nothing left of any connection, at most for `patience`.
    pub fn settle(&mut self, patience: Duration) -> Result<(), Failure> {
        if self.middle == Middle::Wire {
            return Ok(());
        }
        let end = self.now + patience;
        while self.now < end {
            let now = self.datapath.snapshot();
            if now.records == 0 && now.setups == 0 {
                break;
            }
            self.step()?;
        }
        self.datapath.check_invariants();
        let left = self.gauges.check_empty(&self.datapath.snapshot());
        left.map_err(|what| self.fail(what))
    }

    fn done(&self) -> bool {
        self.seats.iter().all(|seat| seat.app.is_some())
            && self.hosts.iter().all(|host| host.busy() == 0)
    }

    /// Goes to the next event and does all that is due.
    pub fn step(&mut self) -> Result<(), Failure> {
        let next = self.next_event();
        if next > self.budget.until {
            return Err(self.fail("not at an end when its time was over".to_owned()));
        }
        self.steps += 1;
        self.steps_at_once = if next > self.now {
            0
        } else {
            self.steps_at_once + 1
        };
        if self.steps > self.budget.steps || self.steps_at_once > self.budget.steps_at_once {
            return Err(self.fail("goes round in circles".to_owned()));
        }
        self.now = self.now.max(next);
        self.calm();
        self.obey();
        self.seat_clients();
        self.deliver();
        self.serve_hosts();
        self.time_switch();
        if let Some(what) = self.failure.take().or_else(|| self.ledger.failure.take()) {
            return Err(self.fail(what));
        }
        Ok(())
    }

    fn next_event(&self) -> Instant {
        let mut next = self.due.keys().next().map(|&(at, _)| at);
        for host in &self.hosts {
            next = sooner(next, host.wake);
        }
        if self.middle == Middle::Switch {
            next = sooner(next, self.switch_due());
        }
        next = sooner(next, self.calm_at);
        next = sooner(next, self.orders.iter().map(|&(at, _)| at).min());
        let waiting = self.seats.iter().filter(|seat| !seat.started);
        let ready = waiting
            .filter(|seat| self.is_free(seat))
            .map(|seat| seat.plan.start);
        next = sooner(next, ready.min());
        // The hosts' clocks count microseconds.
        let next = next
            .unwrap_or(Instant::from_nanos(u64::MAX - 1_000))
            .max(self.now);
        Instant::from_micros(next.as_nanos().div_ceil(1_000))
    }

    fn is_free(&self, seat: &Seat) -> bool {
        seat.plan
            .after
            .is_none_or(|other| self.seats[other].app.is_some())
    }

    fn calm(&mut self) {
        if self.calm_at.is_some_and(|at| at <= self.now) {
            self.calm_at = None;
            self.trace
                .text(self.now, "links are calm from now on".to_owned());
            for link in self.up.iter_mut().chain(&mut self.down) {
                link.calm();
            }
        }
    }

    fn obey(&mut self) {
        let now = self.now;
        let (due, later) = self.orders.drain(..).partition(|&(at, _)| at <= now);
        self.orders = later;
        let due: Vec<(Instant, Order)> = due;
        for (_, order) in due {
            self.trace.text(now, format!("order: {order:?}"));
            match order {
                Order::Drain => self.datapath.drain(now + self.uptime),
                Order::AbortAll => self.datapath.abort_all(now + self.uptime),
                Order::Server(number, change) => {
                    let change = change.of(ServerId(number));
                    let applied = self.datapath.apply(now + self.uptime, change);
                    debug_assert!(applied.is_ok(), "only searches can be too many");
                }
                Order::Mischief(count) => {
                    for _ in 0..count {
                        let bytes = mischief::packet(&mut self.dice, &self.vips, &self.taps);
                        self.push(now, Due::ToSwitch(bytes));
                    }
                }
            }
            self.after_switch();
        }
    }

    fn seat_clients(&mut self) {
        for number in 0..self.seats.len() {
            let seat = &self.seats[number];
            if seat.started || seat.plan.start > self.now || !self.is_free(seat) {
                continue;
            }
            let mut plan = seat.plan.clone();
            if let Some(other) = plan.after {
                plan.port = self.seats[other].app.as_ref().and_then(|app| app.plan.port);
            }
            self.seats[number].started = true;
            let host = self.seats[number].host;
            self.hosts[host].connect(number, plan, self.now, &mut self.ledger);
            self.hosts[host].wake = Some(self.now);
        }
    }

    fn deliver(&mut self) {
        let mut for_switch = Vec::new();
        while let Some(entry) = self.due.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            match entry.remove() {
                Due::ToHost(host, bytes) => {
                    self.trace
                        .packet(self.now, Place::Arrives(host as u16), &bytes, "");
                    let (ledger, taps) = (&mut self.ledger, &mut self.taps);
                    self.hosts[host].arrive(self.now, bytes, ledger, taps);
                    self.serve_host(host);
                }
                Due::ToSwitch(bytes) => for_switch.push(bytes),
            }
        }
        if !for_switch.is_empty() {
            self.through_middle(for_switch);
        }
    }

    fn serve_hosts(&mut self) {
        for host in 0..self.hosts.len() {
            if self.hosts[host].wake.is_some_and(|at| at <= self.now) {
                self.serve_host(host);
            }
        }
    }

    fn serve_host(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        let left = host.serve(self.now, &mut self.ledger, &mut self.taps);
        for (seat, role, app) in host.finished.drain(..) {
            self.seats[seat].role = Some(role);
            self.seats[seat].app = Some(app);
        }
        let mut arrivals = Vec::new();
        for bytes in left {
            let back = (bytes.len() > self.up[number].mtu())
                .then(|| self.refuse_long(&bytes, self.up[number].mtu()))
                .flatten();
            if let Some(message) = back {
                self.push(
                    self.now + Duration::from_micros(100),
                    Due::ToHost(number, message),
                );
            }
            self.trace_leaving(number, &bytes, &mut arrivals);
        }
        for (at, bytes) in arrivals {
            self.push(at, Due::ToSwitch(bytes));
        }
    }

    fn trace_leaving(
        &mut self,
        number: usize,
        bytes: &[u8],
        arrivals: &mut Vec<(Instant, Vec<u8>)>,
    ) {
        let fate = self.up[number].send(self.now, bytes.to_vec(), arrivals);
        self.trace
            .packet(self.now, Place::Leaves(number as u16), bytes, remark(fate));
    }

    fn refuse_long(&mut self, bytes: &[u8], mtu: usize) -> Option<Vec<u8>> {
        let quote = if self.dice.percent(50) { 8 } else { 500 };
        too_big(bytes, mtu, quote)
    }

    fn through_middle(&mut self, arrived: Vec<Vec<u8>>) {
        for bytes in &arrived {
            self.trace.packet(self.now, Place::SwitchIn, bytes, "");
        }
        if self.middle == Middle::Wire {
            for bytes in arrived {
                self.send_down(bytes);
            }
            return;
        }
        let is_direct = |bytes: &Vec<u8>| self.translation.is_direct(bytes);
        let (direct, arrived): (Vec<_>, Vec<_>) = arrived.into_iter().partition(is_direct);
        for bytes in direct {
            self.send_down(bytes);
        }
        let mut packets = if self.offload {
            merge(arrived, &mut self.dice)
        } else {
            arrived
                .iter()
                .map(|bytes| Packet::from_bytes(bytes))
                .collect()
        };
        let before = packets.clone();
        let (mut verdicts, mut handed_back) = (Vec::new(), Vec::new());
        self.datapath
            .handle_batch(self.now + self.uptime, &mut packets, &mut verdicts);
        if verdicts.len() != packets.len() {
            let (got, want) = (verdicts.len(), packets.len());
            self.failure = Some(format!("{got} verdicts on {want} packets"));
        }
        for ((before, packet), verdict) in before.iter().zip(&mut packets).zip(verdicts) {
            match verdict {
                Verdict::Transmit => {
                    self.mutate(packet);
                    match self.translation.handed_back(&before.bytes, &packet.bytes) {
                        Some(key) => {
                            handed_back.push(key);
                            self.leave_switch(packet);
                        }
                        None => self.pass_switch(before, packet),
                    }
                }
                Verdict::Drop(reason) => self.trace_drop(before, reason),
                Verdict::Consumed => {}
            }
        }
        self.after_switch();
        let on_record = |key: &FlowKey| self.datapath.whose(key).is_some();
        if let Some(key) = handed_back.iter().find(|key| on_record(key)) {
            self.failure = Some(format!("a packet of a connection was handed back: {key}"));
        }
    }

    /// A forwarded packet comes out. The fast path updates checksums without verifying them: a
    /// corrupted packet must come out as corrupted, so that its receiver notices.
    fn pass_switch(&mut self, before: &Packet, packet: &Packet) {
        let damaged = before.checksum == Checksum::Complete
            && Segment::read(&before.bytes) == Err("TCP checksum");
        if damaged {
            if Segment::read(&packet.bytes).is_ok() {
                self.note(Err("the switch hid the corruption of a packet".to_owned()));
            }
            self.send_down(packet.bytes.clone());
            return;
        }
        let passed = self
            .translation
            .check_passed(&before.bytes, &packet.bytes, &self.taps);
        self.note(passed);
        self.leave_switch(packet);
    }

    fn mutate(&self, packet: &mut Packet) {
        if let Some(mutant) = self.mutant {
            mutant.apply(&mut packet.bytes);
        }
    }

    fn trace_drop(&mut self, before: &Packet, reason: DropReason) {
        self.trace
            .packet(self.now, Place::SwitchIn, &before.bytes, reason.name());
    }

    fn time_switch(&mut self) {
        if self.middle == Middle::Wire {
            return;
        }
        let is_due = |world: &Self| world.switch_due().is_some_and(|at| at <= world.now);
        if is_due(self) {
            self.datapath.handle_timeout(self.now + self.uptime);
            self.after_switch();
            if is_due(self) {
                self.failure = Some("the switch's timer is due again at once".to_owned());
            }
        }
    }

    /// When the switch wants to be called, by the world's clock.
    fn switch_due(&self) -> Option<Instant> {
        self.datapath.poll_timeout().map(|at| at - self.uptime)
    }

    /// Fetches packets generated by the switch, and checks its counters.
    fn after_switch(&mut self) {
        let mut packet = Packet::with_capacity();
        while self.datapath.poll_transmit(&mut packet) {
            self.mutate(&mut packet);
            self.leave_switch(&packet);
        }
        while let Some(event) = self.datapath.poll_event() {
            self.trace.text(self.now, format!("{event:?}"));
            self.events.push(event);
        }
        let numbers = self.gauges.check(self.datapath.snapshot());
        self.note(numbers);
        if self.steps.is_multiple_of(STEPS_A_CHECK) {
            self.datapath.check_invariants();
        }
    }

    fn leave_switch(&mut self, packet: &Packet) {
        if !self.offload && (packet.gso.is_some() || packet.checksum != Default::default()) {
            self.failure = Some("the switch left work to a device that does none".to_owned());
        }
        let cut = match split(packet) {
            Ok(cut) => cut,
            Err(what) => return self.failure = Some(what),
        };
        for bytes in cut {
            let checked = self.translation.check_leaving(&bytes);
            if checked.is_err() {
                self.trace.packet(
                    self.now,
                    Place::SwitchOut,
                    &bytes,
                    "(refused by the oracle)",
                );
            }
            self.note(checked);
            self.taps.emitted(&bytes);
            self.send_down(bytes);
        }
    }

    fn send_down(&mut self, bytes: Vec<u8>) {
        let Some(number) = destination(&bytes).and_then(|addr| self.homes.get(&addr).copied())
        else {
            // Only damage can do this without a switch; with one, the oracle has noticed.
            return;
        };
        for &byte in &bytes {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        let mtu = self.down[number].mtu();
        if bytes.len() > mtu
            && let Some(message) = self.refuse_long(&bytes, mtu)
        {
            self.push(
                self.now + Duration::from_micros(100),
                Due::ToSwitch(message),
            );
        }
        let mut arrivals = Vec::new();
        let fate = self.down[number].send(self.now, bytes.clone(), &mut arrivals);
        self.trace
            .packet(self.now, Place::SwitchOut, &bytes, remark(fate));
        for (at, bytes) in arrivals {
            self.push(at, Due::ToHost(number, bytes));
        }
    }

    fn push(&mut self, at: Instant, due: Due) {
        self.due_number += 1;
        self.due.insert((at, self.due_number), due);
    }

    fn note(&mut self, result: Result<(), String>) {
        if let Err(what) = result {
            self.failure.get_or_insert(what);
        }
    }

    /// A failure of this world, with the information to analyse it.
    pub(crate) fn fail(&self, what: String) -> Failure {
        let mut report: Vec<String> = self.hosts.iter().flat_map(Host::describe).collect();
        for (number, seat) in self.seats.iter().enumerate() {
            let state = match &seat.app {
                Some(app) => format!("{:?}", app.end),
                None if seat.started => "at work".to_owned(),
                None => "not started".to_owned(),
            };
            report.push(format!(
                "client {number} {:?} {:?} {:?}: {state}",
                seat.plan.dialect, seat.plan.finish, seat.plan.expect
            ));
        }
        report.push(summary(&self.datapath.snapshot()));
        report.extend(self.trace.lines());
        Failure {
            seed: self.seed,
            at: self.now,
            what,
            report,
        }
    }

    /// Clients that heard all they wanted from a server and closed in order.
    pub fn served(&self) -> usize {
        let served = |seat: &&Seat| {
            seat.app.as_ref().is_some_and(|app| {
                app.complete && app.server().is_some() && app.end == Some(ClientEnd::Finished)
            })
        };
        self.seats.iter().filter(served).count()
    }

    /// How many clients ended in each way.
    pub(crate) fn ends(&self, end: ClientEnd) -> usize {
        let app = |seat: &Seat| seat.app.as_ref().is_some_and(|app| app.end == Some(end));
        self.seats.iter().filter(|seat| app(seat)).count()
    }

    /// What the switch said about turning this client away.
    pub(crate) fn refusals(&self, client: Endpoint) -> Vec<DropReason> {
        let reason = |event: &Event| match event {
            Event::Refused {
                client: of, reason, ..
            } if *of == client => Some(*reason),
            _ => None,
        };
        self.events.iter().filter_map(reason).collect()
    }
}

fn remark(fate: Crossing) -> &'static str {
    match fate {
        Crossing::Sent => "",
        Crossing::Twice => "(twice)",
        Crossing::Corrupted => "(corrupted)",
        Crossing::Late => "(late)",
        Crossing::Lost => "(lost)",
        Crossing::TooBig => "(too big)",
    }
}

/// The destination, read without validation: a router does not look at more.
fn destination(bytes: &[u8]) -> Option<Address> {
    match bytes.first()? >> 4 {
        4 => Some(Address::v4(bytes.get(16..20)?.try_into().ok()?)),
        6 => Some(Address::v6(bytes.get(24..40)?.try_into().ok()?)),
        _ => None,
    }
}
