//! The counters as OpenMetrics text.

use std::collections::BTreeMap;
use std::fmt;
use std::iter::repeat;

use fairlead_base::{CounterKind, CounterSet};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use fairlead_driver_tun::SizeCounts;
use fairlead_splice::carried::DURATION_LIMITS_MS;

use super::caches;
use super::status::{
    CarriedStatus, DirectionStatus, KernelStatus, ServerStatus, Status, TcbCacheStatus,
};

/// The media type of [`metrics`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The page of `/metrics`.
pub fn metrics(status: Status) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("fairlead");
    registry.register_collector(Box::new(Everything(status)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Everything(Status);

/// A metric with labels: its values by their labels.
pub(super) type Rows<'a> = Vec<(Vec<(&'static str, &'a str)>, u64)>;

/// What connections carried, by the labels of who they were of.
type CarriedRows<'a> = Vec<(Vec<(&'static str, &'a str)>, &'a CarriedStatus)>;

pub(super) struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    /// Begins a family of metrics. Help texts end in a full stop, as the registry's own do.
    fn family<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.0
            .encode_descriptor(name, &format!("{help}."), None, kind)
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self.family(name, help, MetricType::Counter)?;
        ConstCounter::new(value).encode(metric)
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self.family(name, help, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }

    fn ratio(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let metric = self.family(name, help, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }

    pub(super) fn counters(&mut self, name: &str, help: &str, rows: Rows<'_>) -> fmt::Result {
        let mut family = self.family(name, help, MetricType::Counter)?;
        for (labels, value) in rows {
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, u64, u64>(&value, None)?;
        }
        Ok(())
    }

    /// All counters of a table that have a metric.
    fn table(&mut self, counters: &impl CounterSet) -> fmt::Result {
        let all = counters.values().filter(|(one, _)| !one.metric.is_empty());
        let all: Vec<_> = all.collect();
        for family in all.chunk_by(|(one, _), (next, _)| one.metric == next.metric) {
            let (first, value) = family[0];
            match (first.label, first.kind) {
                (None, CounterKind::Counter) => self.counter(first.metric, first.help, value)?,
                (None, CounterKind::Gauge) => self.gauge(first.metric, first.help, value)?,
                (Some(_), kind) => {
                    let rows = family.iter();
                    let rows = rows.map(|(one, value)| (one.label.into_iter().collect(), *value));
                    self.rows(first.metric, first.help, kind, rows.collect())?;
                }
            }
        }
        Ok(())
    }

    /// The same of several, told apart by a label.
    fn tables<'s, T: CounterSet + 's>(
        &mut self,
        label: &'static str,
        all: &[(String, &'s T)],
    ) -> fmt::Result {
        for (at, counter) in T::TABLE.iter().enumerate() {
            let rows = all.iter();
            let rows = rows.map(|(of, one)| (vec![(label, of.as_str())], one.value(at)));
            self.rows(counter.metric, counter.help, counter.kind, rows.collect())?;
        }
        Ok(())
    }

    fn rows(&mut self, name: &str, help: &str, kind: CounterKind, rows: Rows<'_>) -> fmt::Result {
        match kind {
            CounterKind::Counter => self.counters(name, help, rows),
            CounterKind::Gauge => self.gauges(name, help, rows),
        }
    }

    pub(super) fn gauges(&mut self, name: &str, help: &str, rows: Rows<'_>) -> fmt::Result {
        let mut family = self.family(name, help, MetricType::Gauge)?;
        for (labels, value) in rows {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }
}

impl Page<'_> {
    /// Traffic and durations of connections that are over; `whose` says which.
    fn carried(&mut self, of: &str, whose: &str, all: &CarriedRows<'_>) -> fmt::Result {
        let mut rows = Rows::new();
        for (labels, carried) in all {
            for (direction, bytes) in [("in", carried.bytes_in), ("out", carried.bytes_out)] {
                rows.push(([&labels[..], &[("direction", direction)]].concat(), bytes));
            }
        }
        let name = format!("{of}_bytes");
        let help =
            format!("Payload bytes of spliced connections {whose}, added when a connection ends");
        self.counters(&name, &help, rows)?;
        let name = format!("{of}_connection_seconds");
        let help =
            format!("Duration of spliced connections {whose}, recorded when a connection ends");
        let mut family = self.family(&name, &help, MetricType::Histogram)?;
        let limits = DURATION_LIMITS_MS.iter().map(|ms| *ms as f64 / 1e3);
        let limits: Vec<f64> = limits.chain([f64::INFINITY]).collect();
        for (labels, carried) in all {
            // Of a switch of another version there may be fewer classes, or none.
            let counts = carried.by_duration.iter().copied().chain(repeat(0));
            let classes: Vec<(f64, u64)> = limits.iter().copied().zip(counts).collect();
            let connections = classes.iter().map(|(_, count)| count).sum();
            let lived_s = carried.lived_ms as f64 / 1e3;
            let mut one = family.encode_family(labels)?;
            one.encode_histogram::<NoLabelSet>(lived_s, connections, &classes, None)?;
        }
        Ok(())
    }
}

impl Collector for Everything {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = &self.0;
        let mut page = Page(encoder);
        instance(status, &mut page)?;
        switch(status, &mut page)?;
        device(status, &mut page)?;
        kernel(status.kernel.as_ref(), &mut page)?;
        interfaces(status, &mut page)?;
        announced(status, &mut page)?;
        listeners(status, &mut page)?;
        handoff(status, &mut page)?;
        if let Some(front) = &status.front {
            page.table(&front.0)?;
        }
        caches::encode(&status.caches, &mut page)?;
        tcb_cache(status.tcb_cache.as_ref(), &mut page)?;
        services(status, &mut page)?;
        servers(status, &mut page)?;
        carried(status, &mut page)
    }
}

fn instance(status: &Status, page: &mut Page<'_>) -> fmt::Result {
    let labels = [
        ("name", status.instance.as_str()),
        ("version", &status.version),
        ("mode", &status.mode),
        ("device", &status.device),
    ];
    page.family(
        "instance",
        "The instance, its version, mode and device",
        MetricType::Info,
    )?
    .encode_info(&labels)?;
    page.family(
        "fast_path",
        "The attach mode of the fast path: `xdp`, `tc`, `xdp-generic`, or `engine` without one",
        MetricType::Info,
    )?
    .encode_info(&[("way", status.way.as_str())])?;
    page.gauge(
        "uptime_seconds",
        "Seconds since the start or the last reload",
        status.uptime_s,
    )?;
    page.gauge(
        "draining",
        "1 while draining: no new connections are accepted",
        u64::from(status.draining),
    )?;
    page.table(&status.process.0)
}

fn interfaces(status: &Status, page: &mut Page<'_>) -> fmt::Result {
    if status.interfaces.is_empty() {
        return Ok(());
    }
    let mut rows = Rows::new();
    for one in &status.interfaces {
        rows.push((vec![("interface", &one.name)], u64::from(one.served)));
    }
    page.gauges(
        "interface_served",
        "1 while the fast path is attached to an interface, 0 while the interface is missing",
        rows,
    )
}

fn announced(status: &Status, page: &mut Page<'_>) -> fmt::Result {
    if status.announced.is_empty() {
        return Ok(());
    }
    let mut rows = Rows::new();
    for one in &status.announced {
        let labels = vec![("address", &*one.address), ("interface", &one.interface)];
        rows.push((labels, u64::from(one.state == "announced")));
    }
    page.gauges(
        "announced",
        "1 while ARP or neighbour solicitations for a listening address are answered on an \
         interface, 0 while it is probed or another machine has it",
        rows,
    )
}

fn listeners(status: &Status, page: &mut Page<'_>) -> fmt::Result {
    if status.listeners.is_empty() {
        return Ok(());
    }
    let mut rows = Rows::new();
    for one in &status.listeners {
        rows.push((vec![("listener", &*one.listener)], u64::from(one.up)));
    }
    page.gauges(
        "host_listener_up",
        "1 while somebody listens on a socket of this machine that a route leads to, looked at \
         every second",
        rows,
    )
}

fn handoff(status: &Status, page: &mut Page<'_>) -> fmt::Result {
    let Some(handoff) = &status.handoff else {
        return Ok(());
    };
    page.gauge(
        "handoff_connections",
        "Connections of proxies that are handed off now",
        handoff.connections,
    )?;
    page.gauge(
        "handoff_owners",
        "Users whose proxies have handed off connections that exist now",
        handoff.owners,
    )?;
    page.counters(
        "handoff_commands",
        "Messages of connection handoff, by command",
        by_name("command", &handoff.commands),
    )?;
    let mut refused = Rows::new();
    for (command, reasons) in &handoff.refused {
        for (reason, &count) in reasons {
            let labels = vec![("command", command.as_str()), ("reason", reason)];
            refused.push((labels, count));
        }
    }
    page.counters(
        "handoff_refused",
        "Commands of connection handoff that were refused, by command and reason",
        refused,
    )?;
    page.counter(
        "handoff_malformed",
        "Packets at the socket for handoff that were no message",
        handoff.malformed,
    )
}

fn both(rx: u64, tx: u64) -> Rows<'static> {
    vec![
        (vec![("direction", "rx")], rx),
        (vec![("direction", "tx")], tx),
    ]
}

/// Counts by what a label says.
fn by_name<'a>(label: &'static str, counts: &'a BTreeMap<String, u64>) -> Rows<'a> {
    let rows = counts.iter();
    rows.map(|(name, &n)| (vec![(label, name.as_str())], n))
        .collect()
}

fn switch(status: &Status, page: &mut Page<'_>) -> fmt::Result {
    page.table(&status.switch.0)?;
    page.counters(
        "ended",
        "Spliced connections that have ended, by how",
        by_name("end", &status.ended),
    )?;
    page.counters(
        "drops",
        "Packets dropped and clients refused, by reason",
        by_name("reason", &status.drops),
    )
}

fn device(status: &Status, page: &mut Page<'_>) -> fmt::Result {
    let device = &status.device_use;
    let of = |count: fn(&DirectionStatus) -> u64| both(count(&device.rx), count(&device.tx));
    page.counters(
        "device_packets",
        "Packets read from and written to the TUN device, one system call each",
        of(|one| one.packets),
    )?;
    page.counters(
        "device_bytes",
        "Bytes of packets read from and written to the TUN device, without its own header",
        of(|one| one.bytes),
    )?;
    page.counters(
        "device_super_packets",
        "Super-packets (GSO) read from and written to the TUN device",
        of(|one| one.super_packets),
    )?;
    page.gauges(
        "device_longest_bytes",
        "Longest packet read from and written to the TUN device since the start",
        of(|one| one.longest_bytes),
    )?;
    let limits: Vec<String> = (0..fairlead_driver_tun::SIZE_CLASSES)
        .map(|class| {
            SizeCounts::class_limit_bytes(class).map_or("+Inf".into(), |limit| limit.to_string())
        })
        .collect();
    let mut sizes = Rows::new();
    for (direction, counts) in [("rx", &device.rx), ("tx", &device.tx)] {
        for (limit, &packets) in limits.iter().zip(&counts.by_size) {
            let labels = vec![("direction", direction), ("up_to_bytes", limit)];
            sizes.push((labels, packets));
        }
    }
    page.counters(
        "device_packets_by_size",
        "Packets read from and written to the TUN device by length; each counts in one class only",
        sizes,
    )?;
    page.counter(
        "device_empty_reads",
        "Reads of the TUN device that returned no packet",
        device.rx_empty_reads,
    )?;
    let failures = [
        ("rx", "bad_header", device.rx_bad_header),
        ("tx", "no_room", device.tx_no_room),
        ("tx", "down", device.tx_down),
        ("tx", "refused", device.tx_refused),
        ("tx", "unsendable", device.tx_unsendable),
    ];
    page.counters(
        "device_failures",
        "Packets lost between the switch and the TUN device, by cause",
        failures
            .map(|(direction, why, n)| (vec![("direction", direction), ("why", why)], n))
            .into(),
    )
}

/// What the kernel program did; its packets and drops are in the switch's families, too.
fn kernel(kernel: Option<&KernelStatus>, page: &mut Page<'_>) -> fmt::Result {
    let Some(kernel) = kernel else {
        return Ok(());
    };
    page.table(&kernel.counters.0)?;
    page.counter(
        "kernel_dropped",
        "Packets dropped in the kernel",
        kernel.dropped,
    )?;
    page.counter(
        "flow_table_reinserted_keys",
        "Keys that an lru-hash flow table had evicted and the engine inserted again",
        kernel.keys_anew,
    )?;
    let maps = kernel.map_bytes.iter();
    page.gauges(
        "map_bytes",
        "Memory that the kernel has set aside for a map of its program, bytes",
        maps.map(|(map, bytes)| (vec![("map", map.as_str())], *bytes))
            .collect(),
    )?;
    let cpus = kernel.lookups.iter().enumerate();
    let cpus: Vec<_> = cpus.map(|(cpu, one)| (cpu.to_string(), &one.0)).collect();
    page.tables("cpu", &cpus)
}

fn tcb_cache(cache: Option<&TcbCacheStatus>, page: &mut Page<'_>) -> fmt::Result {
    let Some(cache) = cache else { return Ok(()) };
    let scheme = [("scheme", cache.scheme.as_str())];
    page.family("tcb_cache", "The scheme of the TCB cache", MetricType::Info)?
        .encode_info(&scheme)?;
    page.table(&cache.counters.0)?;
    page.ratio(
        "tcb_cache_hit_ratio",
        "Hits per access since the start, 0 to 1",
        cache.hit_ratio,
    )?;
    page.ratio(
        "tcb_cache_set_occupancy_mean",
        "Lines in use now, mean of all sets",
        cache.occupancy_mean,
    )?;
    let counts: Vec<String> = (0..cache.sets_by_occupancy.len())
        .map(|lines| lines.to_string())
        .collect();
    let sets = counts.iter().zip(&cache.sets_by_occupancy);
    page.gauges(
        "tcb_cache_sets",
        "Sets by the number of their lines in use now",
        sets.map(|(lines, sets)| (vec![("occupied", lines.as_str())], *sets))
            .collect(),
    )
}

fn services(status: &Status, page: &mut Page<'_>) -> fmt::Result {
    let of = |count: fn(&super::ServiceStatus) -> u64| -> Rows<'_> {
        status
            .services
            .iter()
            .map(|one| (vec![("service", one.name.as_str())], count(one)))
            .collect()
    };
    page.counters(
        "service_accepted",
        "Client connections accepted, by service",
        of(|one| one.accepted),
    )?;
    page.counters(
        "service_refused",
        "Clients refused, by service",
        of(|one| one.refused),
    )?;
    let mut denied = Rows::new();
    for service in &status.services {
        for (list, count) in &service.denied {
            let labels = vec![("service", service.name.as_str()), ("list", list)];
            denied.push((labels, *count));
        }
    }
    if !denied.is_empty() {
        page.counters(
            "access_denied",
            "SYNs of clients denied by an access list, by service and list",
            denied,
        )?;
    }
    let mut decisions = Rows::new();
    for service in &status.services {
        for route in &service.routes {
            let labels = vec![
                ("service", service.name.as_str()),
                ("route", &route.name),
                ("pool", &route.pool),
            ];
            decisions.push((labels, route.decisions));
        }
    }
    page.counters(
        "decisions",
        "Connections by the route that was chosen",
        decisions,
    )?;
    requests(status, page)?;
    later_requests(status, page)
}

fn requests(status: &Status, page: &mut Page<'_>) -> fmt::Result {
    let mut requests = Rows::new();
    for service in &status.services {
        for route in service.routes.iter().filter(|one| one.requests > 0) {
            let labels = vec![
                ("service", service.name.as_str()),
                ("route", &route.name),
                ("pool", &route.pool),
            ];
            requests.push((labels, route.requests));
        }
    }
    if requests.is_empty() {
        return Ok(());
    }
    page.counters(
        "requests",
        "Requests that are over by the route that was chosen, where requests are routed one by one",
        requests,
    )
}

fn later_requests(status: &Status, page: &mut Page<'_>) -> fmt::Result {
    let mut later = Rows::new();
    for service in &status.services {
        for route in &service.routes {
            for (would_be, count) in &route.later_requests {
                let labels = vec![
                    ("service", service.name.as_str()),
                    ("route", &route.name),
                    ("would_be", would_be),
                ];
                later.push((labels, *count));
            }
        }
    }
    if later.is_empty() {
        return Ok(());
    }
    page.counters(
        "later_requests",
        "Requests behind the first one that another pool would get: of one connection in 64, or \
         with `close` of all",
        later,
    )
}

fn servers(status: &Status, page: &mut Page<'_>) -> fmt::Result {
    let of = |value: fn(&ServerStatus) -> Option<u64>| -> Rows<'_> {
        let mut rows = Rows::new();
        for pool in &status.pools {
            for server in &pool.servers {
                if let Some(value) = value(server) {
                    let labels = vec![("pool", pool.name.as_str()), ("server", &server.endpoint)];
                    rows.push((labels, value));
                }
            }
        }
        rows
    };
    page.gauges(
        "server_weight",
        "Weight of a server in its pool",
        of(|one| Some(u64::from(one.weight))),
    )?;
    page.gauges(
        "server_active",
        "Open connections to a server now",
        of(|one| Some(one.active)),
    )?;
    page.counters(
        "server_connections",
        "Connections attempted to a server, failed ones included",
        of(|one| Some(one.total)),
    )?;
    page.counters(
        "server_failures",
        "Connections and probes that a server refused or did not answer",
        of(|one| Some(one.failures)),
    )?;
    page.gauges(
        "server_up",
        "1 if a server answered the last probe or connection, 0 if not; absent before the first \
         probe",
        of(|one| match one.state.as_str() {
            "up" => Some(1),
            "down" => Some(0),
            _ => None,
        }),
    )?;
    availability(page, &of)?;
    page.gauges(
        "server_mss_bytes",
        "MSS option of a server; absent before its first answer",
        of(|one| one.offers.as_ref().map(|offers| u64::from(offers.mss))),
    )?;
    page.gauges(
        "server_window_scale",
        "Window scale option of a server; absent if it has none",
        of(|one| one.offers.as_ref()?.window_scale.map(u64::from)),
    )?;
    page.gauges(
        "server_sack",
        "1 if a server supports SACK, 0 if not",
        of(|one| one.offers.as_ref().map(|offers| u64::from(offers.sack))),
    )?;
    page.gauges(
        "server_timestamps",
        "1 if a server supports TCP timestamps, 0 if not",
        of(|one| {
            one.offers
                .as_ref()
                .map(|offers| u64::from(offers.timestamps))
        }),
    )
}

/// Whether servers get connections, and why not.
fn availability<'s>(
    page: &mut Page<'_>,
    of: &impl Fn(fn(&ServerStatus) -> Option<u64>) -> Rows<'s>,
) -> fmt::Result {
    page.gauges(
        "server_available",
        "1 if a server gets connections, 0 if not",
        of(|one| Some(u64::from(one.unavailable.is_none()))),
    )?;
    page.gauges(
        "server_weight_eighths",
        "Weight of a server now, in eighths: less than eight times its weight during a slow start",
        of(|one| Some(one.weight_eighths)),
    )?;
    page.gauges(
        "server_check_passing",
        "1 if the health checks of a server pass, 0 if not; absent without health checks",
        of(|one| Some(u64::from(one.check.as_ref()?.state == "up"))),
    )?;
    page.counters(
        "server_checks_passed",
        "Health checks that a server passed; absent without health checks",
        of(|one| Some(one.check.as_ref()?.passed)),
    )?;
    page.counters(
        "server_checks_failed",
        "Health checks that a server failed; absent without health checks",
        of(|one| Some(one.check.as_ref()?.failed)),
    )?;
    page.counters(
        "server_ejections",
        "How often a server was ejected as an outlier",
        of(|one| Some(one.ejections)),
    )
}

fn carried(status: &Status, page: &mut Page<'_>) -> fmt::Result {
    let services = status.services.iter();
    let of_services = services.map(|one| (vec![("service", one.name.as_str())], &one.carried));
    page.carried("service", "of a service", &of_services.collect())?;
    let mut of_servers = CarriedRows::new();
    for pool in &status.pools {
        for server in &pool.servers {
            let labels = vec![("pool", pool.name.as_str()), ("server", &server.endpoint)];
            of_servers.push((labels, &server.carried));
        }
    }
    page.carried("server", "to a server", &of_servers)
}
