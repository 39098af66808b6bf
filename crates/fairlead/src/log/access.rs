//! The access log: lines about connections that ended or were refused (`[log]`).
//!
//! The packet loop writes a line into a buffer; another thread writes that to its target. When the
//! target does not keep up, lines are dropped and counted.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fairlead_base::Instant;
use fairlead_datapath::{End, Event};
use fairlead_http_front::RequestEnd;
use fairlead_splice::config::Config;
use fairlead_wire::Asked;

use super::line::{Line, TARGET};
use super::outlet::Outlet;
use super::refusals::Refusals;
use super::treatment_name;
use super::{Log, LogFormat, is_json, log_event, pool_name, route_name, service_name};
use crate::config::{Access, LogSettings, Settings, Target, protocol_name};

/// Bytes of lines that wait for a file or standard output: some 8,000 lines.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// How long the end waits for the last lines.
const FLUSH_PATIENCE: Duration = Duration::from_secs(1);

/// Logs events, those about connections as `[log]` says.
#[derive(Debug)]
pub(crate) struct AccessLog<'a> {
    settings: &'a LogSettings,
    config: &'a Config,
    outlet: Arc<Outlet>,
    line: Line,
    refusals: Refusals,
    /// Connections that both sides closed.
    finished: u64,
}

impl<'a> AccessLog<'a> {
    /// Opens the target.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub(crate) fn start(settings: &'a Settings, log: &Log) -> Result<Self, String> {
        let own = match is_json() {
            true => LogFormat::Json,
            false => LogFormat::Text,
        };
        let target = &settings.log.target;
        let failed = |error: io::Error| format!("cannot open the access log {target}: {error}");
        let outlet = match target {
            Target::Stderr => Arc::clone(&log.outlet),
            Target::Stdout => {
                let stdout = io::stdout().as_fd().try_clone_to_owned();
                outlet_to(File::from(stdout.map_err(failed)?)).map_err(failed)?
            }
            Target::File(path) => outlet_to(open(path).map_err(failed)?).map_err(failed)?,
        };
        Ok(Self {
            settings: &settings.log,
            config: &settings.switch,
            outlet,
            line: Line::new(settings.log.format.unwrap_or(own)),
            refusals: Refusals::default(),
            finished: 0,
        })
    }

    /// Logs the events of this moment.
    pub(crate) fn at(&mut self, now: Instant) -> impl FnMut(Event) + '_ {
        move |event| self.handle(now, &event)
    }

    /// Logs an event.
    fn handle(&mut self, now: Instant, event: &Event) {
        let has_line = match event {
            Event::Refused { reason, .. } => match self.settings.access {
                Access::Off => false,
                Access::Refused => self.refusals.admit(now, *reason),
                Access::All => true,
            },
            Event::Closed { end, .. } => self.settings.access == Access::All && self.samples(*end),
            Event::Given { .. } => self.settings.access == Access::All,
            Event::Decided { .. } if self.settings.access != Access::All => return,
            Event::Decided { .. }
            | Event::Server { .. }
            | Event::Availability { .. }
            | Event::LaterRequest { .. } => {
                return log_event(event, self.config);
            }
        };
        if has_line && self.is_wanted() {
            write_event(&mut self.line, event, self.config);
            self.outlet.add(self.line.end());
        }
    }

    /// Logs a request that was routed by itself.
    pub(crate) fn request(&mut self, now: Instant, event: &fairlead_http_front::Event) {
        let has_line = match (self.settings.access, event.reason) {
            (Access::Off, _) | (Access::Refused, None) => false,
            (Access::Refused, Some(reason)) => self.refusals.admit(now, reason),
            (Access::All, _) => event.end != RequestEnd::Served || self.samples(End::Finished),
        };
        if has_line && self.is_wanted() {
            write_request(&mut self.line, event, self.config);
            self.outlet.add(self.line.end());
        }
    }

    /// Sums up refusals without a line when it is time. Several times in a second.
    pub(crate) fn tend(&mut self, now: Instant) {
        self.sum_up(now, false);
    }

    /// Sums up what is left, and waits a limited time for the last lines.
    pub(crate) fn finish(&mut self, now: Instant) {
        self.sum_up(now, true);
        self.outlet.flush(FLUSH_PATIENCE);
    }

    /// Opens the file again: it was moved away. Another thread does it.
    pub(crate) fn reopen(&self) {
        let Target::File(path) = self.settings.target.clone() else {
            return;
        };
        self.outlet.change_to(move || {
            let (name, opened) = (path.display(), open(&path));
            match &opened {
                Ok(_) => tracing::info!("the access log {name} is opened again"),
                Err(error) => tracing::error!(
                    "cannot open the access log {name}: {error}; lines go to the old file"
                ),
            }
            opened.ok()
        });
    }

    /// Lines that the target did not take; those on standard error are counted there.
    pub(crate) fn lost_lines(&self) -> u64 {
        match self.settings.target {
            Target::Stderr => 0,
            Target::Stdout | Target::File(_) => self.outlet.lost(),
        }
    }

    fn samples(&mut self, end: End) -> bool {
        if end != End::Finished {
            return true;
        }
        self.finished += 1;
        (self.finished - 1).is_multiple_of(u64::from(self.settings.sample))
    }

    /// The filter of `--log` is for standard error.
    fn is_wanted(&self) -> bool {
        self.settings.target != Target::Stderr
            || tracing::enabled!(target: TARGET, tracing::Level::INFO)
    }

    fn sum_up(&mut self, now: Instant, at_once: bool) {
        let Some((lasted, counts)) = self.refusals.sum(now, at_once) else {
            return;
        };
        if !self.is_wanted() {
            return;
        }
        let seconds = lasted.as_secs_f64().ceil() as u64;
        self.line
            .begin("more refusals")
            .number("count", counts.total())
            .number("seconds", seconds.max(1));
        for (reason, count) in counts.iter().filter(|(_, count)| *count > 0) {
            self.line.number(reason.name(), count);
        }
        self.outlet.add(self.line.end());
    }
}

/// Checks that the target of other settings can be opened.
///
/// # Errors
/// Why it cannot.
pub(crate) fn can_open(settings: &LogSettings) -> Result<(), String> {
    let Target::File(path) = &settings.target else {
        return Ok(());
    };
    let opened = open(path).map(drop);
    opened.map_err(|error| format!("cannot open the access log {}: {error}", path.display()))
}

fn outlet_to(file: File) -> io::Result<Arc<Outlet>> {
    Outlet::start(file, WAITING_BYTES_MAX, |lines| {
        tracing::warn!(
            lines,
            "lines of the access log were lost: they could not be written"
        );
    })
}

fn open(path: &Path) -> io::Result<File> {
    fairlead_driver_tun::open_for_appending(path)
}

/// Writes the fields of an event about a connection.
fn write_event(line: &mut Line, event: &Event, config: &Config) {
    match event {
        Event::Refused {
            client,
            listen,
            service,
            reason,
            status,
            subject,
            fault,
        } => {
            line.begin("refused")
                .plain("client", client)
                .plain("listen", listen)
                .text("service", service_name(config, *service))
                .text("reason", reason.name());
            if let Some(fault) = fault {
                line.text("detail", &fault.to_string());
            }
            if let Some(status) = status {
                line.number("status", u64::from(*status));
            }
            line.text("subject", subject.as_str());
            write_asked(line, subject);
        }
        Event::Given {
            client,
            listen,
            service,
            route,
            listener,
            subject,
        } => {
            line.begin("given")
                .plain("client", client)
                .plain("listen", listen)
                .text("service", service_name(config, *service))
                .text("route", route_name(config, *service, *route))
                .plain("listener", listener);
            write_asked(line, subject);
        }
        Event::Closed { .. } => write_closed(line, event, config),
        Event::Decided { .. }
        | Event::Server { .. }
        | Event::Availability { .. }
        | Event::LaterRequest { .. } => {}
    }
}

fn write_request(line: &mut Line, event: &fairlead_http_front::Event, config: &Config) {
    line.begin("request")
        .plain("client", event.client)
        .plain("listen", event.listen)
        .text("service", service_name(config, event.service));
    if let Some((route, pool)) = event.to {
        line.text("route", route_name(config, event.service, route))
            .text("pool", pool_name(config, pool));
    }
    if let Some((_, server)) = &event.server {
        line.plain("server", server);
    }
    line.number("bytes_in", event.bytes_in)
        .number("bytes_out", event.bytes_out)
        .millis("duration_ms", event.duration)
        .text("end", event.end.name());
    if let Some(reason) = event.reason {
        line.text("reason", reason.name());
    }
    write_asked(line, &event.asked);
    if let Some(status) = event.status {
        line.number("status", u64::from(status));
    }
    line.number("retries", u64::from(event.retries));
}

fn write_closed(line: &mut Line, event: &Event, config: &Config) {
    let Event::Closed {
        id,
        client,
        listen,
        service,
        route,
        pool,
        server,
        source,
        treatment,
        bytes_in,
        bytes_out,
        opened: _,
        duration,
        end,
        details,
    } = event
    else {
        return;
    };
    line.begin("closed")
        .plain("client", client)
        .plain("listen", listen)
        .text("service", service_name(config, *service))
        .text("route", route_name(config, *service, *route))
        .text("pool", pool.map_or("?", |pool| pool_name(config, pool)))
        .plain("server", server)
        .plain("source", source)
        .text("treatment", treatment.map_or("?", treatment_name))
        .number("bytes_in", *bytes_in)
        .number("bytes_out", *bytes_out)
        .number(
            "duration_ms",
            u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        )
        .text("end", end.name())
        .plain("id", id);
    if let Some(service) = config.services.get(usize::from(*service)) {
        line.text("protocol", protocol_name(service.protocol));
    }
    let Some(details) = details else {
        return;
    };
    write_asked(line, &details.subject);
    if let Some(status) = details.status {
        line.number("status", u64::from(status));
    }
    line.millis("head_ms", details.head);
    if let Some(connect) = details.connect {
        line.millis("connect_ms", connect);
    }
    line.number("retries", u64::from(details.retries));
}

fn write_asked(line: &mut Line, asked: &Asked) {
    line.text_if("method", asked.method())
        .text_if("host", asked.host())
        .text_if("path", asked.path())
        .text_if("sni", asked.sni())
        .text_if("alpn", asked.alpn());
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use fairlead_base::{Address, DropReason, Endpoint};
    use fairlead_datapath::{ConnectionId, Details};
    use fairlead_splice::config::{PoolId, Treatment};
    use fairlead_wire::Fault;

    use super::*;
    use crate::config::parse;

    fn settings(log: &str) -> Settings {
        let text = format!(
            "[log]\n{log}\n{}",
            include_str!("../../../../examples/edge.toml")
        );
        let loaded = parse(&text, "edge.toml").map_err(|report| report.render(false));
        loaded.unwrap().settings
    }

    fn at(last: u8, port: u16) -> Endpoint {
        Endpoint {
            addr: Address::v4([10, 0, 0, last]),
            port,
        }
    }

    fn id() -> ConnectionId {
        "1a-9c01e4d2".parse().unwrap()
    }

    fn closed(end: End, details: Option<Details>) -> Event {
        Event::Closed {
            id: id(),
            client: at(1, 4000),
            listen: at(3, 80),
            service: 0,
            route: 1,
            pool: Some(PoolId(1)),
            server: at(9, 8083),
            source: at(5, 1024),
            treatment: Some(Treatment::OneShot),
            bytes_in: 120,
            bytes_out: 4_500,
            opened: Instant::ZERO,
            duration: Duration::from_millis(1_234),
            end,
            details: details.map(Box::new),
        }
    }

    fn refused(reason: DropReason, status: Option<u16>, subject: Asked) -> Event {
        Event::Refused {
            client: at(1, 4000),
            listen: at(3, 80),
            service: 0,
            reason,
            status,
            subject,
            fault: None,
        }
    }

    /// An event's line as text and as JSON.
    fn line_of(event: &Event) -> (String, serde_json::Value) {
        let settings = settings("");
        let [text, json] = [LogFormat::Text, LogFormat::Json].map(|format| {
            let mut line = Line::new(format);
            write_event(&mut line, event, &settings.switch);
            String::from_utf8(line.end().to_vec()).unwrap()
        });
        assert_eq!((text.lines().count(), json.lines().count()), (1, 1));
        (text, serde_json::from_str(&json).unwrap())
    }

    #[test]
    fn a_connection_has_one_line_with_all_fields() {
        let details = Details {
            subject: Asked::http("GET", "a.example", b"/\"x\n"),
            head: Duration::from_micros(1_500),
            connect: Some(Duration::from_micros(20)),
            retries: 1,
            status: Some(200),
        };
        let (text, json) = line_of(&closed(End::ResetByClient, Some(details)));
        for part in [
            "INFO fairlead::connection: closed client=10.0.0.1:4000 listen=10.0.0.3:80",
            "service=\"web\" route=\"#2\" pool=\"api\" server=10.0.0.9:8083",
            "source=10.0.0.5:1024 treatment=\"one-shot\" bytes_in=120 bytes_out=4500",
            "duration_ms=1234 end=\"reset_by_client\" id=1a-9c01e4d2 protocol=\"http\"",
            "method=\"GET\" host=\"a.example\" path=\"/\\\"x\\\\x0a\" status=200",
            "head_ms=1.500 connect_ms=0.020 retries=1",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert_eq!(json["message"], "closed");
        assert_eq!(json["bytes_out"], 4_500);
        assert_eq!(json["client"], "10.0.0.1:4000");
        assert_eq!(json["path"], "/\"x\\x0a");
    }

    #[test]
    fn what_is_not_known_has_no_field() {
        let (_, json) = line_of(&closed(End::Finished, None));
        for name in ["status", "host", "path", "sni", "head_ms", "connect_ms"] {
            assert_eq!(json.get(name), None, "{name}");
        }
        let details = Details::default();
        let (_, json) = line_of(&closed(End::Finished, Some(details)));
        assert_eq!(json["head_ms"], 0.0);
        for name in ["status", "host", "path", "sni", "connect_ms"] {
            assert_eq!(json.get(name), None, "{name}");
        }
    }

    #[test]
    fn a_refusal_has_the_reason_and_the_status_sent() {
        let asked = Asked::http("GET", "a\x1b[31m", b"/\nb\"");
        let (text, json) = line_of(&refused(DropReason::NoRoute, Some(421), asked));
        assert!(text.contains("refused client=10.0.0.1:4000"), "{text}");
        assert!(text.contains("reason=\"no_route\" status=421"), "{text}");
        assert_eq!(json["status"], 421);
        assert_eq!(json["subject"], "GET a\\x1b[31m/\\x0ab\"");
        let (_, json) = line_of(&refused(DropReason::NoRoute, None, Asked::default()));
        assert_eq!((json.get("status"), json.get("host")), (None, None));
    }

    #[test]
    fn a_malformed_head_is_logged_with_rule_offset_and_byte() {
        let mut event = refused(DropReason::HttpMalformed, Some(400), Asked::default());
        if let Event::Refused { fault, .. } = &mut event {
            *fault = Some(Fault {
                rule: "control_byte",
                at: Some(35),
                byte: Some(1),
            });
        }
        let (text, json) = line_of(&event);
        let wanted = "reason=\"http_malformed\" detail=\"control_byte at 35 byte 0x01\" status=400";
        assert!(text.contains(wanted), "{text}");
        assert_eq!(json["detail"], "control_byte at 35 byte 0x01");
    }

    #[test]
    fn unknown_names_are_question_marks() {
        for known in [Some(PoolId(9)), None] {
            let mut event = closed(End::Finished, None);
            if let Event::Closed {
                service,
                pool,
                treatment,
                ..
            } = &mut event
            {
                *service = 9;
                *pool = known;
                *treatment = None;
            }
            let (text, _) = line_of(&event);
            let names = "service=\"?\" route=\"?\" pool=\"?\"";
            assert!(text.contains(names), "{text}");
            assert!(text.contains("treatment=\"?\""), "{text}");
        }
    }

    /// What an access log with these settings writes to its file.
    fn written(log: &str, work: impl FnOnce(&mut AccessLog<'_>)) -> Vec<serde_json::Value> {
        let mut settings = settings(log);
        settings.log.target = Target::File("/nowhere".into());
        let (mut reader, writer) = io::pipe().unwrap();
        let mut access = AccessLog {
            settings: &settings.log,
            config: &settings.switch,
            outlet: Outlet::start(writer, WAITING_BYTES_MAX, |_| {}).unwrap(),
            line: Line::new(LogFormat::Json),
            refusals: Refusals::default(),
            finished: 0,
        };
        let reading = std::thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            text
        });
        work(&mut access);
        access.finish(Instant::from_millis(5_000));
        let sink = File::options().write(true).open("/dev/null").unwrap();
        access.outlet.change_to(|| Some(sink));
        let text = reading.join().unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn refusals_are_limited_and_summed_up_by_default() {
        let many = |access: &mut AccessLog<'_>| {
            for millis in 0..500 {
                let event = refused(DropReason::NoRoute, None, Asked::default());
                access.handle(Instant::from_millis(millis), &event);
                access.handle(Instant::from_millis(millis), &closed(End::Aborted, None));
            }
        };
        let lines = written("", many);
        assert_eq!(lines.len(), 11);
        let sum = &lines[10];
        assert_eq!(
            (
                &sum["message"],
                &sum["count"],
                &sum["seconds"],
                &sum["no_route"]
            ),
            (&"more refusals".into(), &490.into(), &5.into(), &490.into())
        );
        assert_eq!(written("access = \"off\"", many).len(), 0);
        assert_eq!(written("access = \"all\"", many).len(), 1_000);
    }

    #[test]
    fn a_sample_has_one_of_many_that_ended_well_and_all_others() {
        let lines = written("access = \"all\"\nsample = 10", |access| {
            for _ in 0..30 {
                access.handle(Instant::ZERO, &closed(End::Finished, None));
            }
            for end in [End::ResetByServer, End::IdleTimeout] {
                access.handle(Instant::ZERO, &closed(end, None));
            }
        });
        let ends: Vec<_> = lines.iter().map(|line| line["end"].as_str()).collect();
        let finished = Some("finished");
        let others = [Some("reset_by_server"), Some("idle_timeout")];
        assert_eq!(ends, [[finished; 3].as_slice(), &others].concat());
    }
}
