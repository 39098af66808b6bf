//! The sample configuration: what every part of it comes to mean.

use std::time::Duration;

use fairlead::config::{Loaded, Mode, parse};
use fairlead_splice::config::{
    Balance, HashOn, Limits, Matcher, NamePattern, Protocol, Route, Source, Timeouts, Treatment,
    Unmatched,
};

const EDGE: &str = include_str!("../../../../examples/edge.toml");

fn edge() -> Loaded {
    parse(EDGE, "edge.toml").unwrap_or_else(|report| panic!("{report}"))
}

#[test]
fn it_loads_without_a_warning() {
    assert!(edge().warnings.is_empty(), "{}", edge().warnings);
}

#[test]
fn the_instance_and_the_fast_path_are_as_written() {
    let settings = edge().settings;
    assert_eq!(settings.instance.name, "edge");
    assert_eq!(
        settings.instance.admin,
        Some("127.0.0.1:9090".parse().unwrap())
    );
    assert_eq!(settings.log.access, fairlead::config::Access::Refused);
    assert_eq!(settings.instance.drain_timeout, Duration::from_secs(30));
    assert_eq!(settings.fastpath.mode, Mode::Auto);
    assert_eq!(settings.network.device, "fairlead0");
    assert_eq!(settings.network.snat[0].to_string(), "100.64.0.0/24");
    assert_eq!(settings.network.mtu, 1500);
    assert_eq!(settings.switch.device_mss, 1460);
    assert_eq!(
        settings.switch.snat.len(),
        254,
        "without the network and broadcast addresses"
    );
    assert_eq!(settings.switch.limits, Limits::default());
}

#[test]
fn the_service_and_its_routes_are_as_written() {
    let switch = edge().settings.switch;
    let [web] = switch.services.as_slice() else {
        panic!("one service")
    };
    assert_eq!(web.name, "web");
    assert_eq!(web.listen[0].to_string(), "10.1.0.3:80");
    assert_eq!((web.protocol, web.source), (Protocol::Http, Source::Snat));
    assert_eq!(web.unmatched, Unmatched::NotFound);
    assert_eq!(web.timeouts, Timeouts::default());
    assert_eq!(web.head_bytes_max, 16 << 10);

    let [images, api, pages] = web.routes.as_slice() else {
        panic!("three routes")
    };
    let names = [images, api, pages].map(|route| route.name.as_str());
    assert_eq!(names, ["#1", "#2", "#3"]);
    let pool = |route: &Route| &switch.pools[usize::from(route.pool.unwrap().0)].name;
    let pools = [images, api, pages].map(pool);
    assert_eq!(pools, ["images", "api", "pages"]);
    let [Matcher::PathSuffix(suffixes)] = images.matchers.as_slice() else {
        panic!("suffixes")
    };
    assert_eq!(suffixes, &[".jpg", ".png"]);
    let [Matcher::Host(hosts)] = api.matchers.as_slice() else {
        panic!("a host")
    };
    assert_eq!(hosts, &[NamePattern::Exact("api.example.com".into())]);
    assert!(pages.matchers.is_empty());
    assert!(
        web.routes
            .iter()
            .all(|route| route.treatment == Treatment::Splice)
    );
}

#[test]
fn the_pools_are_as_written() {
    let switch = edge().settings.switch;
    let [images, api, pages] = switch.pools.as_slice() else {
        panic!("three pools")
    };
    assert_eq!(images.balance, Balance::LeastConnections);
    let servers: Vec<_> = images
        .servers
        .iter()
        .map(|server| (server.endpoint.to_string(), server.weight))
        .collect();
    assert_eq!(
        servers,
        [
            ("10.2.0.1:8081".to_owned(), 1),
            ("10.2.0.1:8082".to_owned(), 2)
        ]
    );
    assert_eq!(api.balance, Balance::RoundRobin);
    assert_eq!(api.servers[0].weight, 1, "a weight of 1 unless written");
    assert_eq!(pages.balance, Balance::Maglev(HashOn::ClientAddress));
    assert!(
        switch
            .pools
            .iter()
            .all(|pool| pool.proxy_protocol.is_none())
    );
    assert!(
        switch
            .pools
            .iter()
            .all(|pool| pool.connect_timeout == Duration::from_secs(3))
    );
}

#[test]
fn the_switch_is_built_from_it() {
    let switch = edge().settings.switch;
    let datapath =
        fairlead_datapath::Datapath::new(switch, 7.into(), fairlead_base::Instant::ZERO).unwrap();
    assert_eq!(datapath.config().services.len(), 1);
}

#[test]
fn scalars_and_lists_mean_the_same() {
    let listed = EDGE
        .replace("listen = \"10.1.0.3:80\"", "listen = [\"10.1.0.3:80\"]")
        .replace("host = \"api.example.com\"", "host = [\"api.example.com\"]")
        .replace("snat = \"100.64.0.0/24\"", "snat = [\"100.64.0.0/24\"]");
    assert_ne!(listed, EDGE);
    let listed = parse(&listed, "listed.toml").unwrap().settings;
    assert_eq!(format!("{listed:?}"), format!("{:?}", edge().settings));
}

#[test]
fn what_is_left_out_has_a_default() {
    let least = "[[service]]\nname = \"a\"\nlisten = \"10.1.0.3:80\"\nprotocol = \"tls\"\n\
                 source = \"transparent\"\n[[service.route]]\npool = \"b\"\n\
                 [[pool]]\nname = \"b\"\nserver = [{ address = \"10.2.0.1:443\" }]\n";
    let loaded = parse(least, "least.toml").unwrap_or_else(|report| panic!("{report}"));
    assert!(loaded.warnings.is_empty(), "{}", loaded.warnings);
    let settings = loaded.settings;
    assert_eq!(settings.instance.name, "fairlead");
    assert_eq!(settings.instance.admin, None);
    assert_eq!(settings.network.device, "fairlead0");
    assert!(settings.switch.snat.is_empty());
    assert_eq!(settings.switch.services[0].head_bytes_max, 32 << 10);
    assert_eq!(settings.switch.pools[0].balance, Balance::RoundRobin);
}
