//! `fairlead check`: is the configuration sound, and what does it mean?

use std::path::PathBuf;
use std::process::ExitCode;

use fairlead_datapath::tcb_cache;
use fairlead_splice::config::{
    Balance, Config, HashOn, Matcher, NamePattern, Pool, Protocol, ProxyVersion, Route, Service,
    Source, Treatment, Unmatched, ValuePattern,
};

use crate::config::{
    Fastpath, Instance, LoadError, Loaded, Mode, OnStop, RETRIES, Settings, load, protocol_name,
    show_duration, show_size,
};
use crate::log::treatment_name;
use crate::screen::{BOLD, DIM, Paint, Side, columns, grouped, plural, print, print_error};
use crate::status::plain_line;

/// What `fairlead check` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct CheckArgs {
    /// The configuration file
    #[arg(short, long, value_name = "FILE")]
    pub config: PathBuf,
    /// Write the findings as JSON to standard output instead
    #[arg(long)]
    pub json: bool,
    /// Fail on warnings too
    #[arg(long)]
    pub strict: bool,
}

/// Checks the file: 0 when it can be used, 1 when it cannot.
pub fn run(args: &CheckArgs) -> ExitCode {
    let loaded = load(&args.config);
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
                let name = args.config.display().to_string();
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

/// What a sound configuration means.
fn summary(name: &str, loaded: &Loaded, paint: Paint) -> String {
    let Settings {
        instance,
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
        "is sound".to_owned()
    } else {
        format!(
            "can be used, with {}",
            plural(loaded.warnings.warnings(), "warning")
        )
    };
    let mut out = format!(
        "{} {sound}: {}, {}, {}, {}\n",
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
    let sources = show_sources(fastpath, switch);
    let limits = &switch.limits;
    let rows = [
        ("instance", instance.name.clone()),
        (
            "device",
            format!("{}, MTU {}, {sources}", fastpath.device, fastpath.mtu),
        ),
        (
            "admin",
            instance
                .admin
                .map_or("none".to_owned(), |address| address.to_string()),
        ),
        (
            "limits",
            format!(
                "{} connections, {} setups, {} half-read heads ({} a client), {} buffered",
                grouped(limits.connections.into()),
                grouped(limits.setups.into()),
                grouped(limits.half_read.into()),
                grouped(limits.half_read_per_client.into()),
                show_size(limits.buffered_bytes),
            ),
        ),
        (
            "log",
            if instance.log_connections {
                "a line a connection"
            } else {
                "no connections"
            }
            .into(),
        ),
        ("mode", show_mode(fastpath)),
        ("stop", show_stop(instance)),
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

fn show_mode(fastpath: &Fastpath) -> String {
    let mode = fastpath.mode.name();
    if fastpath.mode == Mode::Engine {
        return mode.to_owned();
    }
    let interfaces = match &fastpath.interfaces[..] {
        [] => "the interfaces on the ways".to_owned(),
        named => named.join(", "),
    };
    format!(
        "{mode} on {interfaces}, flow table {}",
        fastpath.flow_table.name()
    )
}

fn show_stop(instance: &Instance) -> String {
    let drain = show_duration(instance.drain_timeout);
    match instance.on_stop {
        OnStop::Drain => format!("live connections have {drain}"),
        OnStop::Keep => {
            format!("the kernel goes on with spliced connections; without it they have {drain}")
        }
    }
}

fn show_sources(fastpath: &Fastpath, switch: &Config) -> String {
    let snat: Vec<_> = fastpath.snat.iter().map(ToString::to_string).collect();
    if snat.is_empty() {
        return "no source addresses".to_owned();
    }
    format!(
        "source addresses {} ({})",
        snat.join(", "),
        grouped(switch.snat.len() as u64)
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
    let listen: Vec<_> = service.listen.iter().map(ToString::to_string).collect();
    let source = match service.source {
        Source::Snat => "snat",
        Source::Transparent => "transparent",
    };
    let mut out = format!(
        "\n{} {}  {} at {}, source {source}\n",
        paint.text(DIM, "service"),
        paint.text(BOLD, &service.name),
        protocol_name(service.protocol),
        listen.join(", "),
    );
    out += &format!("  {}\n", bounds(service));
    let mut rows: Vec<Vec<String>> = service
        .routes
        .iter()
        .map(|route| {
            let pool = switch
                .pools
                .get(usize::from(route.pool.0))
                .map_or("?", |pool| &pool.name);
            vec![
                route.name.clone(),
                plain_line(&condition(route)),
                format!("-> {pool}"),
                extras(route),
            ]
        })
        .collect();
    if is_open(service) {
        let answer = match (service.protocol, service.unmatched) {
            (Protocol::Http, Unmatched::NotFound) => "404 Not Found",
            (Protocol::Http, Unmatched::Misdirected) => "421 Misdirected Request",
            (Protocol::Tls, _) => "a TLS alert",
            (Protocol::Tcp, _) => "reset",
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

/// What a connection of the service may take.
fn bounds(service: &Service) -> String {
    let timeouts = &service.timeouts;
    let head = match service.protocol {
        Protocol::Tcp => String::new(),
        Protocol::Http | Protocol::Tls => format!(
            "a head of {} within {}, ",
            show_size(service.head_bytes_max.into()),
            show_duration(timeouts.head)
        ),
    };
    format!(
        "{head}idle for {}, half closed for {}, TIME_WAIT {}",
        show_duration(timeouts.idle),
        show_duration(timeouts.half_closed),
        show_duration(timeouts.time_wait)
    )
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

/// What of a route is not as usual.
fn extras(route: &Route) -> String {
    let treatment = match route.treatment {
        Treatment::Splice => None,
        treatment => Some(treatment_name(treatment).to_owned()),
    };
    let retries = match route.retries {
        RETRIES => None,
        0 => Some("no retries".to_owned()),
        retries => Some(plural(retries.into(), "retry")),
    };
    let parts: Vec<_> = treatment.into_iter().chain(retries).collect();
    parts.join(", ")
}

fn show_pool(pool: &Pool, paint: Paint) -> String {
    let balance = match &pool.balance {
        Balance::RoundRobin => "round-robin".to_owned(),
        Balance::Weighted => "weighted".to_owned(),
        Balance::LeastConnections => "least-connections".to_owned(),
        Balance::RandomTwo => "random-two".to_owned(),
        Balance::Maglev(HashOn::ClientAddress) => "maglev on the client's address".to_owned(),
        Balance::Maglev(HashOn::Header(name)) => format!("maglev on header {name}"),
        Balance::Maglev(HashOn::Cookie(name)) => format!("maglev on cookie {name}"),
    };
    let proxy = match pool.proxy_protocol {
        None => "",
        Some(ProxyVersion::V1) => ", PROXY protocol v1",
        Some(ProxyVersion::V2) => ", PROXY protocol v2",
    };
    let (word, name) = (paint.text(DIM, "pool"), paint.text(BOLD, &pool.name));
    let timeout = show_duration(pool.connect_timeout);
    let mut out = format!("\n{word} {name}  {balance}{proxy}, connect within {timeout}\n");
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
fn condition(route: &Route) -> String {
    if route.matchers.is_empty() {
        return "everything else".to_owned();
    }
    route
        .matchers
        .iter()
        .map(show_matcher)
        .collect::<Vec<_>>()
        .join(", ")
}

fn show_matcher(matcher: &Matcher) -> String {
    let any = |key: &str, values: Vec<String>| {
        let more = values.len().saturating_sub(4);
        let mut shown = values.into_iter().take(4).collect::<Vec<_>>().join(" | ");
        if more > 0 {
            shown += &format!(" | {more} more");
        }
        format!("{key} {shown}")
    };
    let names = |names: &[NamePattern]| {
        let show = |name: &NamePattern| match name {
            NamePattern::Exact(name) if name.contains(':') => format!("[{name}]"),
            NamePattern::Exact(name) => name.clone(),
            NamePattern::Suffix(name) => format!("*{name}"),
        };
        names.iter().map(show).collect()
    };
    let regexes = |all: &[regex::Regex]| all.iter().map(|one| format!("/{one}/")).collect();
    let named = |key: &str, name: &str, pattern: &ValuePattern| match pattern {
        ValuePattern::Present => format!("{key} {name} present"),
        ValuePattern::Exact(values) => any(&format!("{key} {name} ="), values.clone()),
        ValuePattern::Regex(regex) => format!("{key} {name} ~ /{regex}/"),
    };
    match matcher {
        Matcher::Listen(endpoints) => any(
            "listen",
            endpoints.iter().map(ToString::to_string).collect(),
        ),
        Matcher::Host(hosts) => any("host", names(hosts)),
        Matcher::Sni(hosts) => any("sni", names(hosts)),
        Matcher::Path(paths) => any("path", paths.clone()),
        Matcher::PathPrefix(paths) => any("path_prefix", paths.clone()),
        Matcher::PathSuffix(paths) => any("path_suffix", paths.clone()),
        Matcher::PathRegex(all) => any("path_regex", regexes(all)),
        Matcher::Method(methods) => any("method", methods.clone()),
        Matcher::Alpn(protocols) => any("alpn", protocols.clone()),
        Matcher::Header(name, pattern) => named("header", name, pattern),
        Matcher::Query(name, pattern) => named("query", name, pattern),
        Matcher::Cookie(name, pattern) => named("cookie", name, pattern),
    }
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
edge.toml is sound: 1 service, 3 routes, 3 pools, 4 servers

service web  http at 10.1.0.3:80, source snat
  a head of 16KiB within 10s, idle for 1h, half closed for 150s, TIME_WAIT 1m
  #1  path_suffix .jpg | .png  -> images
  #2  host api.example.com     -> api
  #3  everything else          -> pages

pool images  least-connections, connect within 3s
  10.2.0.1:8081
  10.2.0.1:8082  weight 2

pool api  round-robin, connect within 3s
  10.2.0.1:8083

pool pages  maglev on the client's address, connect within 3s
  10.2.0.1:8084

instance  edge
device    fairlead0, MTU 1500, source addresses 100.64.0.0/24 (254)
admin     127.0.0.1:9090
limits    1,048,576 connections, 65,536 setups, 16,384 half-read heads (256 a client), 256MiB buffered
log       no connections
mode      auto on the interfaces on the ways, flow table hash
stop      live connections have 30s
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
            "a.toml can be used, with 1 warning: 1 service",
            "all  listen 10.1.0.3:81, host *.b.example | c.example, ",
            "path /1 | /2 | /3 | /4 | 1 more, path_regex /^/x/, method GET, ",
            "header x-a present, query q ~ /^[0-9]$/, cookie c = 1",
            "a head of 8KiB within 5s, idle for 15m, half closed for 5m, TIME_WAIT 30s\n",
            "-> p                     one-shot, no retries",
            "-    everything else",
            "421 Misdirected Request",
            "  10.2.0.1:80\n  10.2.0.2:80  weight 0: not chosen\n",
            "maglev on cookie id, PROXY protocol v2",
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
