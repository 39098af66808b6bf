//! `[instance]`, `[fastpath]` and `[limits]`.

use core::net::SocketAddr;
use core::time::Duration;

use fairlead_bpf_loader::{FlowTableKind, TcbGeometry};
use fairlead_splice::config::Limits;

use super::diagnostic::{At, Diagnostic, Problems};
use super::names;
use super::prefix::{Prefix, SNAT_ADDRESSES_MAX, prefix};
use super::quantity::{duration, show_size, size, socket};
use super::section::{Section, boolean, integer, string, strings, word};
use super::{Fastpath, Mode, OnStop, Veth};

/// `[instance]` as far as it could be read.
#[derive(Debug)]
pub(super) struct InstanceDraft {
    pub(super) name: String,
    pub(super) admin: Option<At<SocketAddr>>,
    pub(super) log_connections: bool,
    pub(super) drain_timeout: Duration,
    pub(super) on_stop: Option<At<OnStop>>,
    pub(super) probe_interval: Duration,
}

/// The source addresses as far as they could be read.
#[derive(Debug)]
pub(super) struct SnatDraft {
    pub(super) prefixes: Vec<At<Prefix>>,
    /// False when one could not be read, so that nothing is said about what is missing.
    pub(super) whole: bool,
}

/// How long live connections are given after the switch was told to stop.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How often servers are asked for the TCP options they honour.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

pub(super) fn instance(section: Option<Section<'_>>, problems: &mut Problems) -> InstanceDraft {
    let mut draft = InstanceDraft {
        name: "fairlead".to_owned(),
        admin: None,
        log_connections: false,
        drain_timeout: DRAIN_TIMEOUT,
        on_stop: None,
        probe_interval: PROBE_INTERVAL,
    };
    let Some(section) = section else { return draft };
    if let Some(name) = section
        .node("name")
        .and_then(|node| string(node, "name", "\"edge\"", problems))
        .and_then(|text| names::name(&text, problems))
    {
        draft.name = name.value;
    }
    draft.admin = section
        .node("admin")
        .and_then(|node| socket(node, "admin", problems));
    if let Some(admin) = &draft.admin
        && !admin.value.ip().is_loopback()
    {
        problems.push(
            Diagnostic::warning(
                &admin.span,
                format!(
                    "whoever reaches {} can read status, metrics and packets (/capture)",
                    admin.value
                ),
            )
            .help("the pages have no access control; 127.0.0.1 keeps them to this machine"),
        );
    }
    if let Some(asked) = section
        .node("log_connections")
        .and_then(|node| boolean(node, "log_connections", problems))
    {
        draft.log_connections = asked;
    }
    let words = OnStop::ALL.map(|one| (one.name(), one));
    draft.on_stop = section
        .node("on_stop")
        .and_then(|node| word(node, "on_stop", &words, problems));
    let mut span = |key: &str, low: u64, high: u64, target: &mut Duration| {
        let bounds = (Duration::from_millis(low), Duration::from_millis(high));
        if let Some(value) = section
            .node(key)
            .and_then(|node| duration(node, key, bounds, problems))
        {
            *target = value;
        }
    };
    span("drain_timeout", 0, 86_400_000, &mut draft.drain_timeout);
    span(
        "probe_interval",
        1_000,
        3_600_000,
        &mut draft.probe_interval,
    );
    draft
}

/// Smallest MTU that both families work with here: RFC 791 asks every host for 576.
const MTU_MIN: u64 = 576;
const MTU_MAX: u64 = 65_535;

/// Reads `[fastpath]`; the prefixes come with their places.
pub(super) fn fastpath(
    section: Option<Section<'_>>,
    problems: &mut Problems,
) -> (Fastpath, SnatDraft) {
    let mut fastpath = Fastpath {
        mode: Mode::Auto,
        device: "fairlead0".to_owned(),
        snat: Vec::new(),
        mtu: 1_500,
        interfaces: Vec::new(),
        flow_table: FlowTableKind::Hash,
        veth: Veth::Auto,
    };
    let Some(section) = section else {
        return (
            fastpath,
            SnatDraft {
                prefixes: Vec::new(),
                whole: true,
            },
        );
    };
    place(section, &mut fastpath, problems);
    if let Some(kind) = flow_table(section, problems) {
        fastpath.flow_table = kind;
    }
    let words = Veth::ALL.map(|veth| (veth.name(), veth));
    let veth = section.node("veth");
    if let Some(veth) = veth.and_then(|node| word(node, "veth", &words, problems)) {
        fastpath.veth = veth.value;
    }
    let node = section.node("snat");
    let texts = node
        .map(|node| strings(node, "snat", "\"100.64.0.0/24\"", problems))
        .unwrap_or_default();
    let mut whole = node.is_some() != texts.is_empty();
    let mut prefixes: Vec<At<Prefix>> = Vec::new();
    for text in texts {
        let Some(read) = prefix(&text, "snat", problems) else {
            whole = false;
            continue;
        };
        if let Some(earlier) = prefixes
            .iter()
            .find(|earlier| earlier.value.overlaps(&read))
        {
            problems.push(
                Diagnostic::error(&text.span, format!("{read} overlaps {}", earlier.value))
                    .related(&earlier.span, "the other prefix")
                    .help("write each source address once"),
            );
            continue;
        }
        prefixes.push(At::new(read, text.span));
    }
    let addresses: usize = prefixes
        .iter()
        .filter_map(|prefix| prefix.value.hosts().ok())
        .map(|all| all.len())
        .sum();
    if addresses > SNAT_ADDRESSES_MAX {
        let message =
            format!("{addresses} source addresses, more than the {SNAT_ADDRESSES_MAX} allowed");
        problems.push(
            Diagnostic::error(&section.key_span("snat"), message).help("write fewer prefixes"),
        );
    }
    fastpath.snat = prefixes.iter().map(|prefix| prefix.value).collect();
    (fastpath, SnatDraft { prefixes, whole })
}

/// Says which keys are for a kernel program, which `mode = "engine"` has not.
fn idle_without_kernel(section: Section<'_>, problems: &mut Problems) {
    for key in ["interfaces", "flow_table", "flow_lines", "veth"] {
        if section.node(key).is_some() {
            let message =
                format!("`{key}` does nothing with mode = \"engine\": there is no kernel program");
            problems.push(
                Diagnostic::warning(&section.key_span(key), message)
                    .help(format!("leave `{key}` out")),
            );
        }
    }
}

/// Where packets come in and are translated.
fn place(section: Section<'_>, fastpath: &mut Fastpath, problems: &mut Problems) {
    if let Some(mode) = mode(section, problems) {
        fastpath.mode = mode;
    }
    if fastpath.mode == Mode::Engine {
        idle_without_kernel(section, problems);
    }
    if let Some(node) = section.node("interfaces") {
        for text in strings(node, "interfaces", "[\"eth0\"]", problems) {
            let Some(name) = names::device(&text, problems) else {
                continue;
            };
            if fastpath.interfaces.contains(&name) {
                let message = format!("`interfaces` names {name} twice");
                problems.push(
                    Diagnostic::error(&text.span, message).help("the fast path is there once"),
                );
                continue;
            }
            fastpath.interfaces.push(name);
        }
    }
    if let Some(device) = section
        .node("device")
        .and_then(|node| string(node, "device", "\"fairlead0\"", problems))
        .and_then(|text| names::device(&text, problems))
    {
        fastpath.device = device;
    }
    if fastpath.interfaces.contains(&fastpath.device) {
        let message = format!(
            "`interfaces` names the switch's own device, {}",
            fastpath.device
        );
        problems.push(
            Diagnostic::error(&section.key_span("interfaces"), message)
                .help("name those that packets come in by, or leave `interfaces` out"),
        );
    }
    if let Some(mtu) = section
        .node("mtu")
        .and_then(|node| integer(node, "mtu", MTU_MIN..=MTU_MAX, problems))
    {
        fastpath.mtu = mtu as u16;
    }
}

/// Fewest keys of an LRU hash map: below, the kernel has hardly one for each processor.
const KEYS_MIN: u64 = 256;
const KEYS_MAX: u64 = 1 << 25;

/// `flow_table`, and the size that goes with it.
fn flow_table(section: Section<'_>, problems: &mut Problems) -> Option<FlowTableKind> {
    let lines = TcbGeometry::of_lines(TcbGeometry::LINES);
    let words = [
        FlowTableKind::Hash,
        FlowTableKind::LruHash { keys: 0 },
        FlowTableKind::TcbCache(lines),
    ]
    .map(|kind| (kind.name(), kind));
    let kind = match section.node("flow_table") {
        Some(node) => word(node, "flow_table", &words, problems)?.value,
        None => FlowTableKind::Hash,
    };
    let Some(node) = section.node("flow_lines") else {
        return Some(kind);
    };
    match kind {
        FlowTableKind::Hash => {
            let message = "`flow_lines` means nothing with flow_table = \"hash\"";
            problems.push(
                Diagnostic::error(&section.key_span("flow_lines"), message.to_owned()).help(
                    "leave it out: that table has room for all `connections` of [limits]; or write \
                     flow_table = \"tcb-cache\" or \"lru-hash\"",
                ),
            );
            None
        }
        FlowTableKind::LruHash { .. } => {
            let keys = integer(node, "flow_lines", KEYS_MIN..=KEYS_MAX, problems)?;
            Some(FlowTableKind::LruHash { keys: keys as u32 })
        }
        FlowTableKind::TcbCache(_) => {
            let bounds = TcbGeometry::LINES_MIN.into()..=TcbGeometry::LINES_MAX.into();
            let lines = integer(node, "flow_lines", bounds, problems)? as u32;
            if lines.is_power_of_two() {
                return Some(FlowTableKind::TcbCache(TcbGeometry::of_lines(lines)));
            }
            let (above, below) = (lines.next_power_of_two(), lines.next_power_of_two() / 2);
            problems.push(
                Diagnostic::error(
                    &section.key_span("flow_lines"),
                    format!("`flow_lines` must be a power of two, not {lines}"),
                )
                .help(format!("write flow_lines = {below} or {above}")),
            );
            None
        }
    }
}

fn mode(section: Section<'_>, problems: &mut Problems) -> Option<Mode> {
    let words = Mode::ALL.map(|mode| (mode.name(), mode));
    let node = section.node("mode")?;
    Some(word(node, "mode", &words, problems)?.value)
}

/// Reads `[limits]`.
pub(super) fn limits(section: Option<Section<'_>>, problems: &mut Problems) -> Limits {
    let mut limits = Limits::default();
    let Some(section) = section else {
        return limits;
    };
    let mut count = |key: &str, high: u64| {
        let node = section.node(key)?;
        integer(node, key, 1..=high, problems).map(|value| value as u32)
    };
    let connections = count("connections", 16_777_216);
    let setups = count("setups", 1_048_576);
    let half_read = count("half_read_heads", 1_048_576);
    let per_client = count("half_read_heads_per_client", 1_048_576);
    limits.connections = connections.unwrap_or(limits.connections);
    // What is not written follows what is: a smaller whole makes the parts smaller.
    limits.setups = setups.unwrap_or(limits.setups.min(limits.connections));
    limits.half_read = half_read.unwrap_or(limits.half_read.min(limits.setups));
    limits.half_read_per_client =
        per_client.unwrap_or(limits.half_read_per_client.min(limits.half_read));
    let ordered = [
        ("setups", limits.setups, "connections", limits.connections),
        ("half_read_heads", limits.half_read, "setups", limits.setups),
        (
            "half_read_heads_per_client",
            limits.half_read_per_client,
            "half_read_heads",
            limits.half_read,
        ),
    ];
    for (part, part_value, whole, whole_value) in ordered {
        if part_value > whole_value {
            problems.push(
                Diagnostic::error(
                    &section.key_span(part),
                    format!("`{part}` = {part_value} is more than `{whole}` = {whole_value}"),
                )
                .help(format!(
                    "write {part} = {whole_value} or less, or raise `{whole}`"
                )),
            );
        }
    }
    if let Some(bytes) = section
        .node("buffered_bytes")
        .and_then(|node| size(node, "buffered_bytes", (64 << 10, 64 << 30), problems))
    {
        limits.buffered_bytes = bytes.value;
    }
    limits
}

/// Says so when the limit of all heads is too small for one.
pub(super) fn room_for_a_head(
    section: Option<Section<'_>>,
    limits: &Limits,
    longest_head: u32,
    problems: &mut Problems,
) {
    if u64::from(longest_head) > limits.buffered_bytes
        && let Some(section) = section
    {
        problems.push(
            Diagnostic::error(
                &section.key_span("buffered_bytes"),
                format!(
                    "`buffered_bytes` = {} has no room for one head of {}",
                    show_size(limits.buffered_bytes),
                    show_size(u64::from(longest_head))
                ),
            )
            .help("raise `buffered_bytes`, or lower the service's `head_limit`"),
        );
    }
}
