//! `fairlead serve`: runs the switch on its own TUN device until it is stopped.
//!
//! One thread reads, switches and writes packets; the admin pages run on another. Startup order:
//! configuration, leftovers of a crash, obstacles, device, routes, packets. Shutdown order:
//! connections, rules, device.

mod access;
mod announce;
mod clock;
mod device_queue;
mod engine;
mod exits;
pub(crate) mod fastpath;
mod front;
pub(crate) mod host;
pub(crate) mod interfaces;
mod lifecycle;
mod listeners;
mod notify;
mod orders;
mod path_mtu;
pub(crate) mod plan;
mod pressure;
pub(crate) mod redirect_peer;
mod reload;
pub(crate) mod restore;
mod runtime;
mod sleepers;
pub(crate) mod vlans;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use fairlead_base::{Instant, Seed};
use fairlead_bpf_loader::Pins;
use fairlead_datapath::{Datapath, Estate, ServerState, Snapshot};
use fairlead_driver_tun::net::{self, Keeper, Network, NetworkPlan, Obstacle};
use fairlead_driver_tun::{DeviceCounters, EndSignals, Ready, TunDevice};

use crate::admin::{Counters, Identity, ProcessCounters, Shared};
use crate::api::{Api, RequestQueue};
use crate::config::{self, Mode, OnStop, Settings};
use crate::control::{ControlQueue, Phase};
use crate::log::{self, AccessLog, Log, LogArgs};
use crate::screen::plural;

use announce::AnnounceThread;
use clock::Clock;
use device_queue::DeviceQueue;
use engine::Engine;
use fastpath::Fastpath;
use front::FrontThread;
use host::Host;
use lifecycle::{Lifecycle, Step};
use path_mtu::PathMtu;
use pressure::Pressure;
use reload::{LeftOpen, Program, Reload};
use restore::Restore;
use runtime::{Served, State};
pub(crate) use sleepers::SleeperDesk;

/// Arguments of `fairlead serve`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXIT_CODES)]
pub struct ServeArgs {
    /// Configuration file [default: $FAIRLEAD_CONFIG, then /etc/fairlead/fairlead.toml]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// On shutdown, leave spliced connections to the kernel fast path for the next start (same as
    /// `on_stop = "keep"`)
    #[arg(long)]
    pub keep: bool,
    /// Logging options.
    #[command(flatten)]
    pub log: LogArgs,
}

impl ServeArgs {
    /// What a stop does, by these arguments and the configuration.
    fn on_stop(&self, configured: OnStop) -> OnStop {
        if self.keep { OnStop::Keep } else { configured }
    }
}

/// Exit codes in `--help`, see [`ExitStatus`]; `docs/operator-tools.md` has the same text.
const EXIT_CODES: &str = "Exit codes:
  0   stopped on request
  1   the device failed while in service
  2   invalid configuration, log filter or command line
  3   the host does not allow it, or something conflicts with it
  70  internal error";

/// Exit status of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    /// Stopped on request.
    Ok = 0,
    /// The device failed while it was in service.
    DeviceFailed = 1,
    /// Invalid configuration or command line.
    Configuration = 2,
    /// The host does not allow it, or something conflicts with it.
    Host = 3,
    /// Internal error (`EX_SOFTWARE` of sysexits.h).
    Bug = 70,
}

/// What of the process is in RAM, bytes; 0 where the kernel does not say.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = text.lines();
    let kib = lines.find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

impl ExitStatus {
    /// The exit code.
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// Interval for publishing counters, and for polling signals while packets keep arriving.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(250);
/// Counters are published this soon after a request.
const AFTER_REQUEST: Duration = Duration::from_millis(10);

/// Serves until a signal stops it. Call it before starting any thread: it blocks the signals that
/// it handles for all later threads, and logs the panics of all threads.
///
/// Its exit codes are those of [`ExitStatus`]. A reload (SIGHUP) does not return: the process
/// executes the program again.
pub fn run(args: &ServeArgs) -> ExitCode {
    let program = Program::running();
    match serve(args, &program, &mut || {}) {
        Ok(ExitMode::Reload(left)) => program.begin_anew(&left).code().into(),
        Ok(ExitMode::Clean | ExitMode::Keep) => ExitStatus::Ok.code().into(),
        Err(status) => status.code().into(),
    }
}

/// Like [`run`], but calls `watch` inside the loop whenever counters are published, a few times a
/// second, so that a test can disturb a running switch. A reload is refused, because the program is
/// the caller's.
pub fn run_watched(args: &ServeArgs, watch: &mut dyn FnMut()) -> ExitStatus {
    let ended = serve(args, &Program::anothers(), watch);
    ended.err().unwrap_or(ExitStatus::Ok)
}

/// The host does not allow it.
fn host(error: String) -> ExitStatus {
    log::fatal(&error);
    ExitStatus::Host
}

fn serve(
    args: &ServeArgs,
    program: &Program,
    watch: &mut dyn FnMut(),
) -> Result<ExitMode, ExitStatus> {
    let signals = EndSignals::take_over_with_reload();
    // Kept until the end: dropping it waits for the last lines.
    let log = start_log(&args.log)?;
    let signals = signals.map_err(|error| host(format!("cannot receive signals: {error}")))?;
    let (path, mut settings) = load(args)?;
    let mut state = State::load(&settings);
    let reload = Reload::new(program, &path, &settings);
    state.apply_to(&mut settings);
    settings.instance.on_stop = args.on_stop(settings.instance.on_stop);
    let mut restore = Restore::find(&settings).map_err(host)?;
    let fresh = Fresh::of(&restore);
    let mut front = settle(&mut settings);
    let access_log = AccessLog::start(&settings, &log).map_err(host)?;
    let clock = Clock::start(restore.origin_ns);
    let mut datapath = start_datapath(&settings, clock.now(), &restore.estate)?;
    state.order(&mut datapath, clock.now());
    let (device, mut network) = prepare_host(&plan::network_plan(&settings), &restore)?;
    let mut fastpath = start_fastpath(&settings, &mut datapath, &clock, &mut restore)?;
    let parts = (&mut datapath, &mut fastpath, &mut network, &mut front);
    let sockets = Host::start(&settings, parts, restore.pins.as_ref(), clock.now());
    let (keeper, device_queue) = keep_network(&settings, &network, &device);
    let shared = Arc::new(Shared::new(Identity::of(&settings, fastpath.state())));
    let control_queue = Arc::new(ControlQueue::new(&settings.instance.name, clock.now_ns()));
    let mut served = Served::start(&settings, &shared, &control_queue, state, &mut fastpath)?;
    // Kept until the end. The pages show "starting" until counters are published.
    let _pages = served.start_pages(&settings, &shared)?;
    // Only now: a failed start must not leave anything behind.
    keep_device(&device, &restore)?;
    let _sockets = served.start_sockets(&settings, &control_queue, &sockets, &restore)?;
    fresh.keep();
    let (tap, capture) = (fastpath.take_capture(), shared.capture());
    capture.open(&settings, &datapath, clock.origin_ns, tap);
    let mut engine = Engine::new(datapath, device, Arc::clone(capture));
    let mut context = LoopContext {
        settings: &settings,
        shared: &shared,
        api: &served.api,
        control_queue: &control_queue,
        log: &log,
        access_log,
        requests: &mut served.requests,
        path_mtu: PathMtu::start(&settings, &mut engine, clock.now()),
        announce: AnnounceThread::start(&settings, &shared, chance_seed()?),
        fastpath,
        front: front.start(&settings, &served.api, chance_seed()?),
        host: sockets,
        reload,
        device_queue,
        watch,
    };
    let work = || run_loop(&mut engine, &settings, &clock, &signals, &mut context);
    let worked = catch_unwind(AssertUnwindSafe(work));
    context.access_log.finish(clock.now());
    let clean = matches!(worked, Ok(Ok(ExitMode::Clean)));
    let worked = worked.map(|mode| mode.map(|mode| context.left_open(mode, engine.queue())));
    drop(keeper);
    served.end();
    clean_up(clean, restore.pins.as_deref(), engine.queue(), network);
    summarise(engine.queue().counters(), log.lost_lines());
    drop(engine); // also removes the device and its routes, unless they are persistent
    worked.unwrap_or_else(|_| {
        log::fatal(&"internal error in fairlead; please report the lines above");
        Err(ExitStatus::Bug)
    })
}

/// Decides what the configuration leaves to the machine.
fn settle(settings: &mut Settings) -> front::Prepared {
    interfaces::settle(settings);
    FrontThread::prepare(&mut settings.switch)
}

/// Has the device outlive this process where what is pinned does.
fn keep_device(device: &TunDevice, restore: &Restore) -> Result<(), ExitStatus> {
    let persistent = device.set_persistent(restore.pins.is_some());
    persistent.map_err(|error| host(format!("device {}: {error}", device.name())))
}

/// Removes what this run created, or leaves it for the next start: if configured, and after an
/// error, because the kernel keeps forwarding spliced connections.
fn clean_up(clean: bool, pins: Option<&Pins>, device: &TunDevice, network: Network) {
    if !clean && pins.is_some() {
        return network.leave();
    }
    // The kernel program stops first: packets that it passes on need the device.
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

/// What happens to spliced connections at an orderly shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExitMode {
    /// None are left.
    Clean,
    /// They stay with the kernel.
    Keep,
    /// They stay with the kernel while this process executes itself again.
    Reload(LeftOpen),
}

/// Pins created by this start. They are removed if the start fails.
struct Fresh(Option<Arc<Pins>>);

impl Fresh {
    fn of(restore: &Restore) -> Self {
        Self(match restore.origin_ns {
            Some(_) => None,
            None => restore.pins.clone(),
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

fn start_log(args: &LogArgs) -> Result<Log, ExitStatus> {
    let log = args.start().map_err(|error| {
        log::print_line(&error.to_string());
        ExitStatus::Configuration
    })?;
    log.take_over_panics();
    Ok(log)
}

fn load(args: &ServeArgs) -> Result<(PathBuf, Settings), ExitStatus> {
    let path = config::path_or_standard(args.config.as_deref());
    if let Some(advice) = config::advice(args.config.as_deref(), &path) {
        tracing::warn!("{advice}");
    }
    match config::load(&path) {
        Ok(loaded) => {
            if !loaded.warnings.is_empty() {
                log::print_findings(&loaded.warnings);
            }
            Ok((path, loaded.settings))
        }
        Err(error) => {
            log::print_load_error(&error);
            Err(ExitStatus::Configuration)
        }
    }
}

fn start_datapath(
    settings: &Settings,
    now: Instant,
    estate: &Estate,
) -> Result<Datapath, ExitStatus> {
    let seed = chance_seed()?;
    let refuse = |error: &dyn std::fmt::Display| {
        log::fatal(error);
        ExitStatus::Configuration
    };
    let mut datapath = Datapath::resume(settings.switch.clone(), seed, now, estate)
        .map_err(|error| refuse(&error))?;
    datapath
        .set_tcb_cache(settings.tcb_cache.as_ref(), seed.word("TCB cache", 0))
        .map_err(|error| refuse(&error))?;
    Ok(datapath)
}

fn chance_seed() -> Result<Seed, ExitStatus> {
    let chance = || {
        getrandom::u64().map_err(|error| {
            log::fatal(&format_args!(
                "cannot get random numbers from the kernel: {error}"
            ));
            ExitStatus::Host
        })
    };
    Ok(Seed::new([chance()?, chance()?]))
}

/// Removes leftovers, checks for obstacles, and creates the device, routes and rules. Logs all
/// obstacles if there are any.
fn prepare_host(plan: &NetworkPlan, restore: &Restore) -> Result<(TunDevice, Network), ExitStatus> {
    let refuse = |error: &dyn std::fmt::Display| {
        log::fatal(error);
        ExitStatus::Host
    };
    for leftover in net::remove_leftovers().map_err(|error| refuse(&error))? {
        tracing::warn!("removed a leftover of an earlier run: {leftover}");
    }
    let mut plan = plan.clone();
    let open = restore::open_device(&plan);
    if open.is_none() && restore::is_running(&plan).map_err(|error| refuse(&error))? {
        return Err(refuse(&format!(
            "this instance is already running: a process has its device {} open; stop that process \
             first, or give this instance its own `instance.name`, device and addresses",
            plan.device
        )));
    }
    restore::find_device(&mut plan, open.is_some()).map_err(|error| refuse(&error))?;
    let (plan, obstacles) = obstacles_of(plan, restore).map_err(|error| refuse(&error))?;
    for obstacle in &obstacles {
        refuse(obstacle);
    }
    // The device is tried even if there are other obstacles, so that all of them are reported at
    // once, but none twice.
    if obstacles
        .iter()
        .any(|obstacle| matches!(obstacle, Obstacle::NameTaken(_)))
    {
        return Err(ExitStatus::Host);
    }
    let device = match (open, plan.resumed) {
        (Some(device), _) => Ok(device),
        (None, true) => TunDevice::resume(&plan.device),
        (None, false) => TunDevice::open(&plan.device),
    };
    let device = device.map_err(|error| refuse(&error))?;
    if !obstacles.is_empty() {
        return Err(ExitStatus::Host);
    }
    let network = net::apply(&plan).map_err(|error| refuse(&error))?;
    Ok((device, network))
}

/// The plan extended by what an earlier run's connections need, with its obstacles. Without the
/// extension if only the extension has obstacles.
fn obstacles_of(
    plan: NetworkPlan,
    restore: &Restore,
) -> Result<(NetworkPlan, Vec<Obstacle>), net::NetError> {
    let extended = restore.extend(&plan);
    let obstacles = net::check(&extended)?;
    if obstacles.is_empty() {
        return Ok((extended, obstacles));
    }
    let own = net::check(&plan)?;
    if own.is_empty() {
        for obstacle in &obstacles {
            tracing::warn!("connections of an earlier run may break: {obstacle}");
        }
    }
    Ok((plan, own))
}

/// Starts the kernel fast path, if configured and available. Logs the mode, and why a better one is
/// not used.
fn start_fastpath(
    settings: &Settings,
    datapath: &mut Datapath,
    clock: &Clock,
    restore: &mut Restore,
) -> Result<Fastpath, ExitStatus> {
    let started = Fastpath::start(settings, datapath, clock.origin_ns, restore.pins.as_ref());
    let (fastpath, table) = started.map_err(|fastpath::Unavailable(why)| {
        let mode = settings.fastpath.mode.name();
        log::fatal(&format_args!(
            "cannot start the fast path with mode = \"{mode}\": {why}"
        ));
        ExitStatus::Host
    })?;
    if let Some(table) = table {
        datapath.set_fast_path(clock.now(), Box::new(table));
    }
    if !fastpath.is_in_kernel() {
        restore.without_kernel();
    }
    match settings.fastpath.mode == Mode::Engine || fastpath.is_in_kernel() {
        true => tracing::info!("fast path: {}", fastpath.state().told),
        // A warning: otherwise a mistyped interface name would only show as CPU load.
        false => tracing::warn!("no kernel fast path: {}", fastpath.state().told),
    }
    if restore.origin_ns.is_some() {
        restore::tell(&datapath.adopt(clock.now(), &restore.estate));
        restore.estate = Estate::default();
    }
    // The kernel's types were read, and so was what an earlier run has left.
    fairlead_os_memory::give_back_free();
    Ok(fastpath)
}

fn announce_host(settings: &Settings, network: &Network) {
    for line in network.made() {
        tracing::info!("created {line}");
    }
    for service in &settings.switch.services {
        for listen in &service.listen {
            let protocol = config::protocol_name(service.protocol);
            tracing::info!("service {} listens on {listen} ({protocol})", service.name);
        }
    }
}

/// Interval for checking routes, rules and the drop counter of the device's queue.
const NETWORK_INTERVAL: Duration = Duration::from_secs(5);

/// Restores routes and rules that other programs remove, and logs that. The same thread reads the
/// device queue's drop counter.
fn keep_network(
    settings: &Settings,
    network: &Network,
    device: &TunDevice,
) -> (Option<Keeper>, Arc<DeviceQueue>) {
    announce_host(settings, network);
    let device_queue = Arc::new(DeviceQueue::of(device.name()));
    let looked_at = Arc::clone(&device_queue);
    let mut failing = String::new();
    let tell = move |outcome: Result<Vec<String>, net::NetError>| {
        looked_at.look();
        match outcome {
            Ok(mended) => {
                for line in mended {
                    tracing::warn!("restored after another program removed it: {line}");
                }
                failing.clear();
            }
            Err(error) => {
                let error = error.to_string();
                if error != failing {
                    tracing::error!("packets may not reach the switch: {error}");
                }
                failing = error;
            }
        }
    };
    let keeper = Keeper::start(network, NETWORK_INTERVAL, tell)
        .inspect_err(|error| tracing::warn!("routes and rules are not monitored: {error}"))
        .ok();
    (keeper, device_queue)
}

/// Writes one line to standard output, for people and for scripts that wait for it. With JSON lines
/// or an access log there, it is in the log alone.
fn announce_ready(settings: &Settings) {
    let services = settings.switch.services.iter();
    let listen: Vec<String> = services
        .flat_map(|one| one.listen.iter().map(ToString::to_string))
        .collect();
    let device = &settings.network.device;
    let line = format!(
        "ready: {} on {}, device {device}",
        settings.instance.name,
        listen.join(" ")
    );
    tracing::info!("{line}");
    notify::ready();
    if log::is_json() || settings.log.target == config::Target::Stdout {
        return;
    }
    // Standard output may be closed.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("{line}\n").as_bytes());
}

/// The packet loop. It waits when a round has emptied the queue.
fn run_loop(
    engine: &mut Engine<TunDevice>,
    settings: &Settings,
    clock: &Clock,
    signals: &EndSignals,
    context: &mut LoopContext<'_>,
) -> Result<ExitMode, ExitStatus> {
    let device_failed = |error: std::io::Error| {
        let device = &settings.network.device;
        log::fatal(&format_args!("device {device} failed: {error}"));
        ExitStatus::DeviceFailed
    };
    let mut life = Lifecycle::new(clock.now(), settings.instance.drain_timeout);
    let mut publish_at = clock.now();
    let mut pressure = Pressure::default();
    loop {
        let now = clock.now();
        let received = engine.round(now, &mut context.access_log.at(now));
        let received = received.map_err(device_failed)?;
        if let Some(refusal) = pressure.handle_round(now, received, engine.strangers()) {
            engine.refuse_ahead(refusal);
        }
        let known = || servers_known(&engine.snapshot());
        let step = life.handle_round(now, context.live(engine), known);
        if act(step, engine, now, context) {
            break;
        }
        if step == Step::AnnounceReady {
            announce_ready(settings); // after the admin pages show it
        }
        let publishing = now >= publish_at;
        if publishing {
            publish_at = now + PUBLISH_INTERVAL;
            context.publish_unless(life.is_starting(), engine, now);
            orders::tell(&life, engine, now, context);
        }
        let due = [life.poll_timeout(), Some(publish_at)];
        let ready = wait(engine, clock, signals, context, due).map_err(device_failed)?;
        let ready = ready.unwrap_or(Ready::all_if(publishing));
        if ready.passing {
            context.path_mtu.hear(engine, clock.now());
        }
        let requested = ready.requests || context.requests.is_waiting();
        if requested && engine.handle_requests(clock.now(), context.requests) {
            // So that lists show what was ordered.
            publish_at = publish_at.min(clock.now() + AFTER_REQUEST);
        }
        let mut exit_mode = None;
        if ready.signal
            && let Some(signal) = signals.poll_signal().map_err(device_failed)?
        {
            exit_mode = orders::handle_signal(signal, &mut life, engine, now, context);
        }
        if publishing && exit_mode.is_none() {
            exit_mode = orders::handle_order(&mut life, engine, now, context);
        }
        match exit_mode {
            None => {}
            Some(ExitMode::Clean) => break,
            Some(exit_mode) => {
                engine.learn_all_ends(clock.now(), &mut context.access_log.at(now));
                return Ok(exit_mode);
            }
        }
    }
    context.publish(engine, clock.now());
    orders::tell_end(&life, context, Phase::Ended);
    say_stopped(life.cut_off(), context);
    Ok(ExitMode::Clean)
}

fn say_stopped(cut_off: u64, context: &LoopContext<'_>) {
    context.front.forget();
    match cut_off {
        0 => tracing::info!("stopped"),
        cut_off => tracing::warn!("stopped; {} reset", live_ones(cut_off)),
    }
}

/// Waits for the next packet, signal or timeout. `None` without waiting while packets keep
/// arriving; signals and orders are then polled whenever counters are published.
fn wait(
    engine: &Engine<TunDevice>,
    clock: &Clock,
    signals: &EndSignals,
    context: &LoopContext<'_>,
    due: [Option<Instant>; 2],
) -> std::io::Result<Option<Ready>> {
    if !engine.has_drained() {
        return Ok(None);
    }
    let due = due.into_iter().chain([engine.poll_timeout()]);
    let timeout = due.flatten().min().map(|due| due.since(clock.now()));
    let passing = &context.path_mtu.passing;
    let ready = signals.wait_with(engine.queue(), passing, context.requests, timeout)?;
    Ok(Some(ready))
}

/// Carries out a lifecycle step. True if the loop must end.
fn act(
    step: Step,
    engine: &mut Engine<TunDevice>,
    now: Instant,
    context: &mut LoopContext<'_>,
) -> bool {
    match step {
        Step::Continue => return false,
        Step::AnnounceReady => {}
        Step::Drain => {
            context.front.drain();
            engine.drain(now);
        }
        Step::Abort => {
            context.front.abort();
            engine.abort_all(now);
        }
        Step::End => return true,
    }
    context.publish(engine, now);
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

/// What the packet loop needs besides the engine: where it publishes counters, and what it
/// maintains at the same interval.
struct LoopContext<'a> {
    settings: &'a Settings,
    shared: &'a Shared,
    api: &'a Api,
    control_queue: &'a ControlQueue,
    log: &'a Log,
    access_log: AccessLog<'a>,
    requests: &'a mut RequestQueue,
    path_mtu: PathMtu,
    announce: AnnounceThread,
    fastpath: Fastpath,
    host: Host,
    front: FrontThread,
    reload: Reload<'a>,
    device_queue: Arc<DeviceQueue>,
    watch: &'a mut dyn FnMut(),
}

impl LoopContext<'_> {
    /// Connections that are being set up, spliced, or served by the front.
    fn live(&self, engine: &Engine<TunDevice>) -> u64 {
        engine.live_connections() + self.front.clients()
    }

    /// For a reload, leaves open what the next run is to go on with: packets wait in the device.
    fn left_open(&mut self, mode: ExitMode, device: &TunDevice) -> ExitMode {
        match mode {
            ExitMode::Reload(_) => ExitMode::Reload(LeftOpen {
                device: device.leave_open().ok(),
                clients: self.front.leave(self.requests),
            }),
            other => other,
        }
    }

    /// True if spliced connections are to outlive this process, and can.
    fn keeps(&self) -> bool {
        self.settings.instance.on_stop == OnStop::Keep && self.fastpath.outlives()
    }

    /// The changes that a reload would make, or why it is not possible.
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
        self.access_log.tend(now);
        self.fastpath.serve_local(&self.announce.seen().local());
        if self.fastpath.tend() {
            let state = self.fastpath.state();
            tracing::info!("fast path: {}", state.told);
            self.shared.set_fast_path(state);
            self.host.follow(&self.fastpath);
        }
        self.path_mtu.tend(engine, now);
        engine.catch_up_with_fast_path(now);
        let mut switch = engine.snapshot();
        let mut kernel = self.fastpath.counters();
        if let Some(kernel) = &mut kernel {
            self.host.add_to(kernel);
            add_kernel(&mut switch, kernel);
            self.fastpath.add_access_denied(&mut switch);
        }
        let mut process = ProcessCounters {
            log_lines_lost: self.log.lost_lines(),
            access_log_lines_lost: self.access_log.lost_lines(),
            reloads_refused: self.reload.refused(),
            orders_refused: self.control_queue.refused(),
            announce_conflicts: self.announce.seen().conflicts(),
            device_queue_dropped: self.device_queue.dropped(),
            resident_bytes: resident_bytes(),
            ..ProcessCounters::default()
        };
        self.host.count(&mut process);
        let front = self
            .front
            .exchange(engine, &mut switch, &mut self.access_log, now);
        self.shared.publish(Counters {
            switch,
            process,
            announced: self.announce.seen().announced(),
            listeners: self.host.listeners(),
            handoff: self.api.handoff.get().map(|one| one.counted()),
            device: *engine.queue().counters(),
            kernel,
            front,
            tcb_cache: engine.tcb_cache_report(),
        });
        (self.watch)();
    }
}

/// Adds the kernel program's counters. A packet with which it begins or joins a connection is
/// consumed, and a new one is generated, as for a SYN.
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

/// Logs how the device was used (bytes per call show how full the batches were), and how many log
/// lines were lost.
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
        tracing::warn!(log_lines_lost, "the log is incomplete");
    }
}
