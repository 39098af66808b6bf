//! Whether somebody listens on the sockets that routes lead to, for operators.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fairlead_base::Endpoint;
use fairlead_splice::config::Config;

use super::sleepers::Sockets;
use crate::admin::ListenerStatus;

/// How often it is looked.
const INTERVAL: Duration = Duration::from_secs(1);

/// Looks at the listeners of all routes.
#[derive(Debug)]
pub(super) struct ListenerWatch {
    sockets: Sockets,
    /// Whether somebody listened at the last look; `None` before the first.
    known: BTreeMap<Endpoint, Option<bool>>,
    looked: Option<Instant>,
}

impl ListenerWatch {
    pub(super) fn new(sockets: Sockets, switch: &Config) -> Self {
        let routes = switch.services.iter().flat_map(|service| &service.routes);
        let all = routes.flat_map(|route| [route.listeners.v4, route.listeners.v6]);
        Self {
            sockets,
            known: all
                .flatten()
                .chain(switch.watched.iter().copied())
                .map(|listener| (listener, None))
                .collect(),
            looked: None,
        }
    }

    /// The listeners of which the kernel says whether somebody listens. Changes are logged.
    pub(super) fn look(&mut self) -> Vec<ListenerStatus> {
        if self.looked.is_none_or(|at| at.elapsed() >= INTERVAL) {
            self.looked = Some(Instant::now());
            for (listener, known) in &mut self.known {
                let now = self.sockets.listens(*listener);
                match (*known, now) {
                    (None | Some(true), Some(false)) => {
                        tracing::warn!("nobody listens on {listener}");
                    }
                    (Some(false), Some(true)) => tracing::info!("{listener} has a listener"),
                    _ => {}
                }
                *known = now;
            }
        }
        let known = self.known.iter();
        let known = known.filter_map(|(listener, up)| {
            Some(ListenerStatus {
                listener: listener.to_string(),
                up: (*up)?,
            })
        });
        known.collect()
    }
}
