//! `/v1/access`: the access lists that services use, and orders that change them at once.
//!
//! An order changes the list that the engine asks and, prefix by prefix, the one in the kernel. It
//! is kept with the verdict that the configuration had for its prefix.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use fairlead_bpf_loader::{AccessPrefix, AccessPrefixes};
use fairlead_datapath::Change;
use fairlead_splice::access::{AccessEntry, AccessList};
use fairlead_splice::config::Service;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use super::answers::Problem;
use super::servers::body;
use super::state::{ACCESS_ORDERS_MAX, AccessOrder};
use super::{Api, RuntimeState};
use crate::config::access_entry;

/// Prefixes of a list that one answer has, at most.
const ENTRIES_SHOWN: usize = 1_000;

type Answer<T> = Result<Json<T>, Problem>;

/// The lists as they are now. Orders are carried out one after the other.
#[derive(Debug)]
pub(crate) struct AccessLists {
    lists: Mutex<Lists>,
}

#[derive(Debug)]
struct Lists {
    /// By number, as the kernel has them.
    all: Vec<Used>,
    kernel: Option<AccessPrefixes>,
}

#[derive(Debug)]
struct Used {
    list: Arc<AccessList>,
    services: Vec<String>,
}

impl AccessLists {
    /// The lists that services use, by their numbers.
    pub(crate) fn new(
        lists: Vec<Arc<AccessList>>,
        services: &[Service],
        kernel: Option<AccessPrefixes>,
    ) -> Self {
        let used = |list: Arc<AccessList>| {
            let of = services.iter();
            let of = of.filter(|one| one.access.iter().any(|one| Arc::ptr_eq(one, &list)));
            let services = of.map(|one| one.name.clone()).collect();
            Used { list, services }
        };
        let all = lists.into_iter().map(used).collect();
        Self {
            lists: Mutex::new(Lists { all, kernel }),
        }
    }
}

impl Lists {
    fn position(&self, name: &str) -> Result<usize, Problem> {
        let at = self.all.iter().position(|one| one.list.name() == name);
        at.ok_or_else(|| {
            let known: Vec<_> = self.all.iter().map(|one| one.list.name()).collect();
            let known = known.join(", ");
            let why = format!("no service uses an access list {name:?}; used: {known}");
            Problem::not_found(why)
        })
    }

    /// Gives a prefix another verdict in the kernel.
    fn tell_kernel(
        &mut self,
        list: usize,
        entry: &AccessEntry,
        verdict: Option<bool>,
    ) -> Result<(), Problem> {
        let Some(kernel) = &mut self.kernel else {
            return Ok(());
        };
        let prefix = AccessPrefix {
            list: list as u32,
            first: entry.first,
            bits: entry.bits,
            allow: verdict.unwrap_or(false),
        };
        let told = match verdict {
            Some(_) => kernel.set(&prefix),
            None => kernel.remove(&prefix),
        };
        told.map_err(|error| Problem::unavailable(error.to_string()))
    }
}

/// A list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AccessRow {
    pub(crate) name: String,
    /// `allow` or `deny`: what holds for clients in none of its prefixes.
    pub(crate) default: String,
    pub(crate) services: Vec<String>,
    /// How many it has.
    pub(crate) prefixes: usize,
    /// What was ordered.
    pub(crate) orders: Vec<EntryRow>,
}

/// A prefix of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntryRow {
    pub(crate) prefix: String,
    /// `allow`, `deny`, or `removed`.
    pub(crate) verdict: String,
}

/// A list with its prefixes, as many as are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AccessDetail {
    #[serde(flatten)]
    pub(crate) row: AccessRow,
    pub(crate) entries: Vec<EntryRow>,
}

fn word(verdict: Option<bool>) -> String {
    let word = match verdict {
        Some(true) => "allow",
        Some(false) => "deny",
        None => "removed",
    };
    word.to_owned()
}

fn text(entry: &AccessEntry) -> String {
    format!("{}/{}", entry.first, entry.bits)
}

fn row(used: &Used, state: &RuntimeState) -> AccessRow {
    let list = &used.list;
    let orders = state.access.iter().filter(|one| one.list == list.name());
    let orders = orders.map(|one| EntryRow {
        prefix: one.prefix.clone(),
        verdict: word(one.verdict),
    });
    AccessRow {
        name: list.name().to_owned(),
        default: word(Some(list.default_allow())),
        services: used.services.clone(),
        prefixes: list.entries().len(),
        orders: orders.collect(),
    }
}

pub(super) async fn list_all(State(api): State<Arc<Api>>) -> Answer<Vec<AccessRow>> {
    let lists = api.access.lists.lock().await;
    let state = api.state();
    Ok(Json(lists.all.iter().map(|one| row(one, &state)).collect()))
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
) -> Answer<AccessDetail> {
    let lists = api.access.lists.lock().await;
    let used = &lists.all[lists.position(&name)?];
    let entries = used.list.entries().iter().take(ENTRIES_SHOWN);
    let entries = entries.map(|one| EntryRow {
        prefix: text(one),
        verdict: word(Some(one.allow)),
    });
    Ok(Json(AccessDetail {
        row: row(used, &api.state()),
        entries: entries.collect(),
    }))
}

/// A prefix to be added.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewEntry {
    prefix: String,
    /// `allow` or `deny`; the opposite of the list's default without it.
    #[serde(default)]
    verdict: Option<String>,
}

pub(super) async fn add(
    State(api): State<Arc<Api>>,
    Path(name): Path<String>,
    new: Result<Json<NewEntry>, JsonRejection>,
) -> Answer<EntryRow> {
    let new = body(new)?;
    let entry = access_entry(&new.prefix, false).map_err(Problem::bad_request)?;
    let allow = match new.verdict.as_deref() {
        None => None,
        Some("allow") => Some(true),
        Some("deny") => Some(false),
        Some(other) => {
            let why = format!("verdict {other:?}: allow or deny");
            return Err(Problem::bad_request(why));
        }
    };
    carry_out(api, name, entry, move |list| {
        Ok(Some(allow.unwrap_or(!list.default_allow())))
    })
    .await
}

pub(super) async fn remove(
    State(api): State<Arc<Api>>,
    Path((name, prefix)): Path<(String, String)>,
) -> Answer<EntryRow> {
    let entry = access_entry(&prefix, false).map_err(Problem::bad_request)?;
    carry_out(api, name, entry, move |list| {
        match list.verdict(entry.first, entry.bits) {
            Some(_) => Ok(None),
            None => {
                let why = format!("{} is not in access list {:?}", text(&entry), list.name());
                Err(Problem::not_found(why))
            }
        }
    })
    .await
}

/// Gives a prefix another verdict: first in the kernel, then in the engine, then in the state. On
/// a task of its own, so that a client that goes away leaves nothing half done.
async fn carry_out(
    api: Arc<Api>,
    name: String,
    entry: AccessEntry,
    verdict: impl FnOnce(&AccessList) -> Result<Option<bool>, Problem> + Send + 'static,
) -> Answer<EntryRow> {
    let done = tokio::spawn(async move {
        let mut lists = api.access.lists.lock().await;
        let at = lists.position(&name)?;
        let list = Arc::clone(&lists.all[at].list);
        let verdict = verdict(&list)?;
        let before = list.verdict(entry.first, entry.bits);
        if verdict != before {
            let order = AccessOrder {
                list: name,
                prefix: text(&entry),
                configured: before,
                verdict,
            };
            api.state().has_room_for(&order)?;
            // A list may have a million prefixes.
            let sorted =
                tokio::task::spawn_blocking(move || Arc::new(list.changed(&[(entry, verdict)])));
            let fresh = sorted.await;
            let fresh = fresh.map_err(|error| Problem::unavailable(error.to_string()))?;
            lists.tell_kernel(at, &entry, verdict)?;
            if let Err(problem) = api.change(Change::Access(Arc::clone(&fresh))).await {
                // The engine has the old list, and so has the kernel again.
                lists.tell_kernel(at, &entry, before)?;
                return Err(problem);
            }
            lists.all[at].list = fresh;
            let mut state = api.state();
            state.note_access(order);
            api.save(&mut state);
        }
        Ok(Json(EntryRow {
            prefix: text(&entry),
            verdict: word(verdict),
        }))
    });
    done.await
        .map_err(|error| Problem::unavailable(error.to_string()))?
}

impl RuntimeState {
    fn access_order(&self, order: &AccessOrder) -> Option<usize> {
        let same = |one: &AccessOrder| one.list == order.list && one.prefix == order.prefix;
        self.access.iter().position(same)
    }

    fn has_room_for(&self, order: &AccessOrder) -> Result<(), Problem> {
        if self.access.len() < ACCESS_ORDERS_MAX || self.access_order(order).is_some() {
            return Ok(());
        }
        let why = format!(
            "{ACCESS_ORDERS_MAX} orders about access lists are kept; change the configuration"
        );
        Err(Problem::conflict(why))
    }

    /// Keeps an order, unless it brings back what the configuration says.
    fn note_access(&mut self, mut order: AccessOrder) {
        let verdict = order.verdict;
        if let Some(at) = self.access_order(&order) {
            order = self.access.remove(at);
            order.verdict = verdict;
        }
        if order.configured != order.verdict {
            self.access.push(order);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(prefix: &str, configured: Option<bool>, verdict: Option<bool>) -> AccessOrder {
        AccessOrder {
            list: "office".to_owned(),
            prefix: prefix.to_owned(),
            configured,
            verdict,
        }
    }

    #[test]
    fn an_order_that_brings_back_the_configuration_is_forgotten() {
        let mut state = RuntimeState::default();
        state.note_access(order("10.0.0.0/8", None, Some(false)));
        state.note_access(order("10.0.0.0/8", Some(false), Some(true)));
        assert_eq!(state.access, [order("10.0.0.0/8", None, Some(true))]);
        state.note_access(order("10.0.0.0/8", Some(true), None));
        assert_eq!(state.access, []);
        state.note_access(order("10.0.0.0/8", Some(true), None));
        assert_eq!(state.access, [order("10.0.0.0/8", Some(true), None)]);
    }

    #[test]
    fn orders_are_bounded_and_those_that_are_kept_can_change() {
        let mut state = RuntimeState::default();
        for at in 0..ACCESS_ORDERS_MAX {
            let order = order(
                &format!("10.{}.{}.0/24", at >> 8, at & 255),
                None,
                Some(true),
            );
            assert!(state.has_room_for(&order).is_ok());
            state.note_access(order);
        }
        assert!(
            state
                .has_room_for(&order("192.0.2.0/24", None, Some(true)))
                .is_err()
        );
        assert!(
            state
                .has_room_for(&order("10.0.7.0/24", None, None))
                .is_ok()
        );
    }
}
