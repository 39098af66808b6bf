//! The scene over simulated links, for machines where neither root nor user namespaces are
//! available: the same switch code and requests, with smoltcp as TCP hosts.

use std::net::SocketAddr;

use anyhow::{Result, anyhow};
use fairlead_base::Endpoint;
use fairlead_datapath::Event;
use fairlead_sim::demo::{Ask, Demo, DemoRequest};
use fairlead_splice::config::Service;
use serde_json::Value;

use super::client::Answer;
use super::journal::Entry;
use super::scene::{BIG_BYTES, BIG_PATH, CONFIG, PROCESSES, Request, SERVERS, VIRTUAL, origin_at};
use super::stage::Stage;
use crate::admin::{Counters, FastPathState, Identity, Shared, Status};
use crate::config::Settings;

/// Bytes of an ordinary answer's body.
const REPLY_BYTES: usize = 30;
/// Everything is the same each time.
const SEED: u64 = 1;

/// The scene, in virtual time.
pub(super) struct Simulated {
    settings: Settings,
    demo: Demo,
    /// The switch's events for the last connection.
    events: Vec<Event>,
}

impl Simulated {
    /// Builds the simulated world.
    pub(super) fn start(step: &dyn Fn(&str)) -> Result<Self> {
        step("simulating hosts and links");
        let settings = crate::config::parse(CONFIG, "the demonstration's configuration")
            .map_err(|report| anyhow!("{report:?}"))?
            .settings;
        let demo =
            Demo::new(settings.switch.clone(), SEED).map_err(|failure| anyhow!("{failure}"))?;
        Ok(Self {
            settings,
            demo,
            events: Vec::new(),
        })
    }

    fn service(&self, index: u16) -> Option<&Service> {
        self.settings.switch.services.get(usize::from(index))
    }

    /// The event as the log would have it.
    fn entry(&self, event: &Event) -> Option<Entry> {
        Some(match event {
            Event::Decided {
                client,
                service,
                route,
                pool,
                server,
                attempt,
                subject,
                ..
            } => {
                let named = self.service(*service)?;
                let pools = &self.settings.switch.pools;
                Entry::Decided {
                    client: client.to_socket(),
                    service: named.name.clone(),
                    route: named.routes.get(usize::from(*route))?.name.clone(),
                    pool: pools.get(usize::from(pool.0))?.name.clone(),
                    server: server.to_socket(),
                    attempt: u64::from(*attempt),
                    subject: subject.as_str().to_owned(),
                }
            }
            Event::Refused {
                client,
                service,
                reason,
                status,
                subject,
                ..
            } => Entry::Refused {
                client: client.to_socket(),
                service: self.service(*service)?.name.clone(),
                reason: reason.name().to_owned(),
                status: status.map(u64::from),
                subject: subject.as_str().to_owned(),
            },
            Event::Closed {
                client,
                source,
                bytes_in,
                bytes_out,
                end,
                ..
            } => Entry::Closed {
                client: client.to_socket(),
                source: source.to_socket(),
                bytes_in: *bytes_in,
                bytes_out: *bytes_out,
                end: end.name().to_owned(),
            },
            Event::Given { .. }
            | Event::Server { .. }
            | Event::Availability { .. }
            | Event::LaterRequest { .. } => {
                return None;
            }
        })
    }
}

impl Stage for Simulated {
    fn cast(&self) -> Vec<(&'static str, String)> {
        vec![
            (
                "world",
                format!("simulated links, seed {SEED}; no packets leave this process"),
            ),
            ("client", "simulated (smoltcp)".into()),
            (
                "switch",
                format!("the code of fairlead serve, virtual address {VIRTUAL}"),
            ),
            ("servers", format!("simulated (smoltcp), at {SERVERS}")),
        ]
    }

    fn missing(&self, _request: &Request) -> Option<String> {
        None
    }

    fn ask(&mut self, request: &Request) -> Result<Vec<Answer>> {
        let row = self
            .demo
            .ask(as_simulated(request))
            .map_err(|failure| anyhow!("{failure}"))?;
        self.events = row.events;
        let blank = Answer {
            local: Some(row.client.to_socket()),
            saw: row.seen_as.map(Endpoint::to_socket),
            simulated: true,
            ..Answer::default()
        };
        if row.answers.is_empty() {
            let error = Some("the connection was refused or reset".to_owned());
            return Ok(vec![Answer { error, ..blank }]);
        }
        let answers = row.answers.iter().map(|answer| {
            let server = answer.server.map(|endpoint| {
                let at = endpoint.to_socket();
                (
                    origin_at(at.port())
                        .map_or("?", |origin| origin.name)
                        .to_owned(),
                    at,
                )
            });
            Answer {
                // Without keys there is no HTTP inside TLS, only the server's name.
                status: answer.status.unwrap_or(0),
                body_bytes: answer.body_bytes as u64,
                server,
                error: answer.alert.map(|code| format!("TLS alert {code}")),
                ..blank.clone()
            }
        });
        Ok(answers.collect())
    }

    fn recorded(&mut self, client: SocketAddr) -> Result<Vec<Entry>> {
        let entries = self.events.iter().filter_map(|event| self.entry(event));
        Ok(entries.filter(|entry| entry.client() == client).collect())
    }

    fn end_process(&mut self, name: &str) -> Result<()> {
        let process = PROCESSES.iter().find(|process| process.name == name);
        for origin in process.map_or(&[][..], |process| process.origins) {
            self.demo
                .end_server(SocketAddr::from((SERVERS, origin.port)).into());
        }
        Ok(())
    }

    fn status(&mut self) -> Result<Value> {
        // The same text as on the status page.
        let shared = Shared::new(Identity::of(
            &self.settings,
            FastPathState::engine("engine (simulated)"),
        ));
        shared.publish(Counters {
            switch: self.demo.snapshot(),
            ..Counters::default() // without a device
        });
        let latest = shared
            .latest()
            .ok_or_else(|| anyhow!("nothing was published"))?;
        Ok(serde_json::to_value(Status::of(&shared, &latest))?)
    }
}

fn as_simulated(request: &Request) -> DemoRequest {
    let host = request.host.map(str::to_owned);
    let port = if request.tls { 443 } else { 80 };
    let listen = SocketAddr::from((VIRTUAL, port)).into();
    if request.tls {
        return DemoRequest {
            listen,
            ask: Ask::Tls {
                sni: host,
                alpn: vec!["http/1.1".into()],
            },
        };
    }
    let paths = [Some(request.path), request.then].into_iter().flatten();
    let ask = Ask::Http {
        method: request.method.into(),
        host,
        paths: paths.map(str::to_owned).collect(),
        fields: Vec::new(),
        body_bytes: (request.body_bytes > 0).then_some(request.body_bytes),
        reply_bytes: if request.path == BIG_PATH {
            BIG_BYTES as usize
        } else {
            REPLY_BYTES
        },
    };
    DemoRequest { listen, ask }
}
