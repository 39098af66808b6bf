//! `[instance]` and `[limits]`.

use core::net::SocketAddr;
use core::time::Duration;

use fairlead_splice::config::Limits;

use super::diagnostic::{At, Diagnostic, Problems, Span};
use super::keys::{Key, Standard, Value, read};
use super::names;
use super::quantity::{show_size, socket};
use super::section::{Section, quoted, string, strings};
use super::token;
use super::{Announce, Instance, OnStop};

/// `[instance]` as far as it could be read.
#[derive(Debug)]
pub(super) struct InstanceDraft {
    pub(super) instance: Instance,
    /// The place of `admin`.
    pub(super) admin: Option<At<SocketAddr>>,
    /// The place of `on_stop`.
    pub(super) on_stop: Option<Span>,
}

impl Standard for Instance {
    fn standard() -> Self {
        Self {
            name: "fairlead".to_owned(),
            admin: None,
            admin_hosts: Vec::new(),
            admin_token_file: None,
            drain_timeout: Duration::from_secs(30),
            on_stop: OnStop::default(),
            announce: Announce::Auto,
            announce_interfaces: Vec::new(),
            announce_repeat: 5,
            adopt_socket: None,
            adopt_group: None,
            adopt_connections: 10_000,
        }
    }
}

/// The keys of `[instance]`.
pub(crate) const KEYS: [Key<Instance>; 12] = [
    Key::special(
        "name",
        "`\"fairlead\"`",
        |one| one.name.clone(),
        "the name of this instance in status, metrics and `/sys/fs/bpf/fairlead/NAME` (a `.` \
         becomes a `:`)",
    ),
    Key::special(
        "admin",
        "none",
        |one| one.admin.map_or_else(String::new, |at| at.to_string()),
        "address and port of the [admin pages](#admin-pages)",
    ),
    Key::special(
        "admin_hosts",
        "none",
        |one| one.admin_hosts.join(" "),
        "names that `Host` may have at `admin` for `/v1`, besides IP addresses and `localhost`",
    ),
    Key::special(
        "admin_token_file",
        "none",
        |one| {
            let path = one.admin_token_file.as_ref();
            path.map_or_else(String::new, |path| path.display().to_string())
        },
        "absolute path of a file with a token of 16 to 256 characters: `admin` takes orders \
         (`/v1`) with it",
    ),
    Key::new(
        "drain_timeout",
        Value::Duration {
            from: Duration::ZERO,
            to: Duration::from_secs(86_400),
            get: |one| one.drain_timeout,
            set: |one, after| one.drain_timeout = after,
        },
        "how long open connections may continue after a stop; `\"0s\"` to `\"1d\"`",
    ),
    Key::new(
        "on_stop",
        Value::Word {
            words: || OnStop::ALL.map(OnStop::name).to_vec(),
            get: |one| one.on_stop.name(),
            set: |one, at| one.on_stop = OnStop::ALL[at],
        },
        "what SIGTERM and SIGINT do: `drain` or `keep` (see \
         [Restarts and upgrades](#restarts-and-upgrades))",
    ),
    Key::new(
        "announce",
        Value::Word {
            words: || vec!["auto", "off"],
            get: |one| match one.announce {
                Announce::Auto => "auto",
                Announce::Off => "off",
            },
            set: |one, at| one.announce = [Announce::Auto, Announce::Off][at],
        },
        "answer ARP and neighbour solicitations for listening addresses: `auto` (those in a subnet \
         of an interface that no machine has) or `off`",
    ),
    Key::special(
        "announce_interfaces",
        "all",
        |one| one.announce_interfaces.join(" "),
        "the names of the interfaces on which addresses are announced",
    ),
    Key::new(
        "announce_repeat",
        Value::Number {
            from: 1,
            to: 60,
            get: |one| one.announce_repeat.into(),
            set: |one, times| one.announce_repeat = times as u8,
        },
        "how often, once a second, an address that is taken over is announced to all; 1 to 60",
    ),
    Key::special(
        "adopt_socket",
        "none",
        |one| {
            let path = one.adopt_socket.as_ref();
            path.map_or_else(String::new, |path| path.display().to_string())
        },
        "where proxies [hand connections off](handoff.md), such as `/run/fairlead/NAME.adopt`",
    ),
    Key::special(
        "adopt_group",
        "none",
        |one| one.adopt_group.clone().unwrap_or_default(),
        "the group that may use `adopt_socket`, besides root",
    ),
    Key::new(
        "adopt_connections",
        Value::Number {
            from: 1,
            to: 1_000_000,
            get: |one| one.adopt_connections.into(),
            set: |one, most| one.adopt_connections = most as u32,
        },
        "pairs of connections that one user may have handed off at once",
    ),
];

pub(super) fn instance(section: Option<Section<'_>>, problems: &mut Problems) -> InstanceDraft {
    let mut draft = InstanceDraft {
        instance: Instance::standard(),
        admin: None,
        on_stop: None,
    };
    let Some(section) = section else { return draft };
    read(&KEYS, section, &mut draft.instance, problems);
    if let Some(name) = section
        .node("name")
        .and_then(|node| string(node, "name", "\"edge\"", problems))
        .and_then(|text| names::name(&text, problems))
    {
        draft.instance.name = name.value;
    }
    if let Some(node) = section.node("announce_interfaces") {
        let names = strings(node, "announce_interfaces", "\"eth0\"", problems);
        let names = names
            .iter()
            .filter_map(|name| names::device(name, problems));
        draft.instance.announce_interfaces = names.collect();
    }
    admin_hosts(section, &mut draft.instance, problems);
    draft.instance.admin_token_file = token::token_file(section, problems);
    adopt(section, &mut draft.instance, problems);
    draft.on_stop = section.node("on_stop").map(|node| node.span());
    draft.admin = section
        .node("admin")
        .and_then(|node| socket(node, "admin", problems));
    if let Some(admin) = &draft.admin {
        draft.instance.admin = Some(admin.value);
        if !admin.value.ip().is_loopback() {
            problems.push(
                Diagnostic::warning(
                    &admin.span,
                    format!(
                        "any host that can connect to {} can read status, metrics and packets \
                         (/capture)",
                        admin.value
                    ),
                )
                .help("the pages have no access control; 127.0.0.1 limits them to this machine"),
            );
        }
    }
    draft
}

/// The names that `Host` may have, and a warning of keys that do nothing.
fn admin_hosts(section: Section<'_>, instance: &mut Instance, problems: &mut Problems) {
    if let Some(node) = section.node("admin_hosts") {
        for name in strings(node, "admin_hosts", "\"edge.example.com\"", problems) {
            let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            if name.value.is_empty() || name.value.len() > 253 || !name.value.bytes().all(letter) {
                let message = format!("{} is not a host name", quoted(name.value));
                problems.push(
                    Diagnostic::error(&name.span, message)
                        .help("write a name without a port, such as \"edge.example.com\""),
                );
                continue;
            }
            instance.admin_hosts.push(name.value.to_ascii_lowercase());
        }
    }
    if section.node("admin").is_some() {
        return;
    }
    for key in ["admin_hosts", "admin_token_file"] {
        if section.node(key).is_some() {
            let message = format!("`{key}` does nothing without `admin`");
            problems.push(
                Diagnostic::warning(&section.key_span(key), message)
                    .help(format!("write `admin`, or leave `{key}` out")),
            );
        }
    }
}

/// `adopt_socket` and `adopt_group`.
fn adopt(section: Section<'_>, instance: &mut Instance, problems: &mut Problems) {
    let socket = section.node("adopt_socket").and_then(|node| {
        string(
            node,
            "adopt_socket",
            "\"/run/fairlead/edge.adopt\"",
            problems,
        )
    });
    if let Some(path) = socket {
        if path.value.starts_with('/') && path.value.len() <= SOCKET_PATH_BYTES_MAX {
            instance.adopt_socket = Some(path.value.into());
        } else {
            let message = format!(
                "`adopt_socket` is an absolute path of at most {SOCKET_PATH_BYTES_MAX} bytes"
            );
            let help = "write adopt_socket = \"/run/fairlead/edge.adopt\"";
            problems.push(Diagnostic::error(&path.span, message).help(help));
        }
    }
    let group = section
        .node("adopt_group")
        .and_then(|node| string(node, "adopt_group", "\"haproxy\"", problems));
    if let Some(group) = group {
        if instance.adopt_socket.is_none() {
            let message = "`adopt_group` has no effect without `adopt_socket`";
            problems.push(Diagnostic::warning(&group.span, message.to_owned()));
        }
        instance.adopt_group = Some(group.value.to_owned());
    }
}

/// The longest path of a socket, with room for the suffix that it has until it listens.
const SOCKET_PATH_BYTES_MAX: usize = 100;

impl Standard for Limits {
    fn standard() -> Self {
        Self::default()
    }
}

/// The keys of `[limits]`.
pub(crate) const LIMITS_KEYS: [Key<Limits>; 8] = [
    Key::new(
        "connections",
        Value::Number {
            from: 1,
            to: 16_777_216,
            get: |limits| limits.connections.into(),
            set: |limits, most| limits.connections = most as u32,
        },
        "capacity of the connection table, closing connections included; at most 16,777,216",
    ),
    Key::new(
        "setups",
        Value::Number {
            from: 1,
            to: 1_048_576,
            get: |limits| limits.setups.into(),
            set: |limits, most| limits.setups = most as u32,
        },
        "connections being set up at once; at most `connections`, and 1,048,576",
    ),
    Key::new(
        "half_read_heads",
        Value::Number {
            from: 1,
            to: 1_048_576,
            get: |limits| limits.half_read.into(),
            set: |limits, most| limits.half_read = most as u32,
        },
        "incomplete heads at once; at most `setups`",
    ),
    Key::new(
        "half_read_heads_per_client",
        Value::Number {
            from: 1,
            to: 1_048_576,
            get: |limits| limits.half_read_per_client.into(),
            set: |limits, most| limits.half_read_per_client = most as u32,
        },
        "incomplete heads of one client at once; at most `half_read_heads`",
    ),
    Key::new(
        "silent_clients",
        Value::Number {
            from: 1,
            to: 1_048_576,
            get: |limits| limits.silent_clients.into(),
            set: |limits, most| limits.silent_clients = most as u32,
        },
        "clients at once that have sent nothing, of services with `first_bytes_timeout`; at most \
         `setups`. Those beyond it are served when they speak",
    ),
    Key::new(
        "front_connections_per_client",
        Value::Number {
            from: 1,
            to: 16_384,
            get: |limits| limits.front_per_client.into(),
            set: |limits, most| limits.front_per_client = most as u32,
        },
        "connections of one client at once that are served request by request; further ones are \
         closed",
    ),
    Key::new(
        "sleepers",
        Value::Number {
            from: 1,
            to: 16_777_216,
            get: |limits| limits.sleepers.into(),
            set: |limits, most| limits.sleepers = most as u32,
        },
        "connections of routes with `sleep` at once, awake or asleep; those beyond it do not \
         outlive their sockets",
    ),
    Key::new(
        "buffered_bytes",
        Value::Size {
            from: 64 << 10,
            to: 64 << 30,
            get: |limits| limits.buffered_bytes,
            set: |limits, most| limits.buffered_bytes = most,
        },
        "bytes of heads buffered in total; `\"64KiB\"` to `\"64GiB\"`",
    ),
];

/// Reads `[limits]`.
pub(super) fn limits(section: Option<Section<'_>>, problems: &mut Problems) -> Limits {
    let mut limits = Limits::default();
    let Some(section) = section else {
        return limits;
    };
    read(&LIMITS_KEYS, section, &mut limits, problems);
    // What is not written follows what is: a smaller whole makes the parts smaller.
    let lower = |key: &str, part: &mut u32, whole: u32| {
        if section.node(key).is_none() {
            *part = whole.min(*part);
        }
    };
    lower("setups", &mut limits.setups, limits.connections);
    lower("half_read_heads", &mut limits.half_read, limits.setups);
    lower("silent_clients", &mut limits.silent_clients, limits.setups);
    let per_client = &mut limits.half_read_per_client;
    lower("half_read_heads_per_client", per_client, limits.half_read);
    let ordered = [
        ("setups", limits.setups, "connections", limits.connections),
        ("half_read_heads", limits.half_read, "setups", limits.setups),
        (
            "silent_clients",
            limits.silent_clients,
            "setups",
            limits.setups,
        ),
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
