//! Changes of a running switch: orders of the operator, and results of health checks.
//!
//! They are applied between two batches of packets. Tickets are recalled whenever the choice of
//! servers changes, so that the fast path begins no connection by an earlier choice.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use fairlead_base::Instant;
use fairlead_tcp::Line;

use super::Switch;
use super::connections::Selection;
use crate::access::AccessList;
use crate::backends::ServerId;
use crate::config::OnDown;
use crate::event::{Admin, End, Event};

/// Lines that one call of [`Switch::handle_timeout`] looks at for connections to end.
const ENDING_LINES: u32 = 4_096;

/// Searches for connections to end that wait, at most.
const ENDINGS_MAX: usize = 64;

/// A change of a running switch.
#[derive(Clone, Debug)]
pub enum Change {
    /// An order about a server.
    Admin {
        /// The server.
        server: ServerId,
        /// What it is to be.
        admin: Admin,
        /// What becomes of its connections.
        departure: Departure,
    },
    /// Another weight.
    Weight {
        /// The server.
        server: ServerId,
        /// Its weight.
        weight: u16,
    },
    /// What a health check says.
    Check {
        /// The server.
        server: ServerId,
        /// Whether it is up.
        is_up: bool,
    },
    /// Connections that are to end.
    End(Selection),
    /// Another list in the place of that with its name. Clients that are connecting already are
    /// not asked again.
    Access(Arc<AccessList>),
}

/// What becomes of the connections of a server that takes no new ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Departure {
    /// Those on which no packet passes for this long get a RST at both ends.
    pub close_idle: Option<Duration>,
    /// All get one after this time.
    pub reset_after: Option<Duration>,
}

/// A change that cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// Too many searches for connections to end wait.
    #[error("{ENDINGS_MAX} orders to end connections are being carried out; try again")]
    Busy,
}

/// Connections that are to end.
#[derive(Debug, Default)]
pub(super) struct Endings {
    /// Searches, the one under way first.
    searches: VecDeque<Search>,
    /// Servers whose connections are to leave.
    leaving: BTreeMap<ServerId, Leaving>,
}

#[derive(Debug)]
struct Search {
    selection: Selection,
    end: End,
    cursor: u32,
}

#[derive(Clone, Copy, Debug)]
struct Leaving {
    close_idle: Option<Duration>,
    reset_at: Option<Instant>,
}

impl Switch {
    /// Makes a change. True when something is different by it.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn apply(&mut self, now: Instant, change: Change) -> Result<bool, ChangeError> {
        let changed = match change {
            Change::Admin {
                server,
                admin,
                departure,
            } => {
                let changed = self.change_server(server, |switch| {
                    switch.backends.set_admin(server, admin, now)
                });
                self.set_departure(now, server, admin, departure) | changed
            }
            Change::Weight { server, weight } => {
                self.change_server(server, |switch| switch.backends.set_weight(server, weight))
            }
            Change::Check { server, is_up } => {
                let changed = self.change_server(server, |switch| {
                    switch.backends.set_check(server, is_up, now)
                });
                let (pool, _) = self.backends.server(server);
                let check = self.config.pools[usize::from(pool.0)].check.as_ref();
                let resets = check.is_some_and(|check| check.on_down == OnDown::Reset);
                if changed && !is_up && resets {
                    let of_server = Selection {
                        server: Some(server),
                        ..Selection::default()
                    };
                    self.search(of_server, End::ServerDown)?;
                }
                changed
            }
            Change::End(selection) => {
                self.search(selection, End::Killed)?;
                true
            }
            Change::Access(list) => self.replace_list(&list),
        };
        self.debug_check(None);
        Ok(changed)
    }

    fn replace_list(&mut self, list: &Arc<AccessList>) -> bool {
        let mut changed = false;
        let services = self.config.services.iter_mut();
        for one in services.flat_map(|service| &mut service.access) {
            if one.name() == list.name() && *one != *list {
                *one = Arc::clone(list);
                changed = true;
            }
        }
        changed
    }

    /// Changes a server, and says so to everybody who goes by it.
    fn change_server(&mut self, id: ServerId, change: impl FnOnce(&mut Self) -> bool) -> bool {
        let before = self.backends.unavailable(id);
        // First: a policy takes turns back as they were given, among the same servers.
        self.revoke_tickets();
        let changed = change(self);
        if changed {
            self.tell_availability(id, before);
        }
        changed
    }

    fn tell_availability(&mut self, id: ServerId, before: Option<crate::event::Unavailable>) {
        let unavailable = self.backends.unavailable(id);
        if unavailable != before {
            let (pool, server) = self.backends.server(id);
            self.emit_event(Event::Availability {
                server: server.endpoint,
                pool,
                unavailable,
            });
        }
    }

    /// Ends ejections, goes on with slow starts.
    pub(super) fn handle_availability(&mut self, now: Instant) {
        if self.backends.handle_time(now) {
            self.revoke_tickets();
        }
    }

    fn set_departure(
        &mut self,
        now: Instant,
        server: ServerId,
        admin: Admin,
        departure: Departure,
    ) -> bool {
        let leaving = &mut self.endings.leaving;
        if admin == Admin::Ready || departure == Departure::default() {
            return leaving.remove(&server).is_some();
        }
        let leaves = Leaving {
            close_idle: departure.close_idle,
            reset_at: departure.reset_after.map(|after| now + after),
        };
        leaving.insert(server, leaves);
        true
    }

    /// Whether a joined connection, on which nothing passed for so long, is to end because its
    /// server's connections are to leave.
    pub(super) fn leaves(&self, now: Instant, line: Line, quiet_ms: u32) -> bool {
        if self.endings.leaving.is_empty() {
            return false;
        }
        let server = self.places.server(self.table.record(line).server);
        let leaving = server.and_then(|id| self.endings.leaving.get(&id));
        leaving.is_some_and(|leaving| {
            let idle = |idle: Duration| u128::from(quiet_ms) >= idle.as_millis();
            leaving.close_idle.is_some_and(idle) || leaving.reset_at.is_some_and(|at| at <= now)
        })
    }

    fn search(&mut self, selection: Selection, end: End) -> Result<(), ChangeError> {
        if self.endings.searches.len() >= ENDINGS_MAX {
            return Err(ChangeError::Busy);
        }
        self.endings.searches.push_back(Search {
            selection,
            end,
            cursor: 0,
        });
        Ok(())
    }

    /// Connections are being searched for, to be ended.
    pub(super) fn has_endings(&self) -> bool {
        !self.endings.searches.is_empty()
    }

    /// Goes on with the first search.
    pub(super) fn run_endings(&mut self, now: Instant) {
        let Some(mut search) = self.endings.searches.pop_front() else {
            return;
        };
        let end = self.table.high_water().min(search.cursor + ENDING_LINES);
        for line in (search.cursor..end).map(Line) {
            self.catch_up(now, line);
            if self.is_selected(now, line, &search.selection) {
                self.end_line(now, line, search.end);
            }
        }
        search.cursor = end;
        if end < self.table.high_water() {
            self.endings.searches.push_front(search);
        }
    }
}
