//! `fairlead check`: validates the configuration and shows what it means.

use std::path::PathBuf;
use std::process::ExitCode;

use fairlead_bpf_loader::map_bytes_for;
use fairlead_datapath::tcb_cache;
use fairlead_splice::config::{
    Config, Matcher, Pool, PoolId, Protocol, Route, Service, Treatment, Unmatched,
};

use crate::config::keys::{self, shown};
use crate::config::{
    Fastpath, LoadError, Loaded, Mode, Settings, advice, load, path_or_standard, show_matcher,
    show_size,
};
use crate::screen::{BOLD, DIM, Paint, Side, columns, grouped, plural, print, print_error};
use crate::status::plain_line;

/// What `fairlead check` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct CheckArgs {
    /// Configuration file [default: $FAIRLEAD_CONFIG, then /etc/fairlead/fairlead.toml]
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write the findings as JSON to standard output instead
    #[arg(long)]
    pub json: bool,
    /// Fail on warnings too
    #[arg(long)]
    pub strict: bool,
}

/// Checks the file: 0 when it can be used, 1 when it cannot.
pub fn run(args: &CheckArgs) -> ExitCode {
    let path = path_or_standard(args.config.as_deref());
    if let Some(advice) = advice(args.config.as_deref(), &path) {
        print_error(&format!("warning: {advice}\n"));
    }
    let loaded = load(&path);
    let sound = match &loaded {
        Ok(loaded) => !args.strict || loaded.warnings.is_empty(),
        Err(_) => false,
    };
    if args.json {
        print(&json(&loaded, sound));
    } else {
        match &loaded {
            Ok(loaded) => {
                print_error(&loaded.warnings.render(Paint::stderr().0));
                let name = path.display().to_string();
                print(&summary(&name, loaded, Paint::stdout()));
            }
            Err(error) => print_error(&failure(error, Paint::stderr())),
        }
    }
    if sound {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Why there is no configuration, for people; ends in a line break.
pub(crate) fn failure(error: &LoadError, paint: Paint) -> String {
    match error {
        LoadError::Broken(report) => format!(
            "{}{}, {}: this configuration is not used\n",
            report.render(paint.0),
            plural(report.errors(), "error"),
            plural(report.warnings(), "warning"),
        ),
        other => format!("{other}\n"),
    }
}

/// The findings for other programs.
fn json(loaded: &Result<Loaded, LoadError>, sound: bool) -> String {
    let (findings, message) = match loaded {
        Ok(loaded) => (loaded.warnings.findings(), None),
        Err(LoadError::Broken(report)) => (report.findings(), None),
        Err(other) => (Vec::new(), Some(other.to_string())),
    };
    let document = serde_json::json!({ "ok": sound, "error": message, "findings": findings });
    format!("{document:#}\n")
}

/// What a valid configuration means.
fn summary(name: &str, loaded: &Loaded, paint: Paint) -> String {
    let Settings {
        instance,
        log,
        network,
        fastpath,
        switch,
        tcb_cache,
    } = &loaded.settings;
    let routes: usize = switch
        .services
        .iter()
        .map(|service| service.routes.len())
        .sum();
    let servers: usize = switch.pools.iter().map(|pool| pool.servers.len()).sum();
    let sound = if loaded.warnings.is_empty() {
        "configuration OK".to_owned()
    } else {
        format!(
            "configuration OK, with {}",
            plural(loaded.warnings.warnings(), "warning")
        )
    };
    let mut out = format!(
        "{}: {sound}: {}, {}, {}, {}\n",
        paint.text(BOLD, name),
        plural(switch.services.len(), "service"),
        plural(routes, "route"),
        plural(switch.pools.len(), "pool"),
        plural(servers, "server"),
    );
    for service in &switch.services {
        out += &show_service(service, switch, paint);
    }
    for pool in &switch.pools {
        out += &show_pool(pool, paint);
    }
    let sources = match switch.snat.len() {
        0 => String::new(),
        addresses => format!(", {} source addresses", grouped(addresses as u64)),
    };
    let rows = [
        ("instance", shown(&keys::INSTANCE, instance)),
        ("log", shown(&keys::LOG, log)),
        ("network", shown(&keys::NETWORK, network) + &sources),
        ("fastpath", show_fastpath(fastpath)),
        ("limits", shown(&keys::LIMITS, &switch.limits)),
        ("memory", show_memory(fastpath, switch.limits.connections)),
    ];
    let cache = tcb_cache
        .as_ref()
        .map(|one| ("tcb cache", show_tcb_cache(one)));
    let rows = rows.into_iter().chain(cache);
    let rows: Vec<_> = rows
        .map(|(name, value)| vec![name.to_owned(), value])
        .collect();
    out + "\n" + &columns(0, &[Side::Left, Side::Left], &rows)
}

fn show_fastpath(fastpath: &Fastpath) -> String {
    if fastpath.mode == Mode::Engine {
        return "mode engine".to_owned();
    }
    let interfaces = match fastpath.interfaces.is_empty() {
        true => "; interfaces are derived from routes",
        false => "",
    };
    shown(&keys::FASTPATH, fastpath) + interfaces
}

/// What `connections` costs before there are any.
fn show_memory(fastpath: &Fastpath, connections: u32) -> String {
    if fastpath.mode == Mode::Engine {
        return "no kernel maps".to_owned();
    }
    let bytes = map_bytes_for(&fastpath.flow_table, connections);
    format!(
        "about {} MiB of kernel maps for {} connections",
        bytes.div_ceil(1 << 20),
        grouped(u64::from(connections)),
    )
}

fn show_tcb_cache(settings: &tcb_cache::Settings) -> String {
    let tcb_cache::Settings { scheme, geometry } = settings;
    format!(
        "{scheme}, {} in {} sets of {}",
        show_size(geometry.capacity_bytes()),
        grouped(u64::from(geometry.banks() * geometry.sets())),
        plural(geometry.ways() as usize, "line"),
    )
}

fn show_service(service: &Service, switch: &Config, paint: Paint) -> String {
    let mut out = format!(
        "\n{} {}\n",
        paint.text(DIM, "service"),
        paint.text(BOLD, &service.name),
    );
    let of_it = keys::SERVICE.iter().filter(|key| {
        // Nothing is read there.
        let of_heads = matches!(key.name, "head_limit" | "head_timeout");
        let of_sleepers = matches!(key.name, "sleep_max" | "wake_wait");
        let sleeps = service.routes.iter().any(|route| route.sleep);
        let of_front = ["keep_alive_timeout", "stalled_timeout", "forwarded"].contains(&key.name);
        let has_front = service.routes.iter().any(Route::is_to_front);
        key.name != "name"
            && !(of_heads && service.protocol == Protocol::Tcp)
            && (sleeps || !of_sleepers)
            && (has_front || !of_front)
    });
    out += &format!("  {}\n", shown(of_it, service));
    if service.routes.iter().any(Route::is_to_front) {
        out += match switch.pairs {
            0 => "  upgraded connections are copied: there is no adopt_socket in [instance]\n",
            _ => "  upgraded connections go to the fast path\n",
        };
    }
    let mut rows: Vec<Vec<String>> = service
        .routes
        .iter()
        .map(|route| {
            let pool = target(switch, route);
            vec![
                route.name.clone(),
                plain_line(&condition(service.protocol, route)),
                format!("-> {pool}"),
                extras(route),
            ]
        })
        .collect();
    if is_open(service) {
        let answer = match (service.protocol, service.unmatched) {
            (Protocol::Tls, Unmatched::Reset) => "reset; plain HTTP gets 400",
            (Protocol::Tls, _) => "a TLS alert; plain HTTP gets 400",
            (Protocol::Tcp, _) | (_, Unmatched::Reset) => "reset",
            (Protocol::Http, Unmatched::Misdirected) => "421 Misdirected Request",
            (Protocol::Http, _) => "404 Not Found",
        };
        rows.push(vec![
            "-".into(),
            "everything else".into(),
            answer.into(),
            String::new(),
        ]);
    }
    out += &columns(2, &[Side::Left; 4], &rows);
    out
}

/// True when connections may get past all routes: no endpoint's are taken whatever they say.
fn is_open(service: &Service) -> bool {
    service.listen.iter().any(|at| {
        !service.routes.iter().any(|route| {
            route.matchers.iter().all(|matcher| match matcher {
                Matcher::Listen(endpoints) => endpoints.contains(at),
                _ => false,
            })
        })
    })
}

/// Where a route leads: its pool, or its listeners, and the pool that stands in for them.
fn target(switch: &Config, route: &Route) -> String {
    let pool = route.pool.map(|pool| {
        let pool = switch.pools.get(usize::from(pool.0));
        pool.map_or("?", |pool| &pool.name)
    });
    let both = [route.listeners.v4, route.listeners.v6];
    let both: Vec<_> = both.iter().flatten().map(ToString::to_string).collect();
    match (route.is_to_host(), pool) {
        (true, None) => format!("this machine, {}", both.join(" ")),
        (true, Some(pool)) => format!("this machine, {}, or {pool}", both.join(" ")),
        (false, pool) => pool.unwrap_or("?").to_owned(),
    }
}

/// What of a route is not as usual.
fn extras(route: &Route) -> String {
    let usual = Route {
        treatment: match route.treatment {
            // Its target says so.
            Treatment::Host => Treatment::Host,
            Treatment::Splice | Treatment::OneShot | Treatment::PerRequest => Treatment::Splice,
        },
        listeners: route.listeners,
        ..Route::new("", Vec::new(), PoolId(0))
    };
    let unusual = keys::ROUTE
        .iter()
        .filter(|key| key.show(route) != key.show(&usual));
    shown(unusual, route)
}

fn show_pool(pool: &Pool, paint: Paint) -> String {
    let (word, name) = (paint.text(DIM, "pool"), paint.text(BOLD, &pool.name));
    let of_it = keys::POOL.iter().filter(|key| key.name != "name");
    let mut out = format!("\n{word} {name}  {}\n", shown(of_it, pool));
    let rows: Vec<_> = pool
        .servers
        .iter()
        .map(|server| {
            let weight = match server.weight {
                0 => "weight 0: not chosen".to_owned(),
                1 => String::new(),
                weight => format!("weight {weight}"),
            };
            vec![server.endpoint.to_string(), weight]
        })
        .collect();
    out += &columns(2, &[Side::Left; 2], &rows);
    out
}

/// A route's condition on one line.
fn condition(protocol: Protocol, route: &Route) -> String {
    if route.matchers.is_empty() {
        return match protocol {
            Protocol::Tls => "everything else, TLS or not".to_owned(),
            Protocol::Http | Protocol::Tcp => "everything else".to_owned(),
        };
    }
    route
        .matchers
        .iter()
        .map(show_matcher)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    #[test]
    fn the_summary_shows_where_everything_goes() {
        let text = include_str!("../../../examples/edge.toml");
        let loaded = parse(text, "edge.toml").unwrap();
        let shown = summary("edge.toml", &loaded, Paint(false));
        let expected = "\
edge.toml: configuration OK: 1 service, 3 routes, 3 pools, 4 servers

service web
  listen 10.1.0.3:80, protocol http, source snat, on_denied drop, unmatched 404, \
later_requests count, \
head_limit 16KiB, \
head_timeout 10s, idle_timeout 2h15m, half_closed_timeout 150s, time_wait 1m
  #1  path_suffix .jpg | .png  -> images
  #2  host api.example.com     -> api
  #3  everything else          -> pages

pool images  balance least-connections, connect_timeout 3s, probe_interval 10s, \
slow_start 0s, all_down try
  10.2.0.1:8081
  10.2.0.1:8082  weight 2

pool api  balance round-robin, connect_timeout 3s, probe_interval 10s, slow_start 0s, all_down try
  10.2.0.1:8083

pool pages  balance maglev, hash client-address, connect_timeout 3s, probe_interval 10s, \
slow_start 0s, all_down try
  10.2.0.1:8084

instance  name edge, admin 127.0.0.1:9090, drain_timeout 30s, on_stop drain, \
announce auto, announce_repeat 5, adopt_connections 10_000
log       access refused, target stderr, sample 1, details_bytes 32MiB
network   device fairlead0, snat 100.64.0.0/24, mtu 1500, 254 source addresses
fastpath  mode auto, flow_table hash, veth_redirect peer; interfaces are derived from routes
limits    connections 262_144, setups 65_536, half_read_heads 16_384, \
half_read_heads_per_client 256, silent_clients 4096, front_connections_per_client 4096, \
sleepers 65_536, buffered_bytes 256MiB
memory    about 39 MiB of kernel maps for 262,144 connections
";
        assert_eq!(shown, expected);
        assert!(summary("edge.toml", &loaded, Paint(true)).contains("\x1b[1mweb\x1b[0m"));
        let text = format!("{text}\n[tcb_cache]\nenabled = true\nindex_bits = 16\n");
        let loaded = parse(&text, "edge.toml").unwrap();
        let shown = summary("edge.toml", &loaded, Paint(false));
        let row = "\ntcb cache  spec,bits=16, 32KiB in 128 sets of 4 lines\n";
        assert!(shown.contains(row), "{shown}");
    }

    #[test]
    fn every_kind_of_condition_has_its_words() {
        let text = r#"
            [[service]]
            name = "a"
            listen = ["10.1.0.3:80", "10.1.0.3:81"]
            protocol = "http"
            source = "transparent"
            unmatched = 421
            head_limit = "8KiB"
            head_timeout = "5s"
            idle_timeout = "15m"
            half_closed_timeout = "5m"
            time_wait = "30s"
            [[service.route]]
            name = "all"
            listen = "10.1.0.3:81"
            host = ["*.b.example", "c.example"]
            path = ["/1", "/2", "/3", "/4", "/5"]
            path_regex = "^/x"
            method = "GET"
            header = { x-a = { present = true } }
            query = { q = { regex = "^[0-9]$" } }
            cookie = { c = "1" }
            treatment = "one-shot"
            retries = 0
            pool = "p"
            [[pool]]
            name = "p"
            balance = "maglev"
            hash = "cookie:id"
            proxy_protocol = "v2"
            server = [{ address = "10.2.0.1:80" }, { address = "10.2.0.2:80", weight = 0 }]
        "#;
        let shown = summary("a.toml", &parse(text, "a.toml").unwrap(), Paint(false));
        for part in [
            "a.toml: configuration OK: 1 service",
            "all  listen 10.1.0.3:81, host *.b.example | c.example, ",
            "path /1 | /2 | /3 | /4 | 1 more, path_regex /^/x/, method GET, ",
            "header x-a present, query q ~ /^[0-9]$/, cookie c = 1",
            "head_limit 8KiB, head_timeout 5s, idle_timeout 15m, half_closed_timeout 5m, ",
            "-> p                     treatment one-shot, retries 0",
            "-    everything else",
            "421 Misdirected Request",
            "  10.2.0.1:80\n  10.2.0.2:80  weight 0: not chosen\n",
            "balance maglev, hash cookie:id, proxy_protocol v2",
        ] {
            assert!(shown.contains(part), "{part:?} is not in\n{shown}");
        }
    }

    #[test]
    fn what_a_file_holds_does_not_drive_the_terminal() {
        let text = r#"
            [[service]]
            name = "a"
            listen = "10.1.0.3:80"
            protocol = "http"
            source = "transparent"
            [[service.route]]
            query = { "q\u001b[2J" = "v\u001b[31m\nw" }
            pool = "p"
            [[pool]]
            name = "p"
            server = [{ address = "10.2.0.1:80" }]
        "#;
        let shown = summary("a.toml", &parse(text, "a.toml").unwrap(), Paint(false));
        assert!(!shown.contains('\x1b'), "{shown}");
        assert!(shown.contains("w  -> p"), "in one line: {shown}");
        let wrong = text.replace("\"v\\u001b[31m\\nw\"", "[]");
        let report = parse(&wrong, "a.toml").unwrap_err();
        assert!(!report.render(false).contains('\x1b'), "{report}");
    }

    #[test]
    fn findings_are_told_to_programs() {
        let broken = parse("[instance]\nnane = \"x\"\n", "a.toml").map_err(LoadError::Broken);
        let document: serde_json::Value = serde_json::from_str(&json(&broken, false)).unwrap();
        assert_eq!(document["ok"], false);
        let first = &document["findings"][0];
        assert_eq!(first["severity"], "error");
        assert_eq!((&first["line"], &first["column"]), (&2.into(), &1.into()));
        assert_eq!(
            (&first["end_line"], &first["end_column"]),
            (&2.into(), &5.into())
        );
        assert_eq!(first["help"], "did you mean `name`?");
        let missing = load("/nonexistent/fairlead.toml".as_ref());
        let document: serde_json::Value = serde_json::from_str(&json(&missing, false)).unwrap();
        assert!(
            document["error"]
                .as_str()
                .unwrap()
                .contains("/nonexistent/fairlead.toml")
        );
    }
}
