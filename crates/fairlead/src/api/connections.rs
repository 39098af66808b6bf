//! `/v1/connections`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use fairlead_datapath::{Change, Connection, Selection};
use tokio::sync::oneshot;

use super::answers::{ConnectionList, ConnectionRow, Problem};
use super::{Api, Listing, Page, Request};

/// Connections of one answer, if the request does not say, and at most.
const LIMIT: usize = 1_000;
const LIMIT_MAX: usize = 100_000;

type Parameters = Query<Vec<(String, String)>>;

/// What a request asks for.
struct Asked {
    selection: Selection,
    limit: usize,
    after: u32,
}

fn asked(api: &Api, parameters: &[(String, String)]) -> Result<Asked, Problem> {
    let mut asked = Asked {
        selection: Selection::default(),
        limit: LIMIT,
        after: 0,
    };
    let pool = parameters.iter().find(|(key, _)| key == "pool");
    let pool = pool.map(|(_, value)| value.as_str());
    for (key, value) in parameters {
        let number = || {
            let number = value.parse::<u32>();
            number.map_err(|_| Problem::bad_request(format!("{key}={value:?}: not a number")))
        };
        match key.as_str() {
            "limit" => asked.limit = (number()? as usize).clamp(1, LIMIT_MAX),
            "after" => asked.after = number()?,
            "idle_over" => {
                let seconds = Duration::from_secs(number()?.into());
                asked.selection.idle_over = Some(seconds);
            }
            _ => {
                let selection = &mut asked.selection;
                let selected = api.names.select(selection, key, value, pool);
                selected.map_err(Problem::bad_request)?;
            }
        }
    }
    Ok(asked)
}

async fn page(api: &Api, asked: &Asked) -> Result<Page, Problem> {
    let (reply, answer) = oneshot::channel();
    api.make(Request::List(Listing {
        selection: asked.selection,
        from: asked.after,
        limit: asked.limit,
        page: Page::default(),
        reply,
    }))?;
    api.wait(answer).await
}

pub(super) async fn list(
    State(api): State<Arc<Api>>,
    Query(parameters): Parameters,
) -> Result<Json<ConnectionList>, Problem> {
    let asked = asked(&api, &parameters)?;
    let page = page(&api, &asked).await?;
    let rows = page.connections.iter().map(|one| row(&api, one));
    Ok(Json(ConnectionList {
        connections: rows.collect(),
        next: page.next,
    }))
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
) -> Result<Json<ConnectionRow>, Problem> {
    let found = find(&api, &id).await?;
    Ok(Json(row(&api, &found)))
}

pub(super) async fn kill(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
) -> Result<StatusCode, Problem> {
    let found = find(&api, &id).await?;
    let selection = Selection {
        id: Some(found.id),
        ..Selection::default()
    };
    api.change(Change::End(selection)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends all connections that a query selects. A query that selects all is refused: it is more
/// likely a mistake.
pub(super) async fn kill_selected(
    State(api): State<Arc<Api>>,
    Query(parameters): Parameters,
) -> Result<StatusCode, Problem> {
    let asked = asked(&api, &parameters)?;
    if asked.selection == Selection::default() {
        let why = "name what is to end: service, pool, server, client or idle_over";
        return Err(Problem::bad_request(why.to_owned()));
    }
    api.change(Change::End(asked.selection)).await?;
    Ok(StatusCode::ACCEPTED)
}

async fn find(api: &Api, id: &str) -> Result<Connection, Problem> {
    let parsed: fairlead_datapath::ConnectionId = id
        .parse()
        .map_err(|error| Problem::bad_request(format!("{id:?}: {error}")))?;
    let asked = Asked {
        selection: Selection {
            id: Some(parsed),
            ..Selection::default()
        },
        limit: 1,
        after: parsed.line(),
    };
    let mut page = page(api, &asked).await?;
    let gone = || Problem::not_found(format!("connection {id} is not live"));
    page.connections.pop().ok_or_else(gone)
}

fn row(api: &Api, one: &Connection) -> ConnectionRow {
    let (service, route, pool) = api.names.of_connection(one);
    ConnectionRow {
        id: one.id.to_string(),
        client: one.client.to_string(),
        listen: one.listen.to_string(),
        service: service.to_owned(),
        route: route.map(str::to_owned),
        pool: pool.map(str::to_owned),
        server: one.server.map(|(.., server)| server.to_string()),
        state: one.state.name().to_owned(),
        age_seconds: one.age.as_secs_f64(),
        idle_seconds: one.idle.as_secs_f64(),
        bytes_in: one.bytes_in,
        bytes_out: one.bytes_out,
    }
}
