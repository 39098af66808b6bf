//! `[network]` and `[fastpath]`.

use fairlead_base::Endpoint;
use fairlead_bpf_loader::{FlowTableKind, TcbGeometry};

use super::diagnostic::{At, Diagnostic, Problems};
use super::keys::{Key, Standard, Value, read};
use super::names;
use super::prefix::{Prefix, SNAT_ADDRESSES_MAX, prefix};
use super::quantity::endpoints;
use super::section::{Section, integer, string, strings, word};
use super::{Fastpath, Mode, Network, VethRedirect};

/// The source addresses as far as they could be read.
#[derive(Debug)]
pub(super) struct SnatDraft {
    pub(super) prefixes: Vec<At<Prefix>>,
    /// False when one could not be read, so that nothing is said about what is missing.
    pub(super) whole: bool,
}

/// Smallest MTU that both families work with here: RFC 791 asks every host for 576.
const MTU_MIN: u64 = 576;
const MTU_MAX: u64 = 65_535;
/// Each packet that the engine gets is compared with all of them.
const WATCHED_MAX: usize = 64;

impl Standard for Network {
    fn standard() -> Self {
        Self {
            device: "fairlead0".to_owned(),
            snat: Vec::new(),
            mtu: 1_500,
            watch: Vec::new(),
        }
    }
}

/// The keys of `[network]`.
pub(crate) const NETWORK_KEYS: [Key<Network>; 4] = [
    Key::<Network>::special(
        "device",
        "`\"fairlead0\"`",
        |network| network.device.clone(),
        "name of the TUN device to create: 1 to 15 letters, digits, `-`, `_`, `.`",
    )
    .renamed_from("fastpath", "device"),
    Key::<Network>::special(
        "snat",
        "none",
        |network| {
            let prefixes: Vec<_> = network.snat.iter().map(Prefix::to_string).collect();
            prefixes.join(" ")
        },
        "prefixes of the source addresses towards servers of services with `source = \"snat\"` \
         (see [Source addresses](#source-addresses))",
    )
    .renamed_from("fastpath", "snat"),
    Key::<Network>::new(
        "mtu",
        Value::Number {
            from: MTU_MIN,
            to: MTU_MAX,
            get: |network| network.mtu.into(),
            set: |network, mtu| network.mtu = mtu as u16,
        },
        "MTU of the device, 576 to 65535 bytes, 1280 or more with IPv6; it caps the advertised MSS",
    )
    .renamed_from("fastpath", "mtu"),
    Key::<Network>::special(
        "watch",
        "none",
        |network| {
            let all: Vec<_> = network.watch.iter().map(ToString::to_string).collect();
            all.join(" ")
        },
        "addresses and ports of this machine where web servers listen whose idle connections \
         [outlive](handoff.md#servers-that-fairlead-only-watches) their processes",
    ),
];

impl Standard for Fastpath {
    fn standard() -> Self {
        Self {
            mode: Mode::Auto,
            interfaces: Vec::new(),
            flow_table: FlowTableKind::Hash,
            veth_redirect: VethRedirect::Peer,
        }
    }
}

/// The keys of `[fastpath]`.
pub(crate) const FASTPATH_KEYS: [Key<Fastpath>; 6] = [
    Key::new(
        "mode",
        Value::Word {
            words: || Mode::ALL.map(Mode::name).to_vec(),
            get: |fastpath| fastpath.mode.name(),
            set: |fastpath, at| fastpath.mode = Mode::ALL[at],
        },
        "where spliced packets are translated: `auto`, `xdp`, `xdp-generic`, `tc` or `engine` (see \
         [Choosing a mode](#choosing-a-mode))",
    ),
    Key::special(
        "interfaces",
        "derived",
        |fastpath| fastpath.interfaces.join(" "),
        "names of the interfaces to attach to (see [Interfaces](#interfaces))",
    ),
    Key::special(
        "flow_table",
        "`\"hash\"`",
        |fastpath| fastpath.flow_table.name().to_owned(),
        "how the kernel finds the connection of a packet: `hash`, `lru-hash` or `tcb-cache` (see \
         [Flow tables](#flow-tables))",
    ),
    Key::<Fastpath>::special(
        "tcb_cache_lines",
        "`65_536`",
        |fastpath| match fastpath.flow_table {
            FlowTableKind::TcbCache(geometry) => geometry.lines.to_string(),
            _ => String::new(),
        },
        "with `flow_table = \"tcb-cache\"`: lines of the cache, a power of two from 8 to \
         16,777,216",
    )
    .renamed_from("fastpath", "flow_lines")
    .when("flow_table", "tcb-cache"),
    Key::<Fastpath>::special(
        "lru_max_keys",
        "all that `connections` need",
        |fastpath| match fastpath.flow_table {
            FlowTableKind::LruHash { keys } if keys > 0 => keys.to_string(),
            _ => String::new(),
        },
        "with `flow_table = \"lru-hash\"`: keys in the map, two for each connection; 256 to \
         33,554,432",
    )
    .renamed_from("fastpath", "flow_lines")
    .when("flow_table", "lru-hash"),
    Key::<Fastpath>::special(
        "veth_redirect",
        "`\"peer\"`",
        |fastpath| fastpath.veth_redirect.name().to_owned(),
        "under `tc`, how packets reach the other end of a veth: `peer` or `queue` (see \
         [veth](#veth))",
    )
    .renamed_from("fastpath", "veth"),
];

/// Reads `[network]`; the prefixes come with their places.
pub(super) fn network(
    section: Option<Section<'_>>,
    problems: &mut Problems,
) -> (Network, SnatDraft) {
    let mut network = Network::standard();
    let Some(section) = section else {
        let snat = SnatDraft {
            prefixes: Vec::new(),
            whole: true,
        };
        return (network, snat);
    };
    read(&NETWORK_KEYS, section, &mut network, problems);
    if let Some(device) = section
        .node("device")
        .and_then(|node| string(node, "device", "\"fairlead0\"", problems))
        .and_then(|text| names::device(&text, problems))
    {
        network.device = device;
    }
    network.watch = watch(section, problems);
    let snat = snat(section, problems);
    network.snat = snat.prefixes.iter().map(|prefix| prefix.value).collect();
    (network, snat)
}

fn watch(section: Section<'_>, problems: &mut Problems) -> Vec<Endpoint> {
    let node = section.node("watch");
    let all = node.map(|node| endpoints(node, "watch", problems));
    let mut watched = Vec::new();
    for at in all.unwrap_or_default() {
        if watched.contains(&at.value) {
            let message = format!("{} is watched twice", at.value);
            problems.push(Diagnostic::error(&at.span, message).help("write it once"));
        } else if watched.len() == WATCHED_MAX {
            let message = format!("more than {WATCHED_MAX} watched addresses");
            problems.push(Diagnostic::error(&at.span, message).help("write fewer"));
            break;
        } else {
            watched.push(at.value);
        }
    }
    watched
}

/// Says so when watched servers have no sleepers in this mode.
fn watched(section: Option<Section<'_>>, mode: Mode, problems: &mut Problems) {
    let why = match mode {
        Mode::Engine => "there is no kernel program",
        Mode::XdpGeneric => "it cannot give packets to sockets",
        Mode::Auto | Mode::Tc | Mode::Xdp => return,
    };
    if let Some(section) = section
        && section.node("watch").is_some()
    {
        let message = format!(
            "`watch` does nothing with mode = \"{}\": {why}",
            mode.name()
        );
        problems.push(
            Diagnostic::warning(&section.key_span("watch"), message)
                .help("write mode = \"auto\" or \"tc\" in [fastpath], or leave `watch` out"),
        );
    }
}

fn snat(section: Section<'_>, problems: &mut Problems) -> SnatDraft {
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
    SnatDraft { prefixes, whole }
}

/// Reads `[fastpath]`, the first of both sections; the second is `[network]`, which was read.
pub(super) fn fastpath(
    (section, of_network): (Option<Section<'_>>, Option<Section<'_>>),
    network: &Network,
    problems: &mut Problems,
) -> Fastpath {
    let mut fastpath = Fastpath::standard();
    let Some(section) = section else {
        return fastpath;
    };
    read(&FASTPATH_KEYS, section, &mut fastpath, problems);
    if fastpath.mode == Mode::Engine {
        idle_without_kernel(section, problems);
    }
    watched(of_network, fastpath.mode, problems);
    interfaces(section, &network.device, &mut fastpath, problems);
    if let Some(kind) = flow_table(section, problems) {
        fastpath.flow_table = kind;
    }
    let mut words = VethRedirect::ALL.map(|one| (one.name(), one)).to_vec();
    if section.is_renamed("veth_redirect") {
        // The word that `peer` was.
        words.push(("auto", VethRedirect::Peer));
    }
    let node = section.node("veth_redirect");
    if let Some(one) = node.and_then(|node| word(node, "veth_redirect", &words, problems)) {
        fastpath.veth_redirect = one.value;
    }
    fastpath
}

/// Says which keys are for a kernel program, which `mode = "engine"` has not.
fn idle_without_kernel(section: Section<'_>, problems: &mut Problems) {
    for key in FASTPATH_KEYS.iter().map(|key| key.name) {
        if key == "mode" {
            continue;
        }
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

/// Where packets come in.
fn interfaces(
    section: Section<'_>,
    device: &str,
    fastpath: &mut Fastpath,
    problems: &mut Problems,
) {
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
    if fastpath.interfaces.iter().any(|one| one == device) {
        let message = format!("`interfaces` names the switch's own device, {device}");
        problems.push(
            Diagnostic::error(&section.key_span("interfaces"), message)
                .help("name those that packets come in by, or leave `interfaces` out"),
        );
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
    for (key, of) in [
        ("tcb_cache_lines", "tcb-cache"),
        ("lru_max_keys", "lru-hash"),
    ] {
        if section.node(key).is_some() && kind.name() != of {
            let message = format!(
                "`{key}` means nothing with flow_table = \"{}\"",
                kind.name()
            );
            problems.push(
                Diagnostic::error(&section.key_span(key), message)
                    .help(format!("leave it out, or write flow_table = \"{of}\"")),
            );
            return None;
        }
    }
    match kind {
        FlowTableKind::Hash => Some(kind),
        FlowTableKind::LruHash { .. } => {
            let Some(node) = section.node("lru_max_keys") else {
                return Some(kind);
            };
            let keys = integer(node, "lru_max_keys", KEYS_MIN..=KEYS_MAX, problems)?;
            Some(FlowTableKind::LruHash { keys: keys as u32 })
        }
        FlowTableKind::TcbCache(_) => {
            let Some(node) = section.node("tcb_cache_lines") else {
                return Some(kind);
            };
            let bounds = TcbGeometry::LINES_MIN.into()..=TcbGeometry::LINES_MAX.into();
            let lines = integer(node, "tcb_cache_lines", bounds, problems)? as u32;
            if lines.is_power_of_two() {
                return Some(FlowTableKind::TcbCache(TcbGeometry::of_lines(lines)));
            }
            let (above, below) = (lines.next_power_of_two(), lines.next_power_of_two() / 2);
            problems.push(
                Diagnostic::error(
                    &section.key_span("tcb_cache_lines"),
                    format!("`tcb_cache_lines` must be a power of two, not {lines}"),
                )
                .help(format!("write tcb_cache_lines = {below} or {above}")),
            );
            None
        }
    }
}
