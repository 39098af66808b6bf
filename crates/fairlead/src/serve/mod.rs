//! `fairlead serve`: the switch on a TUN device of its own, until it is told to end.
//!
//! One thread reads, switches and writes packets; the admin pages have another. The order of
//! things: configuration, leftovers of a crash, obstacles, device, routes, packets; and on the
//! way out connections, rules, device.

mod device_queue;
mod engine;
mod exits;
pub(crate) mod fastpath;
pub(crate) mod inherit;
pub(crate) mod interfaces;
mod lifecycle;
mod notify;
mod orders;
pub(crate) mod plan;
mod pressure;
mod reload;
pub(crate) mod straight;
pub(crate) mod vlans;
mod ways;

use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use fairlead_base::{Instant, Seed};
use fairlead_bpf_loader::Pins;
use fairlead_datapath::{Datapath, Estate, Event, ServerState, Snapshot};
use fairlead_driver_tun::net::{self, Keeper, Network, NetworkPlan, Obstacle};
use fairlead_driver_tun::{DeviceCounters, EndSignals, Ready, TunDevice};

use crate::admin::{self, AdminServer, Counters, Identity, Shared};
use crate::config::{self, Mode, OnStop, Settings};
use crate::control::{self, ControlServer, Desk, Phase};
use crate::log::{self, Log, LogArgs};
use crate::screen::{plural, print_error};

use device_queue::DeviceQueue;
use engine::Engine;
use fastpath::Fastpath;
use inherit::Inheritance;
use lifecycle::{Lifecycle, Step};
use pressure::Pressure;
use reload::{Program, Reload};
use ways::Ways;

/// What `fairlead serve` takes.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct ServeArgs {
    /// The configuration file
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,
    /// When told to stop, leave spliced connections to the kernel fast path, for the next start
    /// (as `on_stop = "keep"`)
    #[arg(long)]
    pub keep: bool,
    /// What to log, and how.
    #[command(flatten)]
    pub log: LogArgs,
}

/// What the help says of [`Ending`]; `docs/operator-tools.md` has the same words.
const EXIT_CODES: &str = "Exit codes:
  0   it was told to end, and has
  1   its device failed while it was in service
  2   the configuration, the log's filter or the command line is wrong
  3   the host does not permit it, or something is in the way
  70  an error in the program itself";

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ending {
    /// It was told to, and did.
    AsTold = 0,
    /// The device failed while it was in service.
    DeviceFailed = 1,
    /// The configuration, or how the program was called, is wrong.
    Configuration = 2,
    /// The host does not permit it, or something is in the way.
    Host = 3,
    /// An error in the program itself (`EX_SOFTWARE` of sysexits.h).
    Bug = 70,
}

impl Ending {
    /// The exit code that says so.
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// How often counters are published, and signals looked for while packets keep coming.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(250);

/// Serves until a signal ends it. Call it before any thread is started: it takes over the signals
/// for all threads to come, and panics of all threads go to the log.
///
/// Its exit codes are those of [`Ending`]. A reload (SIGHUP) does not return: the process becomes a
/// new run of the program.
pub fn run(args: &ServeArgs) -> ExitCode {
    let program = Program::running();
    match serve(args, &program, &mut || {}) {
        Ok(Parting::Reload(device)) => program.begin_anew(device).code().into(),
        Ok(Parting::Clean | Parting::Keep) => Ending::AsTold.code().into(),
        Err(ending) => ending.code().into(),
    }
}

/// As [`run`], and calls `watch` whenever counters are published, a few times a second, in the
/// midst of the loop: so a test can break a switch at work. The program being the caller's, a
/// reload is refused.
pub fn run_watched(args: &ServeArgs, watch: &mut dyn FnMut()) -> Ending {
    let ended = serve(args, &Program::anothers(), watch);
    ended.err().unwrap_or(Ending::AsTold)
}

fn serve(args: &ServeArgs, program: &Program, watch: &mut dyn FnMut()) -> Result<Parting, Ending> {
    let signals = EndSignals::take_over_with_reload();
    // Kept until the end, which waits for the last lines.
    let log = args.log.start().map_err(|error| {
        print_error(&format!("fairlead: {error}\n"));
        Ending::Configuration
    })?;
    log.take_over_panics();
    let signals = signals.map_err(|error| {
        log::fatal(&format_args!("signals cannot be received: {error}"));
        Ending::Host
    })?;
    let mut settings = load(args)?;
    let reload = Reload::new(program, &args.config, &settings);
    if args.keep {
        settings.instance.on_stop = OnStop::Keep;
    }
    let host = |error: String| {
        log::fatal(&error);
        Ending::Host
    };
    let mut inherited = Inheritance::find(&settings).map_err(host)?;
    let fresh = Fresh::of(&inherited);
    interfaces::settle(&mut settings);
    let clock = Clock::start(inherited.origin_ns);
    let mut datapath = start_datapath(&settings, clock.now(), &inherited.estate)?;
    let (device, network) = prepare_host(&plan::network_plan(&settings), &inherited)?;
    announce_host(&settings, &network);
    let (keeper, device_queue) = keep_network(&network, &device);
    let mut fastpath = start_fastpath(&settings, &mut datapath, &clock, &mut inherited)?;
    let shared = Arc::new(Shared::new(Identity::of(&settings, fastpath.state())));
    // Kept until the end; its pages say "starting" until something is published.
    let _pages = start_pages(&settings, &shared)?;
    // Not before: a start that fails leaves nothing that was not there.
    let persistent = device.set_persistent(inherited.pins.is_some());
    persistent.map_err(|error| host(format!("device {}: {error}", device.name())))?;
    let desk = Arc::new(Desk::new(&settings.instance.name, clock.now_ns()));
    let _socket = start_control(&settings, &desk);
    fresh.keep();

    let tap = fastpath.take_capture();
    let capture = shared.capture();
    capture.open(&settings, &datapath, clock.origin_ns, tap);
    let mut engine = Engine::new(datapath, device, Arc::clone(capture));
    let mut board = Board {
        settings: &settings,
        shared: &shared,
        desk: &desk,
        log: &log,
        ways: Ways::start(&settings, &mut engine, clock.now()),
        fastpath,
        reload,
        device_queue,
        watch,
    };
    let worked = catch_unwind(AssertUnwindSafe(|| {
        run_loop(&mut engine, &settings, &clock, &signals, &mut board)
    }));
    let counters = *engine.queue().counters();
    let clean = matches!(worked, Ok(Ok(Parting::Clean)));
    let worked = worked.map(|parting| parting.map(|one| left_open(one, engine.queue())));
    drop(keeper);
    part(clean, inherited.pins.as_deref(), engine.queue(), network);
    drop(engine); // and the device and its routes with it, unless they stay
    summarise(&counters, log.lost_lines());
    worked.unwrap_or_else(|_| {
        log::fatal(&"this is an error in fairlead itself; please report the lines above");
        Err(Ending::Bug)
    })
}

/// The parting, with the device that stays open for the next run: what comes meanwhile waits there.
/// Without, first segments are lost, and clients send them again.
fn left_open(parting: Parting, device: &TunDevice) -> Parting {
    match parting {
        Parting::Reload(_) => Parting::Reload(device.leave_open().ok()),
        other => other,
    }
}

/// Removes what was made, or leaves it for the next start: when that is wanted, and after an error,
/// for the kernel goes on with what is spliced.
fn part(clean: bool, pins: Option<&Pins>, device: &TunDevice, network: Network) {
    if !clean && pins.is_some() {
        return network.leave();
    }
    // The kernel stops first: packets that it leaves alone need the device.
    if let Some(error) = pins.and_then(|pins| pins.clear().err()) {
        log::fatal(&format_args!(
            "{error}; `fairlead down` removes what is left"
        ));
    }
    let _ = device.set_persistent(false);
    if let Err(error) = network.remove() {
        log::fatal(&format_args!(
            "{error}; the next start removes what is left"
        ));
    }
}

/// What becomes of spliced connections when the switch ends in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parting {
    /// None is left.
    Clean,
    /// They stay with the kernel.
    Keep,
    /// They stay with the kernel until this process has begun anew, and finds the device open under
    /// this number.
    Reload(Option<RawFd>),
}

/// Pins of a run that has not begun: with a failed start they go again.
struct Fresh(Option<Arc<Pins>>);

impl Fresh {
    fn of(inherited: &Inheritance) -> Self {
        Self(match inherited.origin_ns {
            Some(_) => None,
            None => inherited.pins.clone(),
        })
    }

    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if let Some(pins) = &self.0 {
            let _ = pins.clear();
        }
    }
}

fn load(args: &ServeArgs) -> Result<Settings, Ending> {
    match config::load(&args.config) {
        Ok(loaded) => {
            if !loaded.warnings.is_empty() {
                print_error(&loaded.warnings.render(false));
            }
            Ok(loaded.settings)
        }
        Err(error) => {
            print_error(&format!("{error}\n"));
            Err(Ending::Configuration)
        }
    }
}

fn start_datapath(settings: &Settings, now: Instant, estate: &Estate) -> Result<Datapath, Ending> {
    let chance = || {
        getrandom::u64().map_err(|error| {
            log::fatal(&format_args!("the kernel gives no random numbers: {error}"));
            Ending::Host
        })
    };
    let seed = Seed::new([chance()?, chance()?]);
    let refuse = |error: &dyn std::fmt::Display| {
        log::fatal(error);
        Ending::Configuration
    };
    let mut datapath = Datapath::resume(settings.switch.clone(), seed, now, estate)
        .map_err(|error| refuse(&error))?;
    datapath
        .set_tcb_cache(settings.tcb_cache.as_ref(), seed.word("TCB cache", 0))
        .map_err(|error| refuse(&error))?;
    Ok(datapath)
}

/// Removes leftovers, looks for obstacles, and makes the device and everything around it; or says
/// everything that is in the way.
fn prepare_host(
    plan: &NetworkPlan,
    inherited: &Inheritance,
) -> Result<(TunDevice, Network), Ending> {
    let refuse = |error: &dyn std::fmt::Display| {
        log::fatal(error);
        Ending::Host
    };
    for leftover in net::remove_leftovers().map_err(|error| refuse(&error))? {
        tracing::warn!("removed what an earlier run left behind: {leftover}");
    }
    let mut plan = plan.clone();
    let open = inherit::open_device(&plan);
    if open.is_none() && inherit::is_running(&plan).map_err(|error| refuse(&error))? {
        return Err(refuse(&format!(
            "this instance runs already: a process has its device {}; end that one first, or give \
             this one an `instance.name`, a device and addresses of its own",
            plan.device
        )));
    }
    inherit::find_device(&mut plan, open.is_some()).map_err(|error| refuse(&error))?;
    let (plan, obstacles) = obstacles_of(plan, inherited).map_err(|error| refuse(&error))?;
    for obstacle in &obstacles {
        refuse(obstacle);
    }
    // Tried even when something else is in the way, so that everything is said at once; but the
    // same thing not twice.
    if obstacles
        .iter()
        .any(|obstacle| matches!(obstacle, Obstacle::NameTaken(_)))
    {
        return Err(Ending::Host);
    }
    let device = match (open, plan.resumed) {
        (Some(device), _) => Ok(device),
        (None, true) => TunDevice::resume(&plan.device),
        (None, false) => TunDevice::open(&plan.device),
    };
    let device = device.map_err(|error| refuse(&error))?;
    if !obstacles.is_empty() {
        return Err(Ending::Host);
    }
    let network = net::apply(&plan).map_err(|error| refuse(&error))?;
    Ok((device, network))
}

/// The plan with what an earlier run's connections need, and what is in its way; without that when
/// that alone is in the way.
fn obstacles_of(
    plan: NetworkPlan,
    inherited: &Inheritance,
) -> Result<(NetworkPlan, Vec<Obstacle>), net::NetError> {
    let extended = inherited.extend(&plan);
    let obstacles = net::check(&extended)?;
    if obstacles.is_empty() {
        return Ok((extended, obstacles));
    }
    let own = net::check(&plan)?;
    if own.is_empty() {
        for obstacle in &obstacles {
            tracing::warn!("connections of an earlier run may end: {obstacle}");
        }
    }
    Ok((plan, own))
}

/// Brings the kernel fast path up, if it is wanted and there is one; says which, and why not a
/// better one.
fn start_fastpath(
    settings: &Settings,
    datapath: &mut Datapath,
    clock: &Clock,
    inherited: &mut Inheritance,
) -> Result<Fastpath, Ending> {
    let started = Fastpath::start(settings, datapath, clock.origin_ns, inherited.pins.as_ref());
    let (fastpath, table) = started.map_err(|fastpath::Unavailable(why)| {
        let mode = settings.fastpath.mode.name();
        log::fatal(&format_args!("no fast path with mode = \"{mode}\": {why}"));
        Ending::Host
    })?;
    if let Some(table) = table {
        datapath.set_fast_path(clock.now(), Box::new(table));
    }
    if !fastpath.is_in_kernel() {
        inherited.without_kernel();
    }
    match settings.fastpath.mode == Mode::Engine || fastpath.is_in_kernel() {
        true => tracing::info!("fast path: {}", fastpath.state().told),
        // Somebody who mistyped an interface would find out by the load.
        false => tracing::warn!("no fast path in the kernel: {}", fastpath.state().told),
    }
    if inherited.origin_ns.is_some() {
        inherit::tell(&datapath.adopt(clock.now(), &inherited.estate));
        inherited.estate = Estate::default();
    }
    Ok(fastpath)
}

fn start_pages(settings: &Settings, shared: &Arc<Shared>) -> Result<Option<AdminServer>, Ending> {
    let Some(address) = settings.instance.admin else {
        return Ok(None);
    };
    match admin::start(address, Arc::clone(shared)) {
        Ok(pages) => {
            tracing::info!("admin pages at http://{}/", pages.address());
            Ok(Some(pages))
        }
        Err(error) => {
            log::fatal(&format_args!(
                "admin pages cannot be served at {address}: {error}"
            ));
            Err(Ending::Host)
        }
    }
}

/// Where orders are taken. Without it signals are left, so that nothing else depends on it.
fn start_control(settings: &Settings, desk: &Arc<Desk>) -> Option<ControlServer> {
    let path = control::socket_of(&settings.instance.name);
    match path.and_then(|path| control::start(&path, Arc::clone(desk))) {
        Ok(socket) => {
            tracing::info!("takes orders at {}", socket.path().display());
            Some(socket)
        }
        Err(error) => {
            tracing::warn!("no `fairlead reload` and `fairlead drain`, only signals: {error}");
            None
        }
    }
}

fn announce_host(settings: &Settings, network: &Network) {
    for line in network.made() {
        tracing::info!("made {line}");
    }
    for service in &settings.switch.services {
        for listen in &service.listen {
            let protocol = config::protocol_name(service.protocol);
            tracing::info!("service {} listens on {listen} ({protocol})", service.name);
        }
    }
}

/// How often routes, rules and what the device's queue dropped are looked at.
const NETWORK_INTERVAL: Duration = Duration::from_secs(5);

/// Makes again what others remove of what was made, and says so; its thread looks at the device's
/// queue, too.
fn keep_network(network: &Network, device: &TunDevice) -> (Option<Keeper>, Arc<DeviceQueue>) {
    let device_queue = Arc::new(DeviceQueue::of(device.name()));
    let looked_at = Arc::clone(&device_queue);
    let mut failing = String::new();
    let tell = move |outcome: Result<Vec<String>, net::NetError>| {
        looked_at.look();
        match outcome {
            Ok(mended) => {
                for line in mended {
                    tracing::warn!("made again, somebody had removed it: {line}");
                }
                failing.clear();
            }
            Err(error) => {
                let error = error.to_string();
                if error != failing {
                    tracing::error!("packets may not come here: {error}");
                }
                failing = error;
            }
        }
    };
    let keeper = Keeper::start(network, NETWORK_INTERVAL, tell)
        .inspect_err(|error| tracing::warn!("routes and rules are not looked after: {error}"))
        .ok();
    (keeper, device_queue)
}

/// One line on standard output, for people and for scripts that wait for it.
fn announce_ready(settings: &Settings) {
    let services = settings.switch.services.iter();
    let listen: Vec<String> = services
        .flat_map(|one| one.listen.iter().map(ToString::to_string))
        .collect();
    let device = &settings.fastpath.device;
    let line = format!(
        "ready: {} on {}, device {device}",
        settings.instance.name,
        listen.join(" ")
    );
    tracing::info!("{line}");
    notify::ready();
    // Whoever started us may not want to read it.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("{line}\n").as_bytes());
}

/// The packets' loop. Waits when a round has found the queue empty.
fn run_loop(
    engine: &mut Engine<TunDevice>,
    settings: &Settings,
    clock: &Clock,
    signals: &EndSignals,
    board: &mut Board<'_>,
) -> Result<Parting, Ending> {
    let device_failed = |error: std::io::Error| {
        let device = &settings.fastpath.device;
        log::fatal(&format_args!("device {device} failed: {error}"));
        Ending::DeviceFailed
    };
    let mut on_event = log_as_configured(settings);
    let mut life = Lifecycle::new(clock.now(), settings.instance.drain_timeout);
    let mut publish_at = clock.now();
    let mut pressure = Pressure::default();
    loop {
        let now = clock.now();
        let received = engine.round(now, &mut on_event).map_err(device_failed)?;
        if let Some(refusal) = pressure.handle_round(now, received, engine.strangers()) {
            engine.refuse_ahead(refusal);
        }
        let known = || servers_known(&engine.snapshot());
        let step = life.handle_round(now, engine.live_connections(), known);
        if act(step, engine, now, board) {
            break;
        }
        if step == Step::AnnounceReady {
            announce_ready(settings); // once the pages say so, too
        }
        let publishing = now >= publish_at;
        if publishing {
            publish_at = now + PUBLISH_INTERVAL;
            board.publish_unless(life.is_starting(), engine, now);
            orders::tell(&life, engine, now, board);
        }
        let due = [life.poll_timeout(), Some(publish_at)];
        let ready = wait(engine, clock, signals, &board.ways, due).map_err(device_failed)?;
        let ready = ready.unwrap_or(Ready::all_if(publishing));
        if ready.passing {
            board.ways.hear(engine, clock.now());
        }
        let mut parting = None;
        if ready.signal
            && let Some(signal) = signals.poll_signal().map_err(device_failed)?
        {
            parting = orders::handle_signal(signal, &mut life, engine, now, board);
        }
        if publishing && parting.is_none() {
            parting = orders::handle_order(&mut life, engine, now, board);
        }
        match parting {
            None => {}
            Some(Parting::Clean) => break,
            Some(parting) => {
                engine.learn_all_ends(clock.now(), &mut on_event);
                return Ok(parting);
            }
        }
    }
    board.publish(engine, clock.now());
    orders::tell_end(&life, board, Phase::Ended);
    match life.cut_off() {
        0 => tracing::info!("ended"),
        cut_off => tracing::warn!("ended; {} reset", live_ones(cut_off)),
    }
    Ok(Parting::Clean)
}

fn log_as_configured(settings: &Settings) -> impl FnMut(Event) {
    let of_connections = settings.instance.log_connections;
    move |event| {
        if of_connections || !log::is_of_connection(&event) {
            log::log_event(&event, &settings.switch);
        }
    }
}

/// Waits for whatever comes first; `None` where nobody waits, for packets keep coming: then the
/// rest is looked for whenever counters are published.
fn wait(
    engine: &Engine<TunDevice>,
    clock: &Clock,
    signals: &EndSignals,
    ways: &Ways,
    due: [Option<Instant>; 2],
) -> std::io::Result<Option<Ready>> {
    if !engine.has_drained() {
        return Ok(None);
    }
    let due = due.into_iter().chain([engine.poll_timeout()]);
    let timeout = due.flatten().min().map(|due| due.since(clock.now()));
    let ready = signals.wait_with(engine.queue(), &ways.passing, timeout)?;
    Ok(Some(ready))
}

/// Does what the life's course asks for; true when the loop is to be left.
fn act(step: Step, engine: &mut Engine<TunDevice>, now: Instant, board: &mut Board<'_>) -> bool {
    match step {
        Step::Continue => return false,
        Step::AnnounceReady => {}
        Step::Drain => engine.drain(now),
        Step::Abort => engine.abort_all(now),
        Step::End => return true,
    }
    board.publish(engine, now);
    false
}

fn live_ones(count: u64) -> String {
    plural(
        usize::try_from(count).unwrap_or(usize::MAX),
        "live connection",
    )
}

fn servers_known(snapshot: &Snapshot) -> bool {
    let mut servers = snapshot.pools.iter().flat_map(|pool| &pool.servers);
    servers.all(|server| server.state != ServerState::Unknown)
}

/// Where the loop shows its counters, and what it looks after whenever it does.
struct Board<'a> {
    settings: &'a Settings,
    shared: &'a Shared,
    desk: &'a Desk,
    log: &'a Log,
    ways: Ways,
    fastpath: Fastpath,
    reload: Reload<'a>,
    device_queue: Arc<DeviceQueue>,
    watch: &'a mut dyn FnMut(),
}

impl Board<'_> {
    /// True when what is spliced is to outlive this process, and does.
    fn keeps(&self) -> bool {
        self.settings.instance.on_stop == OnStop::Keep && self.fastpath.outlives()
    }

    /// What is different when the process begins anew, which no connection notices; or why that
    /// cannot be.
    fn may_reload(&mut self, life: &Lifecycle) -> Result<Vec<String>, String> {
        self.reload
            .check(life.is_ending(), self.fastpath.outlives())
    }

    fn publish_unless(&mut self, starting: bool, engine: &mut Engine<TunDevice>, now: Instant) {
        if !starting {
            self.publish(engine, now);
        }
    }

    fn publish(&mut self, engine: &mut Engine<TunDevice>, now: Instant) {
        if self.fastpath.tend() {
            let state = self.fastpath.state();
            tracing::info!("fast path: {}", state.told);
            self.shared.set_fast_path(state);
        }
        self.ways.tend(engine, now);
        engine.catch_up_with_fast_path(now);
        let mut switch = engine.snapshot();
        let kernel = self.fastpath.counters();
        if let Some(kernel) = &kernel {
            add_kernel(&mut switch, kernel);
        }
        self.shared.publish(Counters {
            switch,
            device: *engine.queue().counters(),
            device_queue_dropped: self.device_queue.dropped(),
            kernel,
            log_lines_lost: self.log.lost_lines(),
            reloads_refused: self.reload.refused(),
            orders_refused: self.desk.refused(),
        });
        (self.watch)();
    }
}

/// Adds what the kernel program did. A packet by which it begins or joins a connection ends there,
/// and another one is made of it, as with a SYN.
fn add_kernel(switch: &mut Snapshot, kernel: &fairlead_bpf_loader::Counters) {
    let made = kernel.begun + kernel.joins;
    let ended = kernel.syns + kernel.acks_swallowed + made + kernel.drops.total();
    switch.rx_packets += kernel.fast_packets + ended;
    switch.rx_bytes += kernel.fast_bytes + kernel.ended_bytes;
    switch.tx_packets += kernel.fast_packets + kernel.syn_acks + made;
    switch.tx_bytes += kernel.fast_bytes + kernel.made_bytes;
    switch.fast_packets += kernel.fast_packets;
    switch.fast_bytes += kernel.fast_bytes;
    switch.syns += kernel.syns;
    switch.syn_acks += kernel.syn_acks;
    switch.drops.merge(&kernel.drops);
}

/// How the device was used (the sizes tell how well each system call was filled), and what the
/// log does not say.
fn summarise(counters: &DeviceCounters, log_lines_lost: u64) {
    tracing::info!(
        rx_packets = counters.rx.packets,
        rx_bytes = counters.rx.bytes,
        rx_bytes_per_read = counters.rx.bytes_per_call(),
        rx_super_packets = counters.rx.super_packets,
        rx_empty_reads = counters.rx_empty_reads,
        rx_bad_header = counters.rx_bad_header,
        tx_packets = counters.tx.packets,
        tx_bytes = counters.tx.bytes,
        tx_bytes_per_write = counters.tx.bytes_per_call(),
        tx_failed = counters.tx_failed(),
        "device"
    );
    if log_lines_lost > 0 {
        tracing::warn!(log_lines_lost, "the log is not complete");
    }
}

/// The monotonic clock, counted from the start, or from that of the run whose connections go on.
struct Clock {
    /// As the kernel counts, nanoseconds.
    origin_ns: u64,
}

impl Clock {
    fn start(earlier: Option<u64>) -> Self {
        let origin_ns = earlier.unwrap_or_else(fairlead_bpf_loader::monotonic_ns);
        Self { origin_ns }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + Duration::from_nanos(self.now_ns().saturating_sub(self.origin_ns))
    }

    /// As the kernel counts, since the machine began.
    fn now_ns(&self) -> u64 {
        fairlead_bpf_loader::monotonic_ns()
    }
}
