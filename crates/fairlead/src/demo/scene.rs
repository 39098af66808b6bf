//! What is shown: the addresses, the configuration, the requests and what each of them proves.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The client.
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 10);
/// The switch on the clients' side.
pub(super) const SWITCH_FRONT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
/// The virtual address of both services.
pub(super) const VIRTUAL: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 3);
/// The switch on the servers' side.
pub(super) const SWITCH_BACK: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 2);
/// The servers' machine.
pub(super) const SERVERS: Ipv4Addr = Ipv4Addr::new(10, 2, 0, 1);
/// Where the switch answers operators.
pub(super) const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);
/// Length of the object that shows a transfer of some size.
pub(super) const BIG_BYTES: u64 = 16 << 20;
/// Its path.
pub(super) const BIG_PATH: &str = "/big.jpg";
/// A path whose answers may be kept for a minute.
pub(super) const KEPT_PATH: &str = "/kept/logo";

/// The configuration that the switch runs with.
pub(super) const CONFIG: &str = r##"[instance]
name = "edge"
admin = "127.0.0.1:9090"          # /healthz, /metrics (OpenMetrics), /status (JSON)

[log]
access = "all"

[network]
device = "fairlead0"
snat = "100.64.0.0/24"
[fastpath]
mode = "auto"

[[service]]
name = "web"
listen = "10.1.0.3:80"
protocol = "http"
source = "snat"

[[service.route]]
path_suffix = [".jpg", ".png"]
pool = "images"

[[service.route]]
host = "api.example.com"
pool = "api"

[[service.route]]                 # the default
pool = "pages"

[[service]]
name = "tls"
listen = "10.1.0.3:443"
protocol = "tls"
source = "transparent"

[[service.route]]
sni = "shop.example.com"
pool = "shop"

[[service.route]]
sni = "*.blog.example.com"
pool = "blog"

[[pool]]
name = "images"
balance = "least-connections"
server = [{ address = "10.2.0.1:8081", weight = 1 }, { address = "10.2.0.1:8082", weight = 2 }]

[[pool]]
name = "api"
balance = "round-robin"
server = [{ address = "10.2.0.1:8083" }]

[[pool]]
name = "pages"
balance = "maglev"
hash = "client-address"
server = [{ address = "10.2.0.1:8084" }]

[[pool]]
name = "shop"
server = [{ address = "10.2.0.1:8443" }]

[[pool]]
name = "blog"
server = [{ address = "10.2.0.1:8444" }]
"##;

/// A web server of the scene: one name, one port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    /// What it calls itself in every answer.
    pub name: &'static str,
    /// Its port.
    pub port: u16,
    /// The name in its certificate, for the TLS ones.
    pub certificate: Option<&'static str>,
}

/// A process that serves some origins; it can be ended and started again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Process {
    /// Its name on the screen.
    pub name: &'static str,
    /// What it serves.
    pub origins: &'static [Origin],
}

const fn plain(name: &'static str, port: u16) -> Origin {
    Origin {
        name,
        port,
        certificate: None,
    }
}

const fn secure(name: &'static str, port: u16, certificate: &'static str) -> Origin {
    Origin {
        name,
        port,
        certificate: Some(certificate),
    }
}

/// The server processes. A pool's name is its origins' name up to the `-`.
pub(super) const PROCESSES: [Process; 2] = [
    Process {
        name: "left",
        origins: &[
            plain("images-1", 8081),
            plain("api-1", 8083),
            secure("shop-1", 8443, "shop.example.com"),
        ],
    },
    Process {
        name: "right",
        origins: &[
            plain("images-2", 8082),
            plain("pages-1", 8084),
            secure("blog-1", 8444, "news.blog.example.com"),
        ],
    },
];

/// The expected result of a request, in addition to the comparison of the switch's log with the
/// answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expect {
    /// An answer of status 200 by a server of this pool.
    Pool(&'static str),
    /// The switch's own answer with this status.
    Status(u16),
    /// A TLS alert from the switch.
    Alert,
}

/// A client's request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// `GET`, `HEAD` or `POST`.
    pub method: &'static str,
    /// Over TLS.
    pub tls: bool,
    /// The name in `Host` and in SNI; `None` sends no `Host` at all.
    pub host: Option<&'static str>,
    /// The path.
    pub path: &'static str,
    /// A second path requested on the same connection.
    pub then: Option<&'static str>,
    /// Bytes of the body sent.
    pub body_bytes: usize,
    /// The expected result.
    pub expect: Expect,
}

const fn get(host: &'static str, path: &'static str, expect: Expect) -> Request {
    let (method, then) = ("GET", None);
    Request {
        method,
        tls: false,
        host: Some(host),
        path,
        then,
        body_bytes: 0,
        expect,
    }
}

const fn get_tls(host: &'static str, expect: Expect) -> Request {
    Request {
        tls: true,
        ..get(host, "/", expect)
    }
}

impl Request {
    /// The request as people write it.
    pub(super) fn title(&self) -> String {
        let what = if self.tls { "TLS " } else { "" };
        let host = self.host.unwrap_or("(no Host)");
        let mut title = format!("{what}{} {host}{}", self.method, self.path);
        if let Some(then) = self.then {
            title.push_str(&format!(", then {then}"));
        }
        if self.body_bytes > 0 {
            title.push_str(&format!(", {} MiB", self.body_bytes >> 20));
        }
        title
    }
}

/// Something done to the servers before a section's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// Nothing.
    Nothing,
    /// This process is ended.
    End(&'static str),
}

/// Requests under one heading.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section {
    /// The heading.
    pub title: &'static str,
    /// What happens first.
    pub before: Before,
    /// The requests, in order.
    pub requests: &'static [Request],
}

const VIP: &str = "10.1.0.3";
const API: &str = "api.example.com";

/// Everything that is shown, in order.
pub(super) const SECTIONS: [Section; 4] = [
    Section {
        title: "HTTP: the request's head decides; servers see addresses of the switch (snat)",
        before: Before::Nothing,
        requests: &[
            get(VIP, "/cat.jpg", Expect::Pool("images")),
            get(VIP, "/logo.png", Expect::Pool("images")),
            get(API, "/v1/users", Expect::Pool("api")),
            get(API, "/v1/photo.jpg", Expect::Pool("images")),
            get(VIP, "/", Expect::Pool("pages")),
            get("www.example.com", "/index.html", Expect::Pool("pages")),
            Request {
                method: "HEAD",
                ..get(VIP, "/logo.png", Expect::Pool("images"))
            },
            Request {
                method: "POST",
                body_bytes: 2 << 20,
                ..get(API, "/v1/upload", Expect::Pool("api"))
            },
            get(VIP, BIG_PATH, Expect::Pool("images")),
            Request {
                then: Some("/index.html"),
                ..get(VIP, "/a.png", Expect::Pool("images"))
            },
        ],
    },
    Section {
        title: "TLS: the server name in the ClientHello decides; servers see the client (transparent)",
        before: Before::Nothing,
        requests: &[
            get_tls("shop.example.com", Expect::Pool("shop")),
            get_tls("news.blog.example.com", Expect::Pool("blog")),
            get_tls("unknown.example.com", Expect::Alert),
        ],
    },
    Section {
        title: "Refused on purpose",
        before: Before::Nothing,
        requests: &[
            Request {
                host: None,
                ..get(VIP, "/", Expect::Status(400))
            },
            Request {
                method: "G(T",
                ..get(VIP, "/", Expect::Status(400))
            },
        ],
    },
    Section {
        title: "A server process exits; another server of its pool takes over, if there is one",
        before: Before::End("left"),
        requests: &[
            get(VIP, "/cat.jpg", Expect::Pool("images")),
            get(VIP, "/cat.jpg", Expect::Pool("images")),
            get(API, "/v1/users", Expect::Status(503)),
        ],
    },
];

/// The origin that listens on `port`.
pub(super) fn origin_at(port: u16) -> Option<&'static Origin> {
    PROCESSES
        .iter()
        .flat_map(|process| process.origins)
        .find(|origin| origin.port == port)
}

/// The conditions of route `index` of `service` in [`CONFIG`], on one line.
pub(super) fn condition(service: &str, index: usize) -> Option<String> {
    let table: toml::Table = CONFIG.parse().ok()?;
    let services = table.get("service")?.as_array()?;
    let named = |found: &toml::Value| found.get("name")?.as_str().map(|name| name == service);
    let service = services.iter().find(|found| named(found) == Some(true))?;
    let route = service.get("route")?.as_array()?.get(index)?.as_table()?;
    let conditions: Vec<String> = route
        .iter()
        .filter(|(key, _)| !matches!(key.as_str(), "name" | "pool" | "treatment" | "retries"))
        .map(|(key, value)| format!("{key} = {}", value.to_string().replace('"', "")))
        .collect();
    if conditions.is_empty() {
        Some("default".into())
    } else {
        Some(conditions.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_the_configuration_and_origins_match() {
        let table: toml::Table = CONFIG.parse().unwrap();
        let mut listed = Vec::new();
        for pool in table["pool"].as_array().unwrap() {
            for server in pool["server"].as_array().unwrap() {
                let address: SocketAddr = server["address"].as_str().unwrap().parse().unwrap();
                assert_eq!(address.ip(), IpAddr::from(SERVERS));
                let origin = origin_at(address.port()).unwrap();
                let prefix = format!("{}-", pool["name"].as_str().unwrap());
                assert!(
                    origin.name.starts_with(&prefix),
                    "{} is not of {prefix}",
                    origin.name
                );
                listed.push(address.port());
            }
        }
        listed.sort_unstable();
        let mut all: Vec<_> = PROCESSES
            .iter()
            .flat_map(|process| process.origins)
            .map(|origin| origin.port)
            .collect();
        all.sort_unstable();
        assert_eq!(listed, all);
    }

    #[test]
    fn a_routes_condition_is_shown_as_configured() {
        assert_eq!(condition("web", 0).unwrap(), "path_suffix = [.jpg, .png]");
        assert_eq!(condition("web", 1).unwrap(), "host = api.example.com");
        assert_eq!(condition("web", 2).unwrap(), "default");
        assert_eq!(condition("tls", 1).unwrap(), "sni = *.blog.example.com");
        assert_eq!(condition("web", 3), None);
        assert_eq!(condition("no such service", 0), None);
    }
}
