//! `/v1/servers` and `/v1/pools/{pool}/servers`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use fairlead_datapath::{Admin, Change, Departure, ServerId};
use fairlead_splice::config::Server;
use serde::Deserialize;

use super::answers::{Problem, ServerRow};
use super::state::{Configured, ORDERS_MAX, ServerOrder, admin_named};
use super::{Api, names};
use crate::admin::Status;

/// Weights, at most; that of the configuration file.
const WEIGHT_MAX: u16 = 1_000;

type Answer<T> = Result<Json<T>, Problem>;

pub(super) async fn list_all(State(api): State<Arc<Api>>) -> Answer<Vec<ServerRow>> {
    rows(&api, |_| true).map(Json)
}

pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Path(pool): Path<String>,
) -> Answer<Vec<ServerRow>> {
    api.names.pool(&pool).map_err(Problem::not_found)?;
    rows(&api, |row| row.pool == pool).map(Json)
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Path((pool, server)): Path<(String, String)>,
) -> Answer<ServerRow> {
    let (id, _) = api
        .names
        .server(&pool, &server)
        .map_err(Problem::not_found)?;
    row(&api, id).map(Json)
}

/// An order about a server.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Order {
    /// `ready`, `drain` or `maint`.
    admin: Option<String>,
    weight: Option<u16>,
    /// Close connections on which nothing passes for so long.
    close_idle_seconds: Option<f64>,
    /// Reset what is left after so long.
    reset_after_seconds: Option<f64>,
    /// Forget all orders about this server.
    reset: bool,
}

pub(super) async fn change(
    State(api): State<Arc<Api>>,
    Path((pool, server)): Path<(String, String)>,
    order: Result<Json<Order>, JsonRejection>,
) -> Answer<ServerRow> {
    let (id, known) = api
        .names
        .server(&pool, &server)
        .map_err(Problem::not_found)?;
    let order = body(order)?;
    let ordered = Instant::now();
    let mut admin = order.admin.as_deref().map(|name| {
        let wrong = || Problem::bad_request(format!("admin {name:?}: ready, drain or maint"));
        admin_named(name).ok_or_else(wrong)
    });
    let mut weight = order.weight;
    if order.reset {
        admin = Some(Ok(Admin::Ready));
        weight = Some(api.state().configured_weight(&pool, &known));
    }
    if let Some(weight) = weight {
        weight_fits(weight)?;
        let server = id;
        api.change(Change::Weight { server, weight }).await?;
    }
    let admin = admin.transpose()?;
    if let Some(admin) = admin {
        let departure = Departure {
            close_idle: order.close_idle_seconds.map(duration).transpose()?,
            reset_after: order.reset_after_seconds.map(duration).transpose()?,
        };
        let change = Change::Admin {
            server: id,
            admin,
            departure,
        };
        api.change(change).await?;
        // The checking thread ends with the process.
        let _ = api.check_orders.send((id, admin));
    }
    api.published_after(ordered).await;
    let mut state = api.state();
    state.note(&pool, &known, |kept| {
        if let Some(admin) = admin {
            admin.name().clone_into(&mut kept.admin);
        }
        if let Some(weight) = weight {
            kept.weight = Some(weight);
        }
    })?;
    if order.reset {
        state.forget(&pool, &known);
    }
    api.save(&mut state);
    drop(state);
    row(&api, id).map(Json)
}

/// A server to be added.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewServer {
    address: String,
    #[serde(default = "one")]
    weight: u16,
    #[serde(default)]
    backup: bool,
}

fn one() -> u16 {
    1
}

pub(super) async fn add(
    State(api): State<Arc<Api>>,
    Path(pool): Path<String>,
    new: Result<Json<NewServer>, JsonRejection>,
) -> Answer<Vec<String>> {
    api.names.pool(&pool).map_err(Problem::not_found)?;
    let new = body(new)?;
    let endpoint = names::endpoint(&new.address).map_err(Problem::bad_request)?;
    weight_fits(new.weight)?;
    if api.names.server(&pool, &new.address).is_ok() {
        let why = format!("{endpoint} is in pool {pool} already");
        return Err(Problem::conflict(why));
    }
    let added = ServerOrder {
        pool,
        server: endpoint.to_string(),
        configured: None,
        admin: Admin::Ready.name().to_owned(),
        weight: Some(new.weight),
        backup: new.backup,
        removed: false,
    };
    let line = format!("pool {}: server {endpoint} is added", added.pool);
    reload_with(&api, line, |state| state.push(added)).await
}

pub(super) async fn remove(
    State(api): State<Arc<Api>>,
    Path((pool, server)): Path<(String, String)>,
) -> Answer<Vec<String>> {
    let (_, known) = api
        .names
        .server(&pool, &server)
        .map_err(Problem::not_found)?;
    let of_pool = api.names.servers().filter(|(_, name, _)| *name == pool);
    if of_pool.count() == 1 {
        let why = format!("{server} is the only server of pool {pool}");
        return Err(Problem::conflict(why));
    }
    let line = format!("pool {pool}: server {server} is removed");
    reload_with(&api, line, |state| state.remove(&pool, &known)).await
}

/// Changes which servers there are: the state is changed, and the process restarts with it, while
/// the kernel goes on forwarding. Without the restart the state stays as it was.
async fn reload_with(
    api: &Api,
    line: String,
    change: impl FnOnce(&mut super::RuntimeState) -> Result<(), Problem>,
) -> Answer<Vec<String>> {
    let before = api.state().clone();
    {
        let mut state = api.state();
        change(&mut state)?;
        api.save(&mut state);
    }
    let outcome = match api.control.order_reload() {
        Ok(outcome) => api.wait(outcome).await,
        Err(why) => Err(Problem::unavailable(why.to_owned())),
    };
    match outcome {
        // What has changed in the file comes behind it.
        Ok(Ok(changes)) => Ok(Json([vec![line], changes].concat())),
        failed => {
            let mut state = api.state();
            *state = before;
            api.save(&mut state);
            Err(match failed {
                Ok(Err(why)) => Problem::conflict(why),
                Err(problem) => problem,
                Ok(Ok(_)) => Problem::unavailable(String::new()),
            })
        }
    }
}

impl super::RuntimeState {
    fn find(&mut self, pool: &str, server: &Server) -> Option<&mut ServerOrder> {
        let name = server.endpoint.to_string();
        let mut orders = self.orders.iter_mut();
        orders.find(|one| one.pool == pool && one.server == name)
    }

    fn push(&mut self, order: ServerOrder) -> Result<(), Problem> {
        if self.orders.len() >= ORDERS_MAX {
            let why =
                format!("{ORDERS_MAX} orders about servers are kept; change the configuration");
            return Err(Problem::conflict(why));
        }
        let same = |one: &ServerOrder| one.pool == order.pool && one.server == order.server;
        self.orders.retain(|one| !same(one));
        self.orders.push(order);
        Ok(())
    }

    /// Keeps what was ordered of a server.
    fn note(
        &mut self,
        pool: &str,
        server: &Server,
        change: impl FnOnce(&mut ServerOrder),
    ) -> Result<(), Problem> {
        if let Some(order) = self.find(pool, server) {
            change(order);
            return Ok(());
        }
        let mut order = ServerOrder {
            pool: pool.to_owned(),
            server: server.endpoint.to_string(),
            configured: Some(Configured::from(server)),
            admin: Admin::Ready.name().to_owned(),
            weight: None,
            backup: server.backup,
            removed: false,
        };
        change(&mut order);
        self.push(order)
    }

    /// Forgets what was ordered of a server, unless it was added by an order.
    fn forget(&mut self, pool: &str, server: &Server) {
        let name = server.endpoint.to_string();
        self.orders
            .retain(|one| one.configured.is_none() || one.pool != pool || one.server != name);
    }

    fn remove(&mut self, pool: &str, server: &Server) -> Result<(), Problem> {
        if let Some(order) = self.find(pool, server)
            && order.configured.is_none()
        {
            let name = server.endpoint.to_string();
            self.orders
                .retain(|one| one.pool != pool || one.server != name);
            return Ok(());
        }
        self.note(pool, server, |order| order.removed = true)
    }

    /// The weight of a server in the configuration.
    fn configured_weight(&mut self, pool: &str, server: &Server) -> u16 {
        let order = self.find(pool, server);
        let configured = order.and_then(|order| order.configured);
        configured.map_or(server.weight, Configured::weight)
    }
}

fn weight_fits(weight: u16) -> Result<(), Problem> {
    if weight > WEIGHT_MAX {
        let why = format!("weight {weight}: at most {WEIGHT_MAX}");
        return Err(Problem::bad_request(why));
    }
    Ok(())
}

fn duration(seconds: f64) -> Result<Duration, Problem> {
    let wrong = || Problem::bad_request(format!("{seconds} seconds: 0 to 86400 are possible"));
    if !(0.0..=86_400.0).contains(&seconds) {
        return Err(wrong());
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

/// The body of a request, or what is wrong with it.
pub(super) fn body<T>(read: Result<Json<T>, JsonRejection>) -> Result<T, Problem> {
    match read {
        Ok(Json(body)) => Ok(body),
        Err(why) => Err(Problem::new(why.status(), why.body_text())),
    }
}

fn row(api: &Api, id: ServerId) -> Result<ServerRow, Problem> {
    let (_, pool, server) = api
        .names
        .servers()
        .find(|(one, ..)| *one == id)
        .ok_or_else(|| Problem::not_found("no such server".to_owned()))?;
    let endpoint = server.endpoint.to_string();
    let mut rows = rows(api, |row| row.pool == pool && row.server == endpoint)?;
    rows.pop()
        .ok_or_else(|| Problem::not_found("no such server".to_owned()))
}

/// The servers as the switch published them last.
fn rows(api: &Api, wanted: impl Fn(&ServerRow) -> bool) -> Result<Vec<ServerRow>, Problem> {
    let starting = || Problem::unavailable("the switch is starting".to_owned());
    let latest = api.shared.latest().ok_or_else(starting)?;
    let status = Status::of(&api.shared, &latest);
    let servers = status
        .pools
        .iter()
        .flat_map(|pool| pool.servers.iter().map(move |one| (pool, one)));
    let rows = servers.map(|(pool, server)| ServerRow {
        pool: pool.name.clone(),
        server: server.endpoint.clone(),
        admin: server.admin.clone(),
        unavailable: server.unavailable.clone(),
        weight: server.weight,
        effective_weight: server.weight_eighths as f64 / 8.0,
        backup: server.backup,
        active: server.active,
        total: server.total,
        failures: server.failures,
        ejections: server.ejections,
        check: server.check.clone(),
    });
    Ok(rows.filter(wanted).collect())
}
