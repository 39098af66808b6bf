//! Output of a replay: one line per connection, and a summary.

use std::fmt::Write as _;

use fairlead_datapath::config::{Config, Treatment};
use fairlead_driver_pcap::Format;
use serde::Serialize;

use super::connection::Connection;
use super::player::Player;
use crate::log::treatment_name;
use crate::screen::{Side, bytes, columns, grouped, plural};

/// One connection and its outcome.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionReport {
    /// Always `connection`.
    pub kind: &'static str,
    /// Its number, in the order of the SYNs.
    pub number: u64,
    /// Number of its SYN in the capture.
    pub first_packet: u64,
    /// The client.
    pub client: String,
    /// The port it got instead of its own, if that was in use.
    pub client_port_played: Option<u16>,
    /// Its server in the capture.
    pub captured_server: String,
    /// The listening endpoint it was replayed to.
    pub listen: String,
    /// The service.
    pub service: String,
    /// `GET example.com/path`, a TLS server name, or empty.
    pub subject: String,
    /// The switch's decision, if there was one.
    pub decision: Option<DecisionReport>,
    /// Packets and stream bytes of the client in the capture.
    pub packets_in: u64,
    /// See `packets_in`.
    pub bytes_in: u64,
    /// Packets and stream bytes of the server in the capture.
    pub packets_out: u64,
    /// See `packets_out`.
    pub bytes_out: u64,
    /// How it ended.
    pub outcome: Outcome,
}

/// A decision of the switch.
#[derive(Clone, Debug, Serialize)]
pub struct DecisionReport {
    /// The route's name.
    pub route: String,
    /// The pool's name.
    pub pool: String,
    /// The server.
    pub server: String,
    /// The source address and port that the server saw, once a SYN was sent to it.
    pub source: Option<String>,
    /// How it was served.
    pub treatment: &'static str,
    /// Servers tried before.
    pub retries: u8,
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum Outcome {
    /// The switch saw its end.
    Ended {
        /// [`fairlead_datapath::End::name`].
        end: &'static str,
    },
    /// Spliced and still open at the end of the capture.
    Open,
    /// The switch turned the client away.
    Refused {
        /// The reason.
        reason: &'static str,
        /// The HTTP status sent to the client.
        status: Option<u16>,
    },
    /// The captured client sent no data.
    NoRequest,
    /// The client's data did not lead to a decision.
    Undecided {
        /// Reason of the switch's last drop.
        last_drop: Option<&'static str>,
    },
    /// The captured server refused the connection.
    RefusedInCapture,
    /// The captured server did not answer.
    Unanswered,
}

impl Outcome {
    fn of(connection: &Connection) -> Self {
        if let Some(ended) = connection.ended {
            let end = ended.end.name();
            Self::Ended { end }
        } else if let Some(refused) = &connection.refused {
            Self::Refused {
                reason: refused.reason.name(),
                status: refused.status,
            }
        } else if connection.leg.is_some() {
            Self::Open
        } else if connection.refused_in_capture() {
            Self::RefusedInCapture
        } else if connection.told.is_none() {
            Self::Unanswered
        } else if !connection.has_request() {
            Self::NoRequest
        } else {
            let last_drop = connection.last_drop.map(|reason| reason.name());
            Self::Undecided { last_drop }
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Ended { end } => end.replace('_', " "),
            Self::Open => "open at the end".to_owned(),
            Self::Refused {
                reason,
                status: Some(status),
            } => format!("refused: {reason} ({status})"),
            Self::Refused { reason, .. } => format!("refused: {reason}"),
            Self::NoRequest => "no request in the capture".to_owned(),
            Self::Undecided {
                last_drop: Some(reason),
            } => format!("not decided, last drop: {reason}"),
            Self::Undecided { .. } => "not decided: incomplete head".to_owned(),
            Self::RefusedInCapture => "refused by the captured server".to_owned(),
            Self::Unanswered => "not answered in the capture".to_owned(),
        }
    }
}

impl ConnectionReport {
    pub(super) fn of(connection: &Connection, config: &Config) -> Self {
        let service = &config.services[usize::from(connection.target.service)];
        let decided = connection.decided.as_ref();
        let refused = connection.refused.as_ref();
        let subject = match (decided, refused) {
            (Some(decided), _) => decided.subject.clone(),
            (None, Some(refused)) => refused.subject.clone(),
            (None, None) => String::new(),
        };
        let decision = decided.map(|decided| DecisionReport {
            route: service
                .routes
                .get(usize::from(decided.route))
                .map_or_else(String::new, |route| route.name.clone()),
            pool: config
                .pools
                .get(usize::from(decided.pool.0))
                .map_or_else(String::new, |pool| pool.name.clone()),
            server: decided.server.to_string(),
            source: connection.leg.map(|leg| leg.key.src.to_string()),
            treatment: treatment_name(decided.treatment),
            retries: decided.attempt,
        });
        let (client, played) = (connection.captured.src, connection.played.src);
        Self {
            kind: "connection",
            number: connection.number,
            first_packet: connection.first_packet,
            client: client.to_string(),
            client_port_played: (client != played).then_some(played.port),
            captured_server: connection.captured.dst.to_string(),
            listen: connection.target.listen.to_string(),
            service: service.name.clone(),
            subject,
            decision,
            packets_in: connection.seen_in.packets,
            bytes_in: connection.seen_in.bytes,
            packets_out: connection.seen_out.map_or(0, |seen| seen.packets),
            bytes_out: connection.seen_out.map_or(0, |seen| seen.bytes),
            outcome: Outcome::of(connection),
        }
    }

    /// The text line, with its line break.
    pub fn line(&self) -> String {
        let mut line = format!(
            "{}: {} -> {} {}",
            self.number, self.client, self.service, self.listen
        );
        if let Some(port) = self.client_port_played {
            let _ = write!(line, " (from port {port})");
        }
        if self.captured_server != self.listen {
            let _ = write!(line, " (captured: {})", self.captured_server);
        }
        if !self.subject.is_empty() {
            let _ = write!(line, "  {}", self.subject);
        }
        if let Some(decision) = &self.decision {
            let DecisionReport {
                route,
                pool,
                server,
                ..
            } = decision;
            let _ = write!(line, "  {route} -> {pool} {server}");
            if decision.treatment != treatment_name(Treatment::Splice) {
                let _ = write!(line, " {}", decision.treatment);
            }
            if decision.retries > 0 {
                let _ = write!(line, " after {}", plural(decision.retries.into(), "retry"));
            }
        }
        let _ = writeln!(
            line,
            "  in {} packets {}, out {} packets {}  {}",
            grouped(self.packets_in),
            bytes(self.bytes_in),
            grouped(self.packets_out),
            bytes(self.bytes_out),
            self.outcome.text(),
        );
        line
    }
}

/// A name and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Count {
    /// Name for programs.
    pub name: String,
    /// For people.
    #[serde(skip)]
    pub text: String,
    /// How often.
    pub count: u64,
}

/// Decisions of one route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RouteCount {
    /// The service.
    pub service: String,
    /// The route.
    pub route: String,
    /// Its pool.
    pub pool: String,
    /// Connections decided.
    pub decisions: u64,
}

/// The whole replay.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Always `summary`.
    pub kind: &'static str,
    /// `pcap` or `pcapng`.
    pub format: &'static str,
    /// Packets in the capture.
    pub packets: u64,
    /// Duration of the capture, nanoseconds.
    pub duration_ns: u64,
    /// Jumps of its time stamps, from joined captures.
    pub seams: u64,
    /// Packets replayed.
    pub played: u64,
    /// Connections replayed.
    pub connections: u64,
    /// Clients that got another port.
    pub moved: u64,
    /// Connections that began before the capture.
    pub midstream: u64,
    /// Packets not replayed, by reason.
    pub unplayed: Vec<Count>,
    /// Packets not captured completely; corrected in IP, in TCP; replayed with a wrong checksum.
    pub snapped: u64,
    /// See `snapped`.
    pub ip_repaired: u64,
    /// See `snapped`.
    pub tcp_repaired: u64,
    /// See `snapped`.
    pub tcp_wrong: u64,
    /// Ports of SYNs that no service listens on.
    pub strange_ports: Vec<Count>,
    /// Decisions by route.
    pub routes: Vec<RouteCount>,
    /// Connections spliced.
    pub spliced: u64,
    /// Drops and refusals of the switch, by reason.
    pub drops: Vec<Count>,
    /// Packets sent by the switch, including probes.
    pub sent: u64,
    /// Translated packets compared with captured ones, and how many differed.
    pub compared: u64,
    /// See `compared`.
    pub different: u64,
    /// The first differences.
    pub differences: Vec<String>,
    /// Packets sent with a wrong checksum that the capture did not cause.
    pub unsound: u64,
    /// Packets written to the capture file.
    pub written: u64,
}

impl Summary {
    /// Summary after the end of the capture.
    pub fn of(player: &Player, format: Format) -> Self {
        let (tally, comparison) = (player.tally(), player.comparison());
        let snapshot = player.snapshot();
        let unplayed = tally.unplayed.iter().map(|(reason, &count)| Count {
            name: reason.name(),
            text: reason.to_string(),
            count,
        });
        let mut strange: Vec<Count> = tally
            .strange_ports
            .iter()
            .map(|(port, &count)| Count {
                name: port.to_string(),
                text: format!("port {port}"),
                count,
            })
            .collect();
        strange.sort_by_key(|count| core::cmp::Reverse(count.count));
        let drops = snapshot.drops.iter().filter(|(_, count)| *count > 0);
        let routes = snapshot.services.iter().flat_map(|service| {
            service.routes.iter().map(|route| RouteCount {
                service: service.name.clone(),
                route: route.name.clone(),
                pool: route.pool.clone(),
                decisions: route.decisions,
            })
        });
        Self {
            kind: "summary",
            format: match format {
                Format::Pcap => "pcap",
                Format::PcapNg => "pcapng",
            },
            packets: tally.packets,
            duration_ns: player.clock().now().as_nanos(),
            seams: player.clock().seams(),
            played: tally.played,
            connections: player.opened(),
            moved: tally.moved,
            midstream: tally.midstream,
            unplayed: unplayed.collect(),
            snapped: tally.snapped,
            ip_repaired: tally.ip_repaired,
            tcp_repaired: tally.tcp_repaired,
            tcp_wrong: tally.tcp_wrong,
            strange_ports: strange,
            routes: routes.collect(),
            spliced: snapshot.spliced,
            drops: drops
                .map(|(reason, count)| Count {
                    name: reason.name().to_owned(),
                    text: reason.describe().to_owned(),
                    count,
                })
                .collect(),
            sent: snapshot.tx_packets,
            compared: comparison.forward + comparison.reverse,
            different: comparison.different,
            differences: comparison
                .differences
                .iter()
                .map(|found| format!("packet {} ({}): {}", found.packet, found.client, found.what))
                .collect(),
            unsound: tally.unsound,
            written: player.written(),
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let seconds = self.duration_ns as f64 / 1e9;
        let mut out = format!(
            "\ncapture     {} packets, {seconds:.1} s, {}\n",
            grouped(self.packets),
            self.format
        );
        if self.seams > 0 {
            let _ = writeln!(
                out,
                "            time stamps jump {}: joined captures",
                plural(self.seams as usize, "time")
            );
        }
        let _ = writeln!(
            out,
            "replayed    {} packets of {}, {} spliced",
            grouped(self.played),
            plural(self.connections as usize, "connection"),
            grouped(self.spliced),
        );
        for (count, what) in [
            (self.snapped, "packets not captured completely"),
            (
                self.ip_repaired,
                "IP headers corrected: the capture is from before a device",
            ),
            (
                self.tcp_repaired,
                "TCP checksums corrected: the capture is from before a device",
            ),
            (self.tcp_wrong, "TCP checksums wrong"),
            (self.moved, "clients got another port: theirs was in use"),
        ] {
            if count > 0 {
                let _ = writeln!(out, "            {} {what}", grouped(count));
            }
        }
        let list = |title: &str, counts: &[Count]| {
            let rows: Vec<Vec<String>> = counts
                .iter()
                .map(|count| vec![grouped(count.count), count.text.clone()])
                .collect();
            if rows.is_empty() {
                String::new()
            } else {
                format!("{title}\n{}", columns(2, &[Side::Right, Side::Left], &rows))
            }
        };
        out += &list("packets not replayed", &self.unplayed);
        if self.connections == 0 && !self.strange_ports.is_empty() {
            let title = "no connection goes to a configured port; --map PORT=SERVICE replays \
                         others:";
            let first = &self.strange_ports[..self.strange_ports.len().min(5)];
            out += &list(title, first);
        }
        let rows: Vec<Vec<String>> = self
            .routes
            .iter()
            .map(|route| {
                vec![
                    grouped(route.decisions),
                    route.service.clone(),
                    route.route.clone(),
                    format!("-> {}", route.pool),
                ]
            })
            .collect();
        let sides = [Side::Right, Side::Left, Side::Left, Side::Left];
        out += &format!("decisions\n{}", columns(2, &sides, &rows));
        out += &list("dropped or refused by the switch", &self.drops);
        let _ = match self.different + self.unsound {
            0 => writeln!(
                out,
                "translated  {} packets, all correct",
                grouped(self.compared)
            ),
            wrong => writeln!(
                out,
                "translated  {} packets, {} WRONG",
                grouped(self.compared),
                grouped(wrong)
            ),
        };
        for difference in self.differences.iter().take(8) {
            let _ = writeln!(out, "            {difference}");
        }
        out
    }
}
