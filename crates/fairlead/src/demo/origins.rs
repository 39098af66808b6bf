//! The web servers: nginx where the machine has it, a small one of our own where not.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fairlead_netns::{Host, Running, program};

use super::scene::{BIG_BYTES, BIG_PATH, KEPT_PATH, Origin, Process, SERVERS};

/// Longest head that the embedded server reads.
const HEAD_BYTES_MAX: u64 = 64 << 10;

/// How the origins are served.
#[derive(Clone, Debug)]
pub(super) struct Software {
    /// nginx, if installed.
    pub nginx: Option<PathBuf>,
    /// The openssl tool, if installed; it creates the certificates.
    pub openssl: Option<PathBuf>,
}

impl Software {
    /// Looks for the programs.
    pub(super) fn find() -> Self {
        Self {
            nginx: program("nginx"),
            openssl: program("openssl"),
        }
    }

    /// True when TLS can be served.
    pub(super) fn has_tls(&self) -> bool {
        self.nginx.is_some() && self.openssl.is_some()
    }

    /// Name and version for people.
    pub(super) fn title(&self) -> String {
        let Some(nginx) = &self.nginx else {
            return "embedded ones (for nginx: apt-get install nginx)".into();
        };
        let said = Command::new(nginx)
            .arg("-v")
            .output()
            .map(|output| output.stderr);
        let said = String::from_utf8_lossy(&said.unwrap_or_default())
            .trim()
            .to_owned();
        said.strip_prefix("nginx version: ")
            .unwrap_or("nginx")
            .to_owned()
    }
}

/// A process that serves its origins until it is dropped.
pub(super) enum Serving {
    /// nginx.
    Nginx {
        /// Its process, which ends with this.
        _process: Running,
    },
    /// Threads of this process; set to true to stop them.
    Embedded(Arc<AtomicBool>),
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Self::Embedded(end) = self {
            end.store(true, Ordering::SeqCst);
            // The accepting threads look every 20 ms; after this their ports are closed.
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Starts the origins of `process` on `host` and waits until all of them listen.
pub(super) fn start(
    software: &Software,
    host: &Host,
    process: &Process,
    folder: &Path,
) -> Result<Serving> {
    let origins: Vec<Origin> = process
        .origins
        .iter()
        .copied()
        .filter(|origin| origin.certificate.is_none() || software.has_tls())
        .collect();
    let Some(nginx) = &software.nginx else {
        return start_embedded(host, &origins);
    };
    let configuration = folder.join(format!("{}.conf", process.name));
    fs::write(
        &configuration,
        nginx_configuration(process, &origins, folder),
    )?;
    let log = folder.join(format!("{}-error.log", process.name));
    let mut command = host.command(&nginx.to_string_lossy());
    command
        .arg("-p")
        .arg(folder)
        .arg("-e")
        .arg(&log)
        .arg("-c")
        .arg(&configuration);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut running = host.start(&mut command)?;
    for origin in &origins {
        let address = (SERVERS, origin.port);
        for _ in 0..500 {
            if host.enter(|| TcpStream::connect(address))?.is_ok() {
                break;
            }
            if !running.is_alive() {
                bail!(
                    "nginx ended: {}",
                    fs::read_to_string(&log).unwrap_or_default().trim()
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(Serving::Nginx { _process: running })
}

/// Creates the files that all processes share: the big object and the certificates. Returns the
/// file of certificates that clients trust.
pub(super) fn prepare(software: &Software, folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder.join("files"))?;
    let big = fs::File::create(folder.join("files").join(BIG_PATH.trim_start_matches('/')))?;
    big.set_len(BIG_BYTES)?;
    let trusted = folder.join("trusted.pem");
    let mut all = String::new();
    if let (true, Some(openssl)) = (software.has_tls(), &software.openssl) {
        for origin in super::scene::PROCESSES
            .iter()
            .flat_map(|process| process.origins)
        {
            if let Some(name) = origin.certificate {
                all.push_str(&certificate(openssl, folder, name)?);
            }
        }
    }
    fs::write(&trusted, all)?;
    Ok(trusted)
}

/// A self-signed certificate for `name`, `NAME.pem` and `NAME.key` in `folder`.
fn certificate(openssl: &Path, folder: &Path, name: &str) -> Result<String> {
    let pem = folder.join(format!("{name}.pem"));
    let output = Command::new(openssl)
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
        .arg(folder.join(format!("{name}.key")))
        .arg("-out")
        .arg(&pem)
        .stdin(Stdio::null())
        .output()
        .context("running openssl")?;
    if !output.status.success() {
        bail!(
            "openssl: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(fs::read_to_string(pem)?)
}

/// Paths are quoted, because the temporary directory may have spaces in its name.
fn nginx_configuration(process: &Process, origins: &[Origin], folder: &Path) -> String {
    let folder = folder.display();
    let name = process.name;
    let mut text = format!(
        "user root root;\ndaemon off;\nmaster_process off;\npid \"{folder}/{name}.pid\";\n\
         error_log \"{folder}/{name}-error.log\";\nevents {{ worker_connections 4096; }}\nhttp {{\n\
         access_log off;\nsendfile on;\ntcp_nopush on;\ndefault_type text/plain;\n\
         client_max_body_size 64m;\n"
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        text.push_str(&format!("{kind}_temp_path \"{folder}/{name}-{kind}\";\n"));
    }
    for Origin {
        name,
        port,
        certificate,
    } in origins
    {
        let tls = if certificate.is_some() { " ssl" } else { "" };
        text.push_str(&format!("server {{\nlisten {SERVERS}:{port}{tls};\n"));
        if let Some(certificate) = certificate {
            text.push_str(&format!(
                "ssl_certificate \"{folder}/{certificate}.pem\";\n\
                 ssl_certificate_key \"{folder}/{certificate}.key\";\n"
            ));
        }
        text.push_str(&format!(
            "add_header X-Server \"{name} $server_addr:$server_port\" always;\n\
             add_header X-Saw \"$remote_addr:$remote_port\" always;\n\
             location = {BIG_PATH} {{ root \"{folder}/files\"; }}\n\
             location = {KEPT_PATH} {{ expires 60s; return 200 \"{name} may be kept\\n\"; }}\n\
             location / {{ return 200 \"{name} answers $request_method $request_uri\\n\"; }}\n}}\n"
        ));
    }
    text.push_str("}\n");
    text
}

fn start_embedded(host: &Host, origins: &[Origin]) -> Result<Serving> {
    let end = Arc::new(AtomicBool::new(false));
    for &origin in origins {
        let listener = host.enter(|| TcpListener::bind((SERVERS, origin.port)))??;
        listener.set_nonblocking(true)?;
        let end = Arc::clone(&end);
        std::thread::spawn(move || {
            while !end.load(Ordering::SeqCst) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        std::thread::spawn(move || {
                            // A client that goes away in the middle is its own affair.
                            let _ = serve_connection(origin, stream);
                        });
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(20)),
                }
            }
        });
    }
    Ok(Serving::Embedded(end))
}

/// Answers the requests of one connection until it ends.
fn serve_connection(origin: Origin, stream: TcpStream) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let (local, peer) = (stream.local_addr()?, stream.peer_addr()?);
    let mut answer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        let mut limited = (&mut reader).take(HEAD_BYTES_MAX);
        while !head.ends_with(b"\r\n\r\n") {
            if limited.read_until(b'\n', &mut head)? == 0 {
                return Ok(());
            }
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let field = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(':'));
            lines
                .find(|(key, _)| key.eq_ignore_ascii_case(name))
                .map(|(_, value)| value.trim())
        };
        let body_bytes = field("content-length")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        std::io::copy(&mut (&mut reader).take(body_bytes), &mut std::io::sink())?;
        let close = field("connection").is_some_and(|text| text.eq_ignore_ascii_case("close"));
        let text = format!("{} answers {method} {path}\n", origin.name);
        let length = if path == BIG_PATH {
            BIG_BYTES
        } else {
            text.len() as u64
        };
        write!(
            answer,
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\
             X-Server: {} {local}\r\nX-Saw: {peer}\r\n{}{}\r\n",
            origin.name,
            if path == KEPT_PATH {
                "Cache-Control: max-age=60\r\n"
            } else {
                ""
            },
            if close { "Connection: close\r\n" } else { "" }
        )?;
        match (method, path) {
            ("HEAD", _) => {}
            (_, BIG_PATH) => {
                std::io::copy(&mut std::io::repeat(0).take(BIG_BYTES), &mut answer)?;
            }
            _ => answer.write_all(text.as_bytes())?,
        }
        if close {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::scene::PROCESSES;

    #[test]
    fn paths_with_spaces_are_quoted_for_nginx() {
        for process in &PROCESSES {
            let text = nginx_configuration(process, process.origins, Path::new("/tmp/a b"));
            let (all, quoted) = (text.matches("/tmp/a b/"), text.matches("\"/tmp/a b/"));
            assert!(text.contains("ssl_certificate ") && text.contains("pid "));
            assert_eq!(all.count(), quoted.count(), "{text}");
        }
    }
}
