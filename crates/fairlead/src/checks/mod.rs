//! Health checks, made from a thread of their own (`crates/check` decides when, and what results
//! mean). They are ordinary connections from this machine: they take the host's routes.

mod probe;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use fairlead_base::{Endpoint, Instant};
use fairlead_check::{Member, Schedule, TargetId};
use fairlead_datapath::{Admin, Change, ServerId};
use fairlead_splice::config::{Config, ProxyVersion};
use tokio::sync::{mpsc, oneshot};

use crate::admin::{CheckStatus, up_or_down};
use crate::api::{Request, Requests};
use probe::probe;

/// What all checks have shown, by server.
#[derive(Debug, Default)]
pub(crate) struct CheckBoard(RwLock<BTreeMap<ServerId, CheckStatus>>);

impl CheckBoard {
    /// What is known of a server; `None` where it was not checked yet, or is not to be.
    pub(crate) fn of(&self, server: ServerId) -> Option<CheckStatus> {
        let board = self.0.read().unwrap_or_else(PoisonError::into_inner);
        board.get(&server).cloned()
    }

    fn set(&self, server: ServerId, status: CheckStatus) {
        let mut board = self.0.write().unwrap_or_else(PoisonError::into_inner);
        board.insert(server, status);
    }
}

/// The thread that checks. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Checker {
    orders: mpsc::UnboundedSender<(ServerId, Admin)>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Checker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A server that is to be checked.
struct Checked {
    server: ServerId,
    /// Its name in logs.
    name: String,
    endpoint: Endpoint,
    check: fairlead_check::Check,
    proxy: Option<ProxyVersion>,
}

fn checked(config: &Config) -> Vec<Checked> {
    let servers = config
        .pools
        .iter()
        .flat_map(|pool| pool.servers.iter().map(move |server| (pool, server)));
    let checked = (0..=u16::MAX)
        .zip(servers)
        .filter_map(|(id, (pool, server))| {
            Some(Checked {
                server: ServerId(id),
                name: format!("{}/{}", pool.name, server.endpoint),
                endpoint: server.endpoint,
                check: pool.check.clone().filter(|_| server.check)?,
                proxy: pool.proxy_protocol,
            })
        });
    checked.collect()
}

impl Checker {
    /// Starts checking the servers of a configuration; `known` has what an earlier run knew of
    /// them.
    pub(crate) fn start(
        config: &Config,
        requests: Arc<Requests>,
        board: Arc<CheckBoard>,
        seed: u64,
        known: impl Fn(ServerId) -> Option<bool>,
    ) -> io::Result<Self> {
        let (orders, ordered) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel();
        let servers = checked(config);
        let mut this = Self {
            orders,
            stop: Some(stop),
            thread: None,
        };
        if servers.is_empty() {
            return Ok(this);
        }
        let begun = std::time::Instant::now();
        let mut schedule = Schedule::new(seed);
        let mut targets = BTreeMap::new();
        let (mut proxies, mut names) = (BTreeMap::new(), BTreeMap::new());
        for one in servers {
            let member = Member(one.server.0);
            let up = known(one.server);
            let target = schedule.add(Instant::ZERO, member, one.endpoint, &one.check, up);
            targets.insert(one.server, target);
            names.insert(one.server, one.name);
            proxies.insert(target, one.proxy);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let run = Run {
            schedule,
            targets,
            names,
            proxies,
            board,
            requests,
            begun,
        };
        let thread = std::thread::Builder::new()
            .name("fairlead-check".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = run.run(ordered) => {}
                        _ = stopped => {}
                    }
                });
                runtime.shutdown_background();
            })?;
        this.thread = Some(thread);
        Ok(this)
    }

    /// Says what was ordered of servers: those in maintenance are not checked.
    pub(crate) fn orders(&self) -> mpsc::UnboundedSender<(ServerId, Admin)> {
        self.orders.clone()
    }
}

struct Run {
    schedule: Schedule,
    targets: BTreeMap<ServerId, TargetId>,
    names: BTreeMap<ServerId, String>,
    proxies: BTreeMap<TargetId, Option<ProxyVersion>>,
    board: Arc<CheckBoard>,
    requests: Arc<Requests>,
    begun: std::time::Instant,
}

/// A check that has ended.
struct Ended {
    target: TargetId,
    outcome: Result<(), String>,
    took: Duration,
}

impl Run {
    fn now(&self) -> Instant {
        Instant::ZERO + self.begun.elapsed()
    }

    async fn run(mut self, mut ordered: mpsc::UnboundedReceiver<(ServerId, Admin)>) {
        let (ends, mut ended) = mpsc::unbounded_channel();
        let mut paused = BTreeMap::new();
        loop {
            while let Some(target) = self.schedule.poll_due(self.now()) {
                self.begin(target, ends.clone());
            }
            let due = self.schedule.poll_timeout();
            let due = due.map(|due| self.begun + Duration::from_millis(due.as_millis()));
            let due = due.unwrap_or_else(|| std::time::Instant::now() + Duration::from_secs(60));
            tokio::select! {
                Some(end) = ended.recv() => self.handle(end),
                Some((server, admin)) = ordered.recv() => {
                    let pause = admin == Admin::Maintenance;
                    let was = paused.insert(server, pause).unwrap_or(false);
                    if let Some(&target) = self.targets.get(&server)
                        && was != pause
                    {
                        self.schedule.set_paused(self.now(), target, pause);
                    }
                }
                () = tokio::time::sleep_until(due.into()) => {}
            }
        }
    }

    fn begin(&self, target: TargetId, ends: mpsc::UnboundedSender<Ended>) {
        let (endpoint, check) = self.schedule.target(target);
        let (check, proxy) = (check.clone(), self.proxies.get(&target).copied().flatten());
        let address = endpoint.to_socket();
        tokio::spawn(async move {
            let begun = std::time::Instant::now();
            let outcome = probe(address, &check, proxy).await;
            let took = begun.elapsed();
            // Nobody hears it once checks have stopped.
            let _ = ends.send(Ended {
                target,
                outcome,
                took,
            });
        });
    }

    fn handle(&mut self, end: Ended) {
        let now = self.now();
        let passed = end.outcome.is_ok();
        self.schedule.handle_result(now, end.target, passed);
        let (passed, failed) = self.schedule.results(end.target);
        let problem = end.outcome.err().unwrap_or_default();
        while let Some(change) = self.schedule.poll_change() {
            let server = ServerId(change.member.0);
            let status = CheckStatus {
                state: up_or_down(change.is_up).to_owned(),
                passed,
                failed,
                seconds: end.took.as_secs_f64(),
                problem: problem.clone(),
            };
            self.board.set(server, status);
            if change.is_news {
                self.tell(server, change.is_up, &problem);
            }
        }
    }

    fn tell(&self, server: ServerId, is_up: bool, problem: &str) {
        let change = Change::Check { server, is_up };
        let request = Request::Change {
            change,
            reply: None,
        };
        let server = self.names.get(&server).map_or("?", String::as_str);
        match self.requests.make(request) {
            Ok(()) if is_up => tracing::info!(server, "health checks pass"),
            Ok(()) => tracing::warn!(server, problem, "health checks fail"),
            Err(error) => tracing::error!(server, %error, "a health check was not heeded"),
        }
    }
}
