//! Configurations that are used although they hardly mean what was meant: routes that are never
//! reached, and services without a default route.

use fairlead::config::parse;
use fairlead_splice::config::LaterRequests;

/// The warnings on a service with these routes, as `line: message`.
fn warnings(protocol: &str, listen: &str, routes: &[&str]) -> Vec<String> {
    let mut text = format!(
        "service = [{{ name = \"a\", listen = {listen}, protocol = \"{protocol}\", \
         source = \"transparent\", route = [\n"
    );
    for route in routes {
        let comma = if route.is_empty() { "" } else { ", " };
        text += &format!("{{ pool = \"p\"{comma}{route} }},\n");
    }
    text += "] }]\n[[pool]]\nname = \"p\"\nserver = [{ address = \"10.2.0.1:80\" }]\n";
    let loaded = parse(&text, "a.toml").unwrap_or_else(|report| panic!("{report}"));
    loaded
        .warnings
        .diagnostics()
        .iter()
        .map(|one| format!("{}: {}", loaded.warnings.position(one).0, one.message()))
        .collect()
}

fn http(routes: &[&str]) -> Vec<String> {
    warnings("http", "\"10.1.0.3:80\"", routes)
}

/// What is said of later requests of a service with these keys and routes, each with its pool.
fn of_later_requests(keys: &str, routes: &[(&str, &str)]) -> Vec<String> {
    let mut text = format!(
        "[[service]]\nname = \"a\"\nlisten = [\"10.1.0.3:80\", \"10.1.0.4:80\"]\n\
         protocol = \"http\"\nsource = \"transparent\"\n{keys}\n"
    );
    for (pool, conditions) in routes {
        text += &format!("[[service.route]]\npool = \"{pool}\"\n{conditions}\n");
    }
    for pool in ["p", "q"] {
        text +=
            &format!("[[pool]]\nname = \"{pool}\"\nserver = [{{ address = \"10.2.0.1:80\" }}]\n");
    }
    let loaded = parse(&text, "a.toml").unwrap_or_else(|report| panic!("{report}"));
    let diagnostics = loaded.warnings.diagnostics().iter();
    let said = diagnostics.map(|one| one.message().to_owned());
    let counts = loaded.settings.switch.services[0].later_requests == LaterRequests::Count;
    let says = keys.contains("count");
    let warns = (said.clone()).any(|message| message.contains("later requests"));
    assert_eq!(counts, warns || says, "{text}");
    said.filter(|message| message.contains("later requests"))
        .collect()
}

#[test]
fn routes_that_share_a_host_and_lead_to_different_pools_are_said() {
    let suffix = "path_suffix = \".jpg\"";
    let warned = [
        [("p", suffix), ("q", "")],
        [
            ("p", "host = \"a.example\"\npath = \"/a\""),
            ("q", "host = \"*.example\""),
        ],
        [("p", "host = \"a.example\"\nmethod = \"PUT\""), ("q", "")],
        [("p", suffix), ("q", "host = \"a.example\"")],
        [
            ("p", "header = { name = \"x\", value = \"y\" }"),
            ("q", "treatment = \"one-shot\""),
        ],
    ];
    for routes in warned {
        let said = of_later_requests("", &routes);
        assert_eq!(said.len(), 1, "{routes:?}: {said:?}");
        assert!(
            said[0].contains("route #1 (pool \"p\") to route #2 (pool \"q\")"),
            "{said:?}"
        );
        for meant in ["pass", "count", "close"] {
            let key = format!("later_requests = \"{meant}\"");
            assert_eq!(of_later_requests(&key, &routes), [""; 0], "{routes:?}");
        }
    }
    let one_shot = format!("{suffix}\ntreatment = \"one-shot\"");
    let not = [
        [("p", suffix), ("p", "")],
        [("p", &one_shot), ("q", "treatment = \"one-shot\"")],
        [("p", "host = \"a.example\""), ("q", "host = \"b.example\"")],
        [("p", "host = \"a.example\""), ("q", "")],
        [
            ("p", "listen = \"10.1.0.3:80\"\npath = \"/a\""),
            ("q", "listen = \"10.1.0.4:80\""),
        ],
    ];
    for routes in not
        .into_iter()
        .chain([[("p", "listen = \"10.1.0.3:80\""), ("q", "")]])
    {
        assert_eq!(of_later_requests("", &routes), [""; 0], "{routes:?}");
    }
}

#[test]
fn keys_of_the_kernel_program_do_nothing_for_the_engine_alone() {
    let found = |mode: &str| {
        let text = format!(
            "[instance]\non_stop = \"keep\"\n[fastpath]\nmode = \"{mode}\"\ninterfaces = \"eth0\"\n\
             flow_table = \"lru-hash\"\nlru_max_keys = 256\nveth_redirect = \"queue\"\n\
             [[service]]\nname = \"a\"\n\
             listen = \"10.1.0.3:80\"\nprotocol = \"tcp\"\nsource = \"transparent\"\n\
             [[service.route]]\npool = \"p\"\n[[pool]]\nname = \"p\"\n\
             server = [{{ address = \"10.2.0.1:80\" }}]\n"
        );
        let loaded = parse(&text, "a.toml").unwrap_or_else(|report| panic!("{report}"));
        let warnings = loaded.warnings.diagnostics().iter();
        let lines = warnings.map(|one| loaded.warnings.position(one).0);
        lines.collect::<Vec<_>>()
    };
    assert_eq!(found("engine"), [2, 5, 6, 7, 8]);
    assert!(found("auto").is_empty() && found("tc").is_empty());
}

#[test]
fn a_server_of_a_family_that_no_client_has_is_never_chosen() {
    let found = |listen: &str, servers: &str| -> Vec<String> {
        let text = format!(
            "[[service]]\nname = \"a\"\nlisten = {listen}\nprotocol = \"tcp\"\n\
             source = \"transparent\"\n[[service.route]]\npool = \"p\"\n\
             [[pool]]\nname = \"p\"\nserver = [{servers}]\n"
        );
        let loaded = parse(&text, "a.toml").unwrap_or_else(|report| panic!("{report}"));
        let warnings = loaded.warnings.diagnostics().iter();
        warnings.map(|one| one.message().to_owned()).collect()
    };
    let four = "{ address = \"10.2.0.1:80\" }";
    let both = "{ address = \"10.2.0.1:80\" }, { address = \"[fd02::1]:80\" }";
    let idle = "{ address = \"10.2.0.1:80\" }, { address = \"[fd02::1]:80\", weight = 0 }";
    let listens = "[\"10.1.0.3:80\", \"[fd01::3]:80\"]";
    let none = [""; 0];
    assert_eq!(found("\"10.1.0.3:80\"", four), none);
    assert_eq!(found("\"10.1.0.3:80\"", idle), none);
    assert_eq!(found(listens, both), none);
    let told = found("\"10.1.0.3:80\"", both);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("[fd02::1]:80 is never chosen"),
        "{told:?}"
    );
}

#[test]
fn weights_of_zero_of_all_servers_of_a_family_are_used_with_a_warning() {
    let found = |listen: &str, servers: &str| -> Vec<String> {
        let text = format!(
            "[[service]]\nname = \"a\"\nlisten = {listen}\nprotocol = \"tcp\"\n\
             source = \"transparent\"\n[[service.route]]\npool = \"p\"\n\
             [[pool]]\nname = \"p\"\nserver = [{servers}]\n"
        );
        let loaded = parse(&text, "a.toml").unwrap_or_else(|report| panic!("{report}"));
        let warnings = loaded.warnings.diagnostics().iter();
        warnings.map(|one| one.message().to_owned()).collect()
    };
    let (listen, listens) = ("\"10.1.0.3:80\"", "[\"10.1.0.3:80\", \"[fd01::3]:80\"]");
    let four = |weight: u16| format!("{{ address = \"10.2.0.1:80\", weight = {weight} }}");
    let six = |weight: u16| format!("{{ address = \"[fd02::1]:80\", weight = {weight} }}");
    let both = |a: u16, b: u16| format!("{}, {}", four(a), six(b));
    let of = |which: &str| [format!("{which} of pool \"p\" has weight 0")];
    assert_eq!(found(listen, &four(0)), of("every server"));
    assert_eq!(found(listens, &both(0, 1)), of("every IPv4 server"));
    assert_eq!(found(listens, &both(1, 0)), of("every IPv6 server"));
    assert_eq!(found(listens, &both(0, 0)), of("every server"));
    let more = format!("{}, {{ address = \"10.2.0.2:80\" }}", both(0, 1));
    assert_eq!(found(listens, &more), [""; 0]);
}

#[test]
fn a_route_behind_a_wider_one_is_never_reached() {
    // Each pair: a condition that takes everything the other one does.
    for (wide, narrow) in [
        ("", "host = \"a.example\""),
        ("", ""),
        ("path_prefix = \"/\"", "path_suffix = \".jpg\""),
        (
            "host = \"a.example\"",
            "host = \"A.example.\", method = \"GET\"",
        ),
        (
            "host = \"*.example\"",
            "host = [\"a.example\", \"*.b.example\"]",
        ),
        ("path_prefix = \"/api\"", "path = \"/api/users\""),
        (
            "path_prefix = [\"/x\", \"/api\"]",
            "path_prefix = \"/api/v1\"",
        ),
        ("path_suffix = \"g\"", "path_suffix = [\".jpg\", \".png\"]"),
        ("path_regex = \"^/[a-c]$\"", "path = [\"/a\", \"/c\"]"),
        (
            "method = [\"GET\", \"HEAD\"]",
            "method = \"HEAD\", host = \"a.example\"",
        ),
        (
            "header = { x = { present = true } }",
            "header = { X = \"1\" }",
        ),
        (
            "header = { x = { regex = \"^[0-9]$\" } }",
            "header = { x = [\"1\", \"2\"] }",
        ),
        (
            "query = { q = [\"1\", \"2\"] }",
            "query = { q = \"2\", r = \"3\" }",
        ),
        ("cookie = { c = \"1\" }", "cookie = { c = \"1\" }"),
        ("listen = \"10.1.0.3:80\"", "host = \"a.example\""),
    ] {
        let warnings = http(&[wide, narrow, ""]);
        let never = "3: route #2 is never reached: route #1 takes everything it would";
        assert_eq!(
            warnings.first().map(String::as_str),
            Some(never),
            "{wide} / {narrow}"
        );
    }
}

#[test]
fn a_route_that_can_still_match_is_not_complained_of() {
    for (first, second) in [
        ("host = \"a.example\"", "host = \"b.example\""),
        ("host = \"*.example\"", "host = \"example\""),
        (
            "host = \"a.example\"",
            "host = [\"a.example\", \"b.example\"]",
        ),
        (
            "host = \"a.example\", method = \"GET\"",
            "host = \"a.example\"",
        ),
        ("path_prefix = \"/api/\"", "path_prefix = \"/api\""),
        ("path_prefix = \"/api\"", "path_suffix = \"/api\""),
        ("path_suffix = \".jpg\"", "path_suffix = \"g\""),
        ("path_regex = \"^/a\"", "path = \"/b\""),
        ("path_prefix = \"/\"", "path = \"*\""),
        (
            "header = { x = \"1\" }",
            "header = { x = { present = true } }",
        ),
        ("header = { x = \"1\" }", "header = { y = \"1\" }"),
        ("header = { x = \"1\" }", "cookie = { x = \"1\" }"),
        ("cookie = { x = \"1\" }", "cookie = { X = \"1\" }"),
    ] {
        let found = http(&[first, second, ""]);
        assert!(
            !found.iter().any(|one| one.contains("#2 is never")),
            "{first} / {second}"
        );
    }
    let listen = "[\"10.1.0.3:80\", \"10.1.0.3:81\"]";
    assert!(warnings("http", listen, &["listen = \"10.1.0.3:80\"", ""]).is_empty());
}

#[test]
fn no_default_route_is_said_with_what_clients_get() {
    for (protocol, route, gets) in [
        (
            "http",
            "path = \"/\"",
            "requests that match none get 404 Not Found",
        ),
        (
            "tls",
            "alpn = \"h2\"",
            "clients that match none get a TLS alert and no server",
        ),
    ] {
        let found = warnings(protocol, "\"10.1.0.3:80\"", &[route]);
        assert_eq!(
            found,
            [format!("1: service \"a\" has no default route: {gets}")]
        );
    }
    // A gateway of server names is whole without one, and so is who says what the rest gets.
    let names = [
        "sni = \"a.example\"",
        "sni = \"*.b.example\", alpn = \"h2\"",
    ];
    assert!(warnings("tls", "\"10.1.0.3:80\"", &names).is_empty());
    let said = "\"10.1.0.3:80\", unmatched = \"reset\"";
    assert!(warnings("tls", said, &["alpn = \"h2\""]).is_empty());
    let said = "\"10.1.0.3:80\", unmatched = 421";
    assert!(warnings("http", said, &["path = \"/\""]).is_empty());
    let ports = "[\"10.1.0.3:80\", \"10.1.0.3:81\"]";
    let found = warnings("tcp", ports, &["listen = \"10.1.0.3:80\""]);
    assert_eq!(
        found,
        ["1: service \"a\" has no default route: clients that match none are reset"]
    );
    // Routes that share the endpoints out leave nobody.
    let each = ["listen = \"10.1.0.3:80\"", "listen = \"10.1.0.3:81\""];
    assert!(warnings("tcp", ports, &each).is_empty());
    let found = warnings("tcp", ports, &[each[0], each[1], ""]);
    assert_eq!(
        found,
        ["4: route #3 is never reached: earlier routes take all it listens to"]
    );
}

#[test]
fn keys_that_do_nothing_are_pointed_out() {
    let text = "[[service]]\nname = \"a\"\nlisten = \"10.1.0.3:80\"\nprotocol = \"tcp\"\n\
                source = \"transparent\"\nunmatched = 421\nhead_limit = \"1KiB\"\n\
                head_timeout = \"1s\"\nroute = [{ pool = \"p\" }]\n\
                [[pool]]\nname = \"p\"\nserver = [{ address = \"10.2.0.1:80\" }]\n";
    let warnings = parse(text, "a.toml").unwrap().warnings;
    let places: Vec<_> = warnings
        .diagnostics()
        .iter()
        .map(|one| warnings.position(one))
        .collect();
    assert_eq!(places, [(6, 1), (7, 1), (8, 1)], "{warnings}");
    assert!(
        warnings
            .to_string()
            .contains("`unmatched` does nothing in this service")
    );
}

/// Keep-alives of Linux are for connections without traffic: those must live so long.
#[test]
fn idle_timeouts_below_the_keep_alives_are_pointed_out() {
    for (protocol, after, is_said) in [
        ("tls", "2h11m", true),
        ("tcp", "1h", true),
        ("tcp", "2h12m", false),
        ("http", "1m", false),
    ] {
        let listen = format!("\"10.1.0.3:80\", idle_timeout = \"{after}\"");
        let found = warnings(protocol, &listen, &[""]);
        assert_eq!(
            found.len(),
            usize::from(is_said),
            "{protocol} {after}: {found:?}"
        );
    }
    assert!(warnings("tcp", "\"10.1.0.3:80\"", &[""]).is_empty());
}

/// A file as earlier versions took it, and the same of now.
const RENAMED: [(&str, &str, &[&str]); 5] = [
    (
        "[fastpath]\ndevice = \"fl7\"\nmtu = 1400\nsnat = \"100.64.0.0/24\"\n",
        "[network]\ndevice = \"fl7\"\nmtu = 1400\nsnat = \"100.64.0.0/24\"\n",
        &["device", "mtu", "snat"],
    ),
    (
        "[fastpath]\nflow_table = \"lru-hash\"\nflow_lines = 512\n",
        "[fastpath]\nflow_table = \"lru-hash\"\nlru_max_keys = 512\n",
        &["lru_max_keys"],
    ),
    (
        "[fastpath]\nflow_table = \"tcb-cache\"\nflow_lines = 64\n",
        "[fastpath]\nflow_table = \"tcb-cache\"\ntcb_cache_lines = 64\n",
        &["tcb_cache_lines"],
    ),
    (
        "[fastpath]\nveth = \"auto\"\n",
        "[fastpath]\nveth_redirect = \"peer\"\n",
        &["veth_redirect"],
    ),
    (
        "[fastpath]\nveth = \"queue\"\n",
        "[fastpath]\nveth_redirect = \"queue\"\n",
        &["veth_redirect"],
    ),
];

/// Services and pools to go with it, and source addresses where it has none.
fn whole(start: &str) -> String {
    let snat = match start.contains("snat") {
        true => "",
        false => "[network]\nsnat = \"100.64.0.0/24\"\n",
    };
    format!(
        "{start}{snat}[[service]]\nname = \"web\"\nlisten = \"10.1.0.3:80\"\nprotocol = \"tcp\"\n\
         [[service.route]]\npool = \"one\"\n\
         [[pool]]\nname = \"one\"\nserver = [{{ address = \"10.2.0.1:80\" }}]\n"
    )
}

#[test]
fn renamed_keys_keep_their_meaning_and_warn_once_each() {
    for (old, new, keys) in RENAMED {
        let before = parse(&whole(old), "old.toml").unwrap_or_else(|report| panic!("{report}"));
        let now = parse(&whole(new), "new.toml").unwrap_or_else(|report| panic!("{report}"));
        assert!(now.warnings.is_empty(), "{}", now.warnings);
        assert_eq!(
            format!("{:?}", before.settings),
            format!("{:?}", now.settings),
            "{old}"
        );
        let advice: Vec<_> = before
            .warnings
            .diagnostics()
            .iter()
            .map(|one| one.advice())
            .collect();
        assert_eq!(advice.len(), keys.len(), "{}", before.warnings);
        for key in keys {
            let named =
                |one: &Option<&str>| one.is_some_and(|one| one.contains(&format!("`{key}`")));
            assert!(advice.iter().any(named), "{key}: {}", before.warnings);
        }
    }
}

#[test]
fn a_key_under_both_names_is_an_error() {
    for (old, new, _) in RENAMED {
        let lines = new
            .lines()
            .skip(1)
            .filter(|line| !line.starts_with("flow_table"));
        let both = match new.starts_with("[network]") {
            true => format!("{old}{new}"),
            false => format!("{old}{}\n", lines.collect::<Vec<_>>().join("\n")),
        };
        let report = parse(&whole(&both), "both.toml").unwrap_err();
        assert!(report.to_string().contains("is set, too"), "{report}");
    }
}

#[test]
fn the_probe_interval_of_the_instance_is_that_of_every_pool() {
    let old = whole("[instance]\nprobe_interval = \"7s\"\n");
    let loaded = parse(&old, "old.toml").unwrap_or_else(|report| panic!("{report}"));
    let pools = &loaded.settings.switch.pools;
    assert!(pools.iter().all(|pool| pool.probe_interval.as_secs() == 7));
    assert_eq!(
        loaded.warnings.diagnostics().len(),
        1,
        "{}",
        loaded.warnings
    );
    let report = parse(&(old + "probe_interval = \"8s\"\n"), "both.toml").unwrap_err();
    assert!(report.to_string().contains("is set, too"), "{report}");
    // What is wrong with it is said once, whatever number of pools it is for.
    let two = whole("[instance]\nprobe_interval = \"7\"\n")
        + "[[pool]]\nname = \"two\"\nserver = [{ address = \"10.2.0.2:80\" }]\n";
    let report = parse(&two, "wrong.toml").unwrap_err();
    assert_eq!(report.errors(), 1, "{report}");
}
