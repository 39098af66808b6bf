//! `/v1/announce`: whether listening addresses are announced, by order.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use serde::{Deserialize, Serialize};

use super::Api;
use super::answers::Problem;
use super::servers::body;
use crate::admin::AnnouncedStatus;

/// Whether listening addresses are announced, and the state of each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Announcement {
    /// Addresses in subnets of this machine's interfaces are to be announced.
    pub(crate) on: bool,
    /// It was ordered so.
    pub(crate) ordered: bool,
    /// Those that are; none while the switch is not healthy.
    pub(crate) addresses: Vec<AnnouncedStatus>,
}

pub(super) async fn show(State(api): State<Arc<Api>>) -> Json<Announcement> {
    Json(announcement(&api))
}

/// An order.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Order {
    on: bool,
}

pub(super) async fn change(
    State(api): State<Arc<Api>>,
    order: Result<Json<Order>, JsonRejection>,
) -> Result<Json<Announcement>, Problem> {
    let order = body(order)?;
    let ordered = Instant::now();
    {
        let mut state = api.state();
        api.shared.set_announces(order.on);
        state.note_announce(order.on);
        api.save(&mut state);
    }
    tracing::info!(on = order.on, "announcements, by order");
    api.published_after(ordered).await;
    Ok(Json(announcement(&api)))
}

fn announcement(api: &Api) -> Announcement {
    let latest = api.shared.latest();
    let addresses = latest.map(|latest| latest.counters.announced.clone());
    Announcement {
        on: api.shared.announces(),
        ordered: api.state().announce_ordered().is_some(),
        addresses: addresses.unwrap_or_default(),
    }
}
