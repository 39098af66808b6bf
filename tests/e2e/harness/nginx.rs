//! nginx, as the distribution ships it.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use fairlead_netns::{Host, Running};

use super::PATIENCE;
use super::lab::Lab;

/// A running nginx.
#[derive(Debug)]
pub(crate) struct Nginx {
    process: Running,
}

impl Nginx {
    /// Starts it with these `server { … }` blocks and waits until it listens at `addresses`.
    /// `$folder` in the text stands for the test's folder. Every answer names its server in
    /// `X-Server` where the block says `$name NAME;`.
    pub(crate) fn start(lab: &Lab, name: &str, servers: &str, addresses: &[SocketAddr]) -> Self {
        Self::start_on(lab, &lab.servers, name, servers, addresses)
    }

    /// The same on another host.
    pub(crate) fn start_on(
        lab: &Lab,
        host: &Host,
        name: &str,
        servers: &str,
        addresses: &[SocketAddr],
    ) -> Self {
        let folder = lab.folder().join(name);
        fs::create_dir_all(folder.join("files")).expect("nginx's folder");
        let at = folder.display();
        let mut text = format!(
            "user root root;\ndaemon off;\nmaster_process off;\npid {at}/pid;\nerror_log {at}/error.log;\n\
             worker_rlimit_nofile 16384;\nevents {{ worker_connections 12000; }}\nhttp {{\n\
             access_log off;\nsendfile on;\ntcp_nopush on;\nkeepalive_requests 1000000;\n\
             default_type application/octet-stream;\nclient_max_body_size 1g;\n\
             add_header X-Server \"{name}\" always;\n\
             add_header X-Saw \"$remote_addr:$remote_port\" always;\n\
             add_header X-Asked \"$connection_requests\" always;\n"
        );
        for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
            text.push_str(&format!("{kind}_temp_path {at}/{kind};\n"));
        }
        text.push_str(&servers.replace("$folder", &at.to_string()));
        text.push_str("\n}\n");
        let configuration = folder.join("nginx.conf");
        fs::write(&configuration, text).expect("nginx's configuration");
        let mut command = host.command("nginx");
        command.arg("-p").arg(&folder).arg("-c").arg(&configuration);
        command.arg("-e").arg(folder.join("error.log"));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut process = host.start(&mut command).expect("starting nginx");
        for &address in addresses {
            wait_for_listener_on(lab, host, address, || process.is_alive());
        }
        Self { process }
    }

    /// A server that answers every path by its name, and files below `/files/`, to which it also
    /// takes uploads (PUT).
    pub(crate) fn plain(lab: &Lab, name: &str, address: SocketAddr) -> Self {
        Self::plain_on(lab, &lab.servers, name, address)
    }

    /// The same on another host.
    pub(crate) fn plain_on(lab: &Lab, host: &Host, name: &str, address: SocketAddr) -> Self {
        let servers = format!(
            "server {{ listen {address} backlog=16384;\n\
             location /files/ {{ root $folder; dav_methods PUT; }}\n\
             location / {{ return 200 \"{name}\\n\"; }} }}"
        );
        Self::start_on(lab, host, name, &servers, &[address])
    }

    /// Ends it by SIGTERM.
    pub(crate) fn stop(mut self) {
        self.process
            .signal(fairlead_netns::Signal::Terminate)
            .expect("ending nginx");
        self.process.wait_for(PATIENCE).expect("its end");
    }

    /// Has it end when it has answered what it has read.
    pub(crate) fn quit(mut self) {
        self.process
            .signal(fairlead_netns::Signal::Quit)
            .expect("ending nginx");
        self.process.wait_for(PATIENCE).expect("its end");
    }

    /// Has it read its configuration again, in new processes.
    pub(crate) fn reload(&mut self) {
        self.process
            .signal(fairlead_netns::Signal::HangUp)
            .expect("reloading nginx");
    }

    /// Ends it at once, as a crash does: the kernel closes its sockets.
    pub(crate) fn kill(mut self) {
        self.process
            .signal(fairlead_netns::Signal::Kill)
            .expect("killing nginx");
        self.process.wait_for(PATIENCE).expect("its end");
    }
}

/// Waits until somebody listens at `address` on the servers' host.
pub(crate) fn wait_for_listener(lab: &Lab, address: SocketAddr, alive: impl FnMut() -> bool) {
    wait_for_listener_on(lab, &lab.servers, address, alive);
}

pub(crate) fn wait_for_listener_on(
    lab: &Lab,
    host: &Host,
    address: SocketAddr,
    mut alive: impl FnMut() -> bool,
) {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        let attempt: io::Result<TcpStream> = host
            .enter(|| TcpStream::connect(address))
            .expect("entering the servers' host");
        if attempt.is_ok() {
            return;
        }
        assert!(
            alive(),
            "the server for {address} ended; see {}",
            lab.folder().display()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("nobody listens at {address}");
}
