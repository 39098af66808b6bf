//! The counters as OpenMetrics text.

use std::fmt;
use std::iter::repeat;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use fairlead_driver_tun::SizeCounts;
use fairlead_splice::carried::DURATION_LIMITS_MS;

use super::status::{
    CarriedStatus, DirectionStatus, FlowLookupsStatus, KernelStatus, ServerStatus, Status,
    TcbCacheStatus,
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
type Rows<'a> = Vec<(Vec<(&'static str, &'a str)>, u64)>;

/// What connections carried, by the labels of who they were of.
type CarriedRows<'a> = Vec<(Vec<(&'static str, &'a str)>, &'a CarriedStatus)>;

struct Page<'a>(DescriptorEncoder<'a>);

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

    fn counters(&mut self, name: &str, help: &str, rows: Rows<'_>) -> fmt::Result {
        let mut family = self.family(name, help, MetricType::Counter)?;
        for (labels, value) in rows {
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, u64, u64>(&value, None)?;
        }
        Ok(())
    }

    fn gauges(&mut self, name: &str, help: &str, rows: Rows<'_>) -> fmt::Result {
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
        let help = format!("Stream bytes of spliced connections {whose}, counted as one ends");
        self.counters(&name, &help, rows)?;
        let name = format!("{of}_connection_seconds");
        let help = format!("How long spliced connections {whose} lived, counted as one ends");
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
        packets(status, &mut page)?;
        device(status, &mut page)?;
        connections(status, &mut page)?;
        kernel(status.kernel.as_ref(), &mut page)?;
        interfaces(status, &mut page)?;
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
        "The instance, its program and its device",
        MetricType::Info,
    )?
    .encode_info(&labels)?;
    page.family("fast_path", "What translates packets now", MetricType::Info)?
        .encode_info(&[("way", status.way.as_str())])?;
    page.gauge(
        "uptime_seconds",
        "Time since the start or the last reload",
        status.uptime_s,
    )?;
    page.gauge(
        "draining",
        "1 while no new connections are taken",
        u64::from(status.draining),
    )?;
    page.counter(
        "log_lines_lost",
        "Log lines lost, as nobody read them in time",
        status.log_lines_lost,
    )?;
    page.counter(
        "reloads_refused",
        "Reloads asked for and refused",
        status.reloads_refused,
    )?;
    page.counter(
        "orders_refused",
        "Requests at the control socket that were no orders, not permitted or too many",
        status.orders_refused,
    )
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
        "1 while the fast path serves an interface, 0 while the interface is gone",
        rows,
    )
}

fn both(rx: u64, tx: u64) -> Rows<'static> {
    vec![
        (vec![("direction", "rx")], rx),
        (vec![("direction", "tx")], tx),
    ]
}

fn packets(status: &Status, page: &mut Page<'_>) -> fmt::Result {
    page.counters(
        "packets",
        "Packets received and sent, a super-packet counted once",
        both(status.rx_packets, status.tx_packets),
    )?;
    page.counters(
        "bytes",
        "Bytes of packets received and sent, IP headers included",
        both(status.rx_bytes, status.tx_bytes),
    )?;
    page.counter(
        "fast_packets",
        "Packets translated by the fast path alone, in the kernel or in the process",
        status.fast_packets,
    )?;
    page.counter(
        "fast_bytes",
        "Bytes of packets translated by the fast path alone",
        status.fast_bytes,
    )?;
    page.counter(
        "engine_packets",
        "Packets the engine looked at",
        status.engine_packets,
    )?;
    page.counters(
        "drops",
        "Packets dropped and clients refused, by reason",
        status
            .drops
            .iter()
            .map(|(name, &n)| (vec![("reason", name.as_str())], n))
            .collect(),
    )
}

fn device(status: &Status, page: &mut Page<'_>) -> fmt::Result {
    let device = &status.device_use;
    let of = |count: fn(&DirectionStatus) -> u64| both(count(&device.rx), count(&device.tx));
    page.counters(
        "device_packets",
        "Packets read from and written to the device, each by a system call",
        of(|one| one.packets),
    )?;
    page.counters(
        "device_bytes",
        "Bytes of packets read and written, without the device's own header",
        of(|one| one.bytes),
    )?;
    page.counters(
        "device_super_packets",
        "Packets read and written that are to be cut into segments",
        of(|one| one.super_packets),
    )?;
    page.gauges(
        "device_longest_bytes",
        "Length of the longest packet read and written since the start",
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
        "Packets read and written by length, each in the first class that holds it",
        sizes,
    )?;
    page.counter(
        "device_empty_reads",
        "Reads that found no packet",
        device.rx_empty_reads,
    )?;
    page.counter(
        "device_queue_dropped",
        "Packets for the engine that found the device's queue full, looked at every few seconds",
        status.device_queue_dropped,
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
        "Packets lost between switch and device, by why",
        failures
            .map(|(direction, why, n)| (vec![("direction", direction), ("why", why)], n))
            .into(),
    )
}

fn connections(status: &Status, page: &mut Page<'_>) -> fmt::Result {
    page.counter("syns", "SYNs for a service", status.syns)?;
    page.counter("syn_acks", "SYN-ACKs sent to clients", status.syn_acks)?;
    page.counter(
        "accepted",
        "Connections whose cookie was accepted",
        status.accepted,
    )?;
    page.counter("spliced", "Connections spliced", status.spliced)?;
    page.counters(
        "ended",
        "Spliced connections ended, by how",
        status
            .ended
            .iter()
            .map(|(name, &n)| (vec![("end", name.as_str())], n))
            .collect(),
    )?;
    page.counter(
        "adopted",
        "Connections taken over from an earlier run, those at rest not included",
        status.adopted,
    )?;
    page.counter(
        "rests_cut_short",
        "Records in TIME_WAIT or after a RST given up for newcomers, as table or sources were full",
        status.rests_cut_short,
    )?;
    page.counter(
        "reassembled",
        "Packets that came in fragments and were put together",
        status.reassembled,
    )?;
    page.counter(
        "handed_back",
        "Packets from servers that belong to no connection of the switch, passed on as they were",
        status.handed_back,
    )?;
    page.counter(
        "retries",
        "Further servers tried after a refusal or silence",
        status.retries,
    )?;
    page.counter("probes", "Probes sent to servers", status.probes_sent)?;
    page.gauge(
        "live",
        "Spliced connections now, those at rest not counted",
        status.live,
    )?;
    page.gauge("setups", "Connections being set up now", status.setups)?;
    page.gauge("half_read", "Heads not yet whole now", status.half_read)?;
    page.gauge(
        "buffered_bytes",
        "Bytes held in heads now",
        status.buffered_bytes,
    )?;
    page.gauge(
        "time_wait",
        "Records at rest now, in TIME_WAIT or after a RST",
        status.time_wait,
    )?;
    page.gauge("records", "Connection records in use now", status.records)?;
    page.gauge(
        "records_max",
        "Connection records that there is room for",
        status.records_max,
    )
}

/// What the kernel program did; its packets and drops are in the switch's families, too.
fn kernel(kernel: Option<&KernelStatus>, page: &mut Page<'_>) -> fmt::Result {
    let Some(kernel) = kernel else {
        return Ok(());
    };
    for (name, help, value) in [
        (
            "packets",
            "Packets translated in the kernel",
            kernel.fast_packets,
        ),
        ("bytes", "Bytes translated in the kernel", kernel.fast_bytes),
        ("syns", "SYNs answered in the kernel", kernel.syns),
        (
            "acks_swallowed",
            "Last ACKs of handshakes that ended in the kernel",
            kernel.acks_swallowed,
        ),
        ("fins", "FINs translated in the kernel", kernel.fins),
        (
            "resets",
            "RSTs translated in the kernel that ended their connections",
            kernel.resets,
        ),
        (
            "begun",
            "Connections whose server the kernel sent the SYN by itself",
            kernel.begun,
        ),
        (
            "joins",
            "Connections spliced by the kernel, at the server's SYN-ACK",
            kernel.joins,
        ),
        (
            "to_engine",
            "Packets of connections and services left to the engine, for whatever cause",
            kernel.to_engine,
        ),
        (
            "no_neighbour",
            "Packets of connections left to the engine because the kernel cannot send them: \
             without a route or neighbour, too long for their way, or, under XDP, for an \
             interface that takes nothing from it",
            kernel.no_neighbour,
        ),
        (
            "not_ours",
            "Packets that concern no service or connection, passed on untouched",
            kernel.not_ours,
        ),
        ("dropped", "Packets dropped in the kernel", kernel.dropped),
    ] {
        page.counter(&format!("kernel_{name}"), help, value)?;
    }
    page.counter(
        "flow_table_keys_anew",
        "Keys that a flow table of lru-hash had evicted and was told anew",
        kernel.keys_anew,
    )?;
    lookups(&kernel.lookups, page)
}

/// Look-ups in the flow table, by processor.
fn lookups(all: &[FlowLookupsStatus], page: &mut Page<'_>) -> fmt::Result {
    type Field = fn(&FlowLookupsStatus) -> u64;
    let families: [(&str, &str, Field); 7] = [
        (
            "hits",
            "Packets whose connection the flow table found, with tcb-cache by a line of the cache",
            |one| one.hits,
        ),
        (
            "misses",
            "Packets whose connection only the map behind the tcb-cache had",
            |one| one.misses,
        ),
        (
            "mismatches",
            "Hits on a line of the tcb-cache that led to another connection",
            |one| one.mismatches,
        ),
        (
            "second_hits",
            "Hits of the tcb-cache in the set of its second index function",
            |one| one.second_hits,
        ),
        (
            "migrations",
            "Lines of the tcb-cache moved into another of their sets",
            |one| one.migrations,
        ),
        (
            "evictions",
            "Lines of the tcb-cache given up for others",
            |one| one.evictions,
        ),
        (
            "evicted_on",
            "Lines of the tcb-cache given up although they were ON",
            |one| one.evicted_on,
        ),
    ];
    let cpus: Vec<String> = (0..all.len()).map(|cpu| cpu.to_string()).collect();
    for (name, help, field) in families {
        let rows = cpus.iter().zip(all);
        let rows = rows.map(|(cpu, one)| (vec![("cpu", cpu.as_str())], field(one)));
        page.counters(&format!("flow_table_{name}"), help, rows.collect())?;
    }
    Ok(())
}

fn tcb_cache(cache: Option<&TcbCacheStatus>, page: &mut Page<'_>) -> fmt::Result {
    let Some(cache) = cache else { return Ok(()) };
    let scheme = [("scheme", cache.scheme.as_str())];
    page.family("tcb_cache", "The TCB cache's scheme", MetricType::Info)?
        .encode_info(&scheme)?;
    for (name, help, value) in [
        (
            "accesses",
            "Look-ups for connections on record",
            cache.accesses,
        ),
        (
            "hits",
            "Accesses whose session identifier was in the cache",
            cache.hits,
        ),
        (
            "misses",
            "Accesses whose session identifier was not in the cache",
            cache.misses,
        ),
        (
            "strangers",
            "Look-ups for connections not on record, which are no accesses",
            cache.strangers,
        ),
        (
            "mismatches",
            "Hits that led to another connection of the same client",
            cache.mismatches,
        ),
        (
            "migrations",
            "Lines moved into another of their sets",
            cache.migrations,
        ),
        (
            "second_lookup_hits",
            "Hits in the set of a second index function",
            cache.second_lookup_hits,
        ),
        (
            "bypasses",
            "Newcomers that were given no line",
            cache.bypasses,
        ),
        ("evictions", "Lines given up for others", cache.evictions),
        (
            "evicted_on",
            "Lines given up for others although they were ON",
            cache.evicted_on,
        ),
    ] {
        page.counter(&format!("tcb_cache_{name}"), help, value)?;
    }
    page.ratio(
        "tcb_cache_hit_ratio",
        "Share of accesses that hit since the start, 0 to 1",
        cache.hit_ratio,
    )?;
    tcb_cache_lines(cache, page)
}

/// What the TCB cache holds now.
fn tcb_cache_lines(cache: &TcbCacheStatus, page: &mut Page<'_>) -> fmt::Result {
    for (name, help, value) in [
        ("capacity_bytes", "Size of all lines", cache.capacity_bytes),
        ("lines", "Lines of the cache", cache.lines),
        ("occupied_lines", "Lines in use now", cache.occupied),
        ("on_lines", "Lines in use and ON now", cache.on_lines),
        (
            "set_occupancy_min",
            "Lines in use in the emptiest set now",
            cache.occupancy_min,
        ),
        (
            "set_occupancy_max",
            "Lines in use in the fullest set now",
            cache.occupancy_max,
        ),
    ] {
        page.gauge(&format!("tcb_cache_{name}"), help, value)?;
    }
    page.ratio(
        "tcb_cache_set_occupancy_mean",
        "Lines in use now, averaged over all sets",
        cache.occupancy_mean,
    )?;
    let counts: Vec<String> = (0..cache.sets_by_occupancy.len())
        .map(|lines| lines.to_string())
        .collect();
    let sets = counts.iter().zip(&cache.sets_by_occupancy);
    page.gauges(
        "tcb_cache_sets",
        "Sets by how many of their lines are in use now",
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
        "Connections accepted, by service",
        of(|one| one.accepted),
    )?;
    page.counters(
        "service_refused",
        "Clients turned away, by service",
        of(|one| one.refused),
    )?;
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
    page.counters("decisions", "Connections decided, by route", decisions)
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
        "A server's weight in its pool",
        of(|one| Some(u64::from(one.weight))),
    )?;
    page.gauges(
        "server_active",
        "Connections to a server now",
        of(|one| Some(one.active)),
    )?;
    page.counters(
        "server_connections",
        "Connections begun to a server, those that it did not take included",
        of(|one| Some(one.total)),
    )?;
    page.counters(
        "server_failures",
        "Connections and probes that a server refused or left unanswered",
        of(|one| Some(one.failures)),
    )?;
    page.gauges(
        "server_up",
        "1 if a server answered last time, 0 if not; missing until it was asked",
        of(|one| match one.state.as_str() {
            "up" => Some(1),
            "down" => Some(0),
            _ => None,
        }),
    )?;
    page.gauges(
        "server_mss_bytes",
        "Maximum segment size a server announced; missing until it has answered",
        of(|one| one.offers.as_ref().map(|offers| u64::from(offers.mss))),
    )?;
    page.gauges(
        "server_window_scale",
        "Window scale a server announced; missing where it does not scale",
        of(|one| one.offers.as_ref()?.window_scale.map(u64::from)),
    )?;
    page.gauges(
        "server_sack",
        "1 if a server honours selective acknowledgements, 0 if not",
        of(|one| one.offers.as_ref().map(|offers| u64::from(offers.sack))),
    )?;
    page.gauges(
        "server_timestamps",
        "1 if a server honours timestamps, 0 if not",
        of(|one| {
            one.offers
                .as_ref()
                .map(|offers| u64::from(offers.timestamps))
        }),
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
