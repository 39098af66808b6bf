//! What serves orders and health checks beside the switch: the API, the checking thread, and the
//! state that outlives a run.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use fairlead_base::Instant;
use fairlead_bpf_loader::Pins;
use fairlead_datapath::{Admin, Change, Datapath, Departure};

use super::fastpath::Fastpath;
use super::host::Host;
use super::restore::Restore;
use super::{ExitStatus, access, host};
use crate::admin::{self, AdminServer, Shared};
use crate::api::{
    self, AccessLists, Api, Names, RequestQueue, Requests, RuntimeState, path_beside,
};
use crate::checks::Checker;
use crate::config::{Announce, Settings};
use crate::control::{self, ControlQueue, ControlServer};
use crate::handoff::Handoff;
use crate::log;

/// The state of earlier runs.
pub(super) struct State {
    path: Option<PathBuf>,
    state: RuntimeState,
    names: Option<Names>,
}

impl State {
    /// That of the instance of these settings.
    pub(super) fn load(settings: &Settings) -> Self {
        let socket = control::socket_of(&settings.instance.name).ok();
        let path = socket.as_deref().map(path_beside);
        let state = path.as_deref().map(RuntimeState::load);
        Self {
            path,
            state: state.unwrap_or_default(),
            names: None,
        }
    }

    /// Brings servers and access lists of a configuration up to what was ordered.
    pub(super) fn apply_to(&mut self, settings: &mut Settings) {
        for order in self.state.apply_to(&mut settings.switch) {
            tracing::info!("an order is forgotten: {order}");
        }
        self.names = Some(Names::of(&settings.switch));
    }

    /// Tells the switch what was ordered, and what checks showed.
    pub(super) fn order(&self, datapath: &mut Datapath, now: Instant) {
        let names = self.names.iter().flat_map(Names::servers);
        for (id, pool, server) in names {
            let admin = self.state.admin_of(pool, server.endpoint);
            if let Some(admin) = admin.filter(|admin| *admin != Admin::Ready) {
                tracing::info!(pool, server = %server.endpoint, order = admin.name(), "as ordered");
                let departure = Departure::default();
                let change = Change::Admin {
                    server: id,
                    admin,
                    departure,
                };
                let _ = datapath.apply(now, change);
            }
            if let Some(weight) = self.state.weight_of(pool, server.endpoint) {
                let change = Change::Weight { server: id, weight };
                let _ = datapath.apply(now, change);
            }
            if let Some(is_up) = self.state.check_of(pool, server.endpoint) {
                let change = Change::Check { server: id, is_up };
                let _ = datapath.apply(now, change);
            }
        }
    }
}

/// What runs beside the switch.
pub(super) struct Served {
    pub(super) api: Arc<Api>,
    pub(super) requests: RequestQueue,
    pub(super) checker: Checker,
}

impl Served {
    /// Starts it.
    pub(super) fn start(
        settings: &Settings,
        shared: &Arc<Shared>,
        control_queue: &Arc<ControlQueue>,
        state: State,
        fastpath: &mut Fastpath,
    ) -> Result<Self, ExitStatus> {
        let failed = |error| host(format!("health checks cannot be made: {error}"));
        let (requests, queue) = Requests::channel().map_err(failed)?;
        let seed = getrandom::u64().map_err(|error| host(error.to_string()))?;
        let names = Names::of(&settings.switch);
        let known = |server| {
            let (_, pool, found) = names.servers().find(|(id, ..)| *id == server)?;
            state.state.check_of(pool, found.endpoint)
        };
        let config = &settings.switch;
        let board = Arc::clone(shared.checks());
        let checker = Checker::start(config, Arc::clone(&requests), board, seed, known);
        let checker = checker.map_err(failed)?;
        for (id, pool, server) in names.servers() {
            if let Some(admin) = state.state.admin_of(pool, server.endpoint) {
                // The thread has just been started, or there is nothing to check.
                let _ = checker.orders().send((id, admin));
            }
        }
        let lists = access::distinct(&config.services)
            .into_iter()
            .map(Arc::clone);
        let access = AccessLists::new(lists.collect(), &config.services, fastpath.take_access());
        let mut state = state;
        let announces = settings.instance.announce == Announce::Auto;
        shared.set_announces(state.state.announces(announces));
        let api = Api {
            access,
            shared: Arc::clone(shared),
            requests,
            control: Arc::clone(control_queue),
            check_orders: checker.orders(),
            names,
            state: Mutex::new(state.state),
            state_path: state.path,
            handoff: OnceLock::new(),
            sleepers: OnceLock::new(),
            front: OnceLock::new(),
        };
        Ok(Self {
            api: Arc::new(api),
            requests: queue,
            checker,
        })
    }

    /// Starts the admin pages, if they have an address.
    pub(super) fn start_pages(
        &self,
        settings: &Settings,
        shared: &Arc<Shared>,
    ) -> Result<Option<AdminServer>, ExitStatus> {
        let Some(address) = settings.instance.admin else {
            return Ok(None);
        };
        let token = settings.instance.admin_token_file.as_deref();
        let token = token.map(crate::config::token::read).transpose();
        let guard = api::Guard {
            hosts: settings.instance.admin_hosts.clone(),
            token: token.map_err(|why| host(format!("admin_token_file: {why}")))?,
        };
        let api = api::guarded_router(Arc::clone(&self.api), guard);
        match admin::start(address, Arc::clone(shared), Some(api)) {
            Ok(pages) => {
                tracing::info!("admin pages at http://{}/", pages.address());
                Ok(Some(pages))
            }
            Err(error) => {
                log::fatal(&format_args!(
                    "cannot serve the admin pages at {address}: {error}"
                ));
                Err(ExitStatus::Host)
            }
        }
    }

    /// Starts the control socket. It is optional: without it, signals still work.
    fn start_control(
        &self,
        settings: &Settings,
        control_queue: &Arc<ControlQueue>,
    ) -> Option<ControlServer> {
        let path = control::socket_of(&settings.instance.name);
        let start = |path: PathBuf| {
            let api = api::router(Arc::clone(&self.api));
            control::start(&path, Arc::clone(control_queue), api)
        };
        match path.and_then(start) {
            Ok(socket) => {
                tracing::info!("control socket at {}", socket.path().display());
                Some(socket)
            }
            Err(error) => {
                tracing::warn!(
                    "no control socket, so `fairlead reload` and `fairlead drain` do not \
                            work (signals do): {error}"
                );
                None
            }
        }
    }

    /// Starts the control socket, and the one for handoffs.
    pub(super) fn start_sockets(
        &self,
        settings: &Settings,
        control_queue: &Arc<ControlQueue>,
        host: &Host,
        restore: &Restore,
    ) -> Result<(Option<ControlServer>, Option<Handoff>), ExitStatus> {
        host.connect(&self.api.requests);
        if let Some(sleepers) = host.desk() {
            let _ = self.api.sleepers.set(Arc::clone(sleepers));
        }
        let control = self.start_control(settings, control_queue);
        let handoff = self
            .start_handoff(settings, restore.pins.as_ref())
            .map_err(super::host)?;
        Ok((control, handoff))
    }

    /// Starts to adopt connections, if that is configured.
    fn start_handoff(
        &self,
        settings: &Settings,
        pins: Option<&Arc<Pins>>,
    ) -> Result<Option<Handoff>, String> {
        let handoff = Handoff::start(settings, &self.api.requests, pins.cloned())
            .map_err(|why| format!("connections cannot be adopted: {why}"))?;
        if let Some(handoff) = &handoff {
            let _ = self.api.handoff.set(Arc::clone(handoff.carrier()));
        }
        Ok(handoff)
    }

    /// Stops checks, and keeps what they have shown and what was ordered.
    pub(super) fn end(self) {
        drop(self.checker);
        self.api.save_state();
    }
}
