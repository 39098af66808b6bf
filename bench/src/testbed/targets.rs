//! Who is measured: Fairlead, proxies at their best, and plain forwarding. One file of
//! configuration each.

use std::fmt::Write;
use std::path::Path;

/// Whoever stands (or does not stand) between the client and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// This project.
    Fairlead,
    /// HAProxy as shipped.
    Haproxy,
    /// HAProxy with buffers of 128 KiB and server connections that serve everybody.
    HaproxyTuned,
    /// nginx with a pool of 64 server connections, passing answers on as they come.
    Nginx,
    /// nginx with that pool and buffers of 128 KiB.
    NginxTuned,
    /// The server itself, by plain IP forwarding.
    Direct,
    /// The server itself, by a link of its own: nobody is between. What no switch can do better
    /// than, whatever it costs, but by joining segments.
    Link,
}

impl Target {
    /// All of them, in the order of the tables.
    pub(crate) const ALL: [Self; 6] = [
        Self::Fairlead,
        Self::Haproxy,
        Self::HaproxyTuned,
        Self::Nginx,
        Self::NginxTuned,
        Self::Direct,
    ];

    /// Everybody, and last the link without anybody.
    pub(crate) const WITH_LINK: [Self; 7] = {
        let mut all = [Self::Link; 7];
        let mut at = 0;
        while at < Self::ALL.len() {
            all[at] = Self::ALL[at];
            at += 1;
        }
        all
    };

    /// Its name in tables and records.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fairlead => "fairlead",
            Self::Haproxy => "haproxy",
            Self::HaproxyTuned => "haproxy-tuned",
            Self::Nginx => "nginx",
            Self::NginxTuned => "nginx-128k",
            Self::Direct => "direct",
            Self::Link => "link",
        }
    }

    /// Where the client finds it.
    pub(crate) fn address(self) -> &'static str {
        match self {
            Self::Fairlead => "10.1.0.3:80",
            Self::Haproxy => "10.1.0.1:8080",
            Self::HaproxyTuned => "10.1.0.1:8081",
            Self::Nginx => "10.1.0.1:8082",
            Self::NginxTuned => "10.1.0.1:8083",
            Self::Direct => "10.2.0.1:8081",
            Self::Link => "10.4.0.1:8081",
        }
    }

    /// True for the proxies that Fairlead is held against.
    pub(crate) fn is_peer(self) -> bool {
        !matches!(self, Self::Fairlead | Self::Direct | Self::Link)
    }
}

/// What every nginx here has in common; `inside` is the content of the `http` block.
pub(crate) fn nginx(folder: &Path, name: &str, inside: &str) -> String {
    let at = folder.display();
    let mut paths = String::new();
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        let _ = writeln!(paths, "{kind}_temp_path {at}/{name}-{kind};");
    }
    // Of waiting connections nginx takes one a round unless told otherwise, and each round first
    // answers everybody else: the last of 64 would wait for the answers of 63 rounds.
    format!(
        "daemon off;\nmaster_process off;\npid {at}/{name}.pid;\nerror_log {at}/{name}.log;\n\
         events {{ worker_connections 131072; multi_accept on; }}\nhttp {{\n{paths}\
         access_log off;\nkeepalive_requests 100000000;\nkeepalive_timeout 3600s;\n{inside}\n}}\n"
    )
}

/// The web server behind everybody, or one of several processes of it.
pub(crate) fn server(folder: &Path, name: &str) -> String {
    let at = folder.display();
    let inside = format!(
        "sendfile on;\ntcp_nopush on;\nopen_file_cache max=100;\n\
         server {{ listen 10.2.0.1:8081 reuseport backlog=16384;\n\
         listen 10.4.0.1:8081 reuseport backlog=16384; root {at}/files; }}"
    );
    nginx(folder, name, &inside)
}

/// nginx as a proxy, twice; `reuseport` lets several processes share the work.
pub(crate) fn nginx_peer(folder: &Path, name: &str) -> String {
    let proxy = "proxy_pass http://servers; proxy_http_version 1.1; \
                 proxy_set_header Connection \"\"; proxy_max_temp_file_size 0;";
    let inside = format!(
        "upstream servers {{ server 10.2.0.1:8081; keepalive 64; keepalive_requests 100000000; }}\n\
         server {{ listen 10.1.0.1:8082 reuseport backlog=16384;\n\
         location / {{ {proxy} proxy_buffering off; }} }}\n\
         server {{ listen 10.1.0.1:8083 reuseport backlog=16384;\n\
         location / {{ {proxy} proxy_buffer_size 128k; proxy_buffers 16 128k; \
         proxy_busy_buffers_size 256k; }} }}"
    );
    nginx(folder, name, &inside)
}

/// HAProxy, one of the two.
pub(crate) fn haproxy(tuned: bool) -> String {
    let (global, reuse, target) = match tuned {
        true => (
            "tune.bufsize 131072\n",
            "http-reuse always\n",
            Target::HaproxyTuned,
        ),
        false => ("", "", Target::Haproxy),
    };
    format!(
        "global\n{global}defaults\nmode http\ntimeout connect 5s\n\
         timeout client 3600s\ntimeout server 3600s\n{reuse}listen web\nbind {}\n\
         server one 10.2.0.1:8081\n",
        target.address()
    )
}

/// Fairlead's configuration; without `interfaces` it finds them. Where the hosts at the other ends
/// steer what they receive to another core, packets go `by_queue`: the steering is there.
pub(crate) fn fairlead(mode: &str, interfaces: &[String], by_queue: bool) -> String {
    let veth = match by_queue && mode != "engine" {
        true => "veth_redirect = \"queue\"",
        false => "",
    };
    let interfaces = match interfaces {
        [] => String::new(),
        named => format!("interfaces = {named:?}"),
    };
    format!(
        r#"
[instance]
name = "bench"
drain_timeout = "0s"

[network]
device = "fairlead0"
snat = "100.64.0.0/24"
[fastpath]
mode = "{mode}"
{interfaces}
{veth}

[[service]]
name = "web"
listen = "10.1.0.3:80"
protocol = "http"
source = "snat"

[[service.route]]
pool = "pages"

[[pool]]
name = "pages"
balance = "round-robin"
server = [{{ address = "10.2.0.1:8081" }}]
"#
    )
}
