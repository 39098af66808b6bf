//! Configurations that are used although they hardly mean what was meant: routes that are never
//! reached, and services without a default route.

use fairlead::config::parse;

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

#[test]
fn keys_of_the_kernel_program_do_nothing_for_the_engine_alone() {
    let found = |mode: &str| {
        let text = format!(
            "[instance]\non_stop = \"keep\"\n[fastpath]\nmode = \"{mode}\"\ninterfaces = \"eth0\"\n\
             flow_table = \"lru-hash\"\nflow_lines = 256\nveth = \"queue\"\n\
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
