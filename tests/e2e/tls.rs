//! TLS goes through untouched; the ClientHello decides.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use fairlead_testkit::stream;

use crate::harness::{Connection, Family, Lab, Nginx, Switch, in_a_lab};
use crate::http::curl;

pub(crate) const NAMES: [&str; 2] = ["shop.example.com", "news.blog.example.com"];

/// Certificates for [`NAMES`] in the lab's folder, and the file with both for clients to trust.
pub(crate) fn certificates(lab: &Lab) -> String {
    let mut all = Vec::new();
    for name in NAMES {
        let output = Command::new(fairlead_netns::program("openssl").unwrap())
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
            ])
            .args(["-nodes", "-days", "2", "-subj", &format!("/CN={name}")])
            .args(["-addext", &format!("subjectAltName=DNS:{name}")])
            .arg("-keyout")
            .arg(lab.folder().join(format!("{name}.key")))
            .arg("-out")
            .arg(lab.folder().join(format!("{name}.pem")))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        all.extend(std::fs::read(lab.folder().join(format!("{name}.pem"))).unwrap());
    }
    lab.file("trusted.pem", all).to_string_lossy().into_owned()
}

/// Two TLS servers at ports 8443 and 8444, IPv4 and IPv6.
fn servers(lab: &Lab) -> Nginx {
    let folder = lab.folder().display().to_string();
    let mut blocks = String::new();
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for (name, port) in NAMES.into_iter().zip([8443, 8444]) {
        let listen = Family::BOTH.map(|family| family.server_at(1, port));
        blocks.push_str(&format!(
            "server {{ listen {} ssl http2; listen {} ssl http2; ssl_protocols TLSv1.2 TLSv1.3;\n\
             ssl_certificate {folder}/{name}.pem; ssl_certificate_key {folder}/{name}.key;\n\
             location /files/ {{ root $folder; dav_methods PUT; }}\n\
             location / {{ return 200 \"{port} $ssl_server_name $ssl_alpn_protocol\\n\"; }} }}\n",
            listen[0], listen[1]
        ));
        addresses.extend(listen);
    }
    Nginx::start(lab, "tls", &blocks, &addresses)
}

fn config(source: &str) -> String {
    let mut text = format!(
        r#"
[[service]]
name = "tls"
listen = ["10.1.0.3:443", "[fd01:3::3]:443"]
protocol = "tls"
source = "{source}"
"#
    );
    for (family, at) in [("four", "10.1.0.3:443"), ("six", "[fd01:3::3]:443")] {
        text.push_str(&format!(
            "[[service.route]]\nlisten = \"{at}\"\nsni = \"shop.example.com\"\npool = \"shop-{family}\"\n\
             [[service.route]]\nlisten = \"{at}\"\nsni = \"*.blog.example.com\"\npool = \"blog-{family}\"\n\
             [[service.route]]\nlisten = \"{at}\"\nalpn = \"fairlead-test\"\npool = \"blog-{family}\"\n"
        ));
    }
    for (name, family) in [("four", Family::V4), ("six", Family::V6)] {
        for (pool, port) in [("shop", 8443), ("blog", 8444)] {
            text.push_str(&format!(
                "[[pool]]\nname = \"{pool}-{name}\"\nserver = [{{ address = \"{}\" }}]\n",
                family.server_at(1, port)
            ));
        }
    }
    text
}

/// What `openssl s_client` says to these arguments and this input: exit, output, errors.
fn s_client(lab: &Lab, arguments: &[&str], input: &str) -> (bool, String, String) {
    let mut command = lab.client.command("openssl");
    command
        .args(["s_client", "-connect", "10.1.0.3:443", "-ign_eof"])
        .args(arguments);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may end before it reads anything, where it is refused.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.success(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn the_server_name_decides_and_the_certificate_is_the_servers_own() {
    in_a_lab(|lab| {
        let trusted = certificates(lab);
        let _servers = servers(lab);
        for source in ["transparent", "snat"] {
            let switch = Switch::start(lab, &config(source));
            for family in Family::BOTH {
                let to = family.virtual_at(443).ip();
                for (name, port) in NAMES.into_iter().zip([8443, 8444]) {
                    for version in ["--http1.1", "--http2"] {
                        let resolve = format!("{name}:443:{}", bracketed(to));
                        let url = format!("https://{name}/");
                        // curl verifies the certificate: whoever holds the key is at the far end.
                        let said = curl(
                            lab,
                            &[
                                version,
                                "--cacert",
                                &trusted,
                                "--resolve",
                                &resolve,
                                "-w",
                                "%{local_ip} %{local_port}",
                                &url,
                            ],
                        );
                        let (answer, local) = said.split_once('\n').unwrap();
                        assert!(answer.starts_with(&format!("{port} {name}")), "{said}");
                        let (ip, local_port) = local.split_once(' ').unwrap();
                        let client =
                            SocketAddr::new(ip.parse().unwrap(), local_port.parse().unwrap());
                        let decided = switch.record(client, "decided");
                        assert_eq!(decided.text("subject"), name);
                        assert_eq!(
                            decided.text("server"),
                            family.server_at(1, port).to_string()
                        );
                    }
                }
            }
        }
    });
}

#[test]
fn s_client_speaks_through_the_switch_by_every_version() {
    in_a_lab(|lab| {
        let _trusted = certificates(lab);
        let _servers = servers(lab);
        let _switch = Switch::start(lab, &config("snat"));
        for version in ["-tls1_2", "-tls1_3"] {
            let request = "GET / HTTP/1.1\r\nHost: shop.example.com\r\nConnection: close\r\n\r\n";
            let arguments = [
                version,
                "-servername",
                "shop.example.com",
                "-alpn",
                "http/1.1",
                "-quiet",
            ];
            let (_, out, err) = s_client(lab, &arguments, request);
            assert!(
                out.contains("8443 shop.example.com http/1.1"),
                "{version}: {out}\n{err}"
            );
        }
    });
}

#[test]
fn alpn_alone_can_decide() {
    in_a_lab(|lab| {
        let _trusted = certificates(lab);
        let _servers = servers(lab);
        let switch = Switch::start(lab, &config("snat"));
        let arguments = ["-noservername", "-alpn", "fairlead-test,http/1.1", "-quiet"];
        let request = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let (_, out, err) = s_client(lab, &arguments, request);
        assert!(out.contains("8444  http/1.1"), "{out}\n{err}");
        assert_eq!(switch.status()["services"][0]["routes"][2]["decisions"], 1);
    });
}

#[test]
fn an_unknown_or_missing_name_gets_an_alert() {
    in_a_lab(|lab| {
        let _trusted = certificates(lab);
        let _servers = servers(lab);
        let switch = Switch::start(lab, &config("snat"));
        for arguments in [
            &["-servername", "unknown.example.com"][..],
            &["-noservername"],
        ] {
            let (good, out, err) = s_client(lab, arguments, "");
            assert!(!good, "{out}");
            assert!(err.contains("unrecognized name"), "{arguments:?}: {err}");
        }
        assert_eq!(switch.drops("no_route"), 2);
        assert_eq!(switch.count("spliced"), 0);
    });
}

#[test]
fn bytes_that_are_no_tls_are_refused() {
    in_a_lab(|lab| {
        let _trusted = certificates(lab);
        let _servers = servers(lab);
        let switch = Switch::start(lab, &config("snat"));
        // An alert record (RFC 8446, section 6), but text for a client that speaks HTTP.
        let bad_request = &b"HTTP/1.1 400 Bad Request\r\n"[..];
        let alert = &b"\x15\x03\x03\x00\x02\x02"[..];
        for (bytes, begin) in [
            (&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], bad_request),
            (b"\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00", alert),
            (&[0; 64], alert),
        ] {
            let mut connection = Connection::to(lab, Family::V4.virtual_at(443));
            connection.send(bytes).unwrap();
            let answer = connection.rest().unwrap();
            assert!(answer.starts_with(begin), "{bytes:?}: {answer:?}");
            assert!(begin != alert || answer.len() == 7, "{answer:?}");
            let refused = switch.record(connection.local(), "refused");
            assert_eq!(refused.text("reason"), "tls_malformed");
        }
    });
}

#[test]
fn a_client_hello_of_several_segments_is_read() {
    in_a_lab(|lab| {
        let _trusted = certificates(lab);
        let _servers = servers(lab);
        let _switch = Switch::start(lab, &config("transparent"));
        // Many protocols make it longer than a segment, as post-quantum key shares do.
        let mut names: Vec<String> = (0..60)
            .map(|number| format!("protocol-number-{number:0100}"))
            .collect();
        names.push("http/1.1".into());
        let list = names.join(",");
        let arguments = ["-servername", "shop.example.com", "-alpn", &list, "-quiet"];
        let request = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        let (_, out, err) = s_client(lab, &arguments, request);
        assert!(
            out.contains("8443 shop.example.com http/1.1"),
            "{out}\n{err}"
        );
    });
}

#[test]
fn large_bodies_go_both_ways_inside_tls() {
    in_a_lab(|lab| {
        let trusted = certificates(lab);
        let _servers = servers(lab);
        for source in ["transparent", "snat"] {
            let _switch = Switch::start(lab, &config(source));
            let sent = lab.file("sent", stream::bytes(1, 0, 8 << 20));
            let got = lab.folder().join("got");
            let name = NAMES[0];
            let url = format!("https://{name}/files/{source}");
            let resolve = format!("{name}:443:10.1.0.3");
            let at = |path: &Path| path.to_string_lossy().into_owned();
            let common = [
                "--fail",
                "--http1.1",
                "--cacert",
                &trusted,
                "--resolve",
                &resolve,
            ];
            curl(lab, &[&common[..], &["-T", &at(&sent), &url]].concat());
            curl(lab, &[&common[..], &["-o", &at(&got), &url]].concat());
            assert!(std::fs::read(&sent).unwrap() == std::fs::read(&got).unwrap());
        }
    });
}

fn bracketed(ip: std::net::IpAddr) -> String {
    if ip.is_ipv6() {
        format!("[{ip}]")
    } else {
        ip.to_string()
    }
}
