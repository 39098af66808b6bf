//! nginx with the module of `examples/nginx-stream` hands its tunnels off. `FAIRLEAD_NGINX_SOURCE`
//! names a folder with nginx's source, of which a copy is built.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fairlead_netns::trial::skip;
use fairlead_netns::{Running, Signal};

use crate::handoff::{all_over, echo, exchange, front, order, ping, socket, switch};
use crate::harness::{Family, Lab, Origin, PATIENCE, on_the_fast_path, rounds};

/// The variable that names the source.
const SOURCE: &str = "FAIRLEAD_NGINX_SOURCE";

/// Builds a copy of the source with the module; the program.
fn built(lab: &Lab, source: &Path) -> PathBuf {
    let folder = lab.folder().join("nginx-source");
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/nginx-stream");
    let run = |command: &mut Command| {
        let output = command.output().expect("a program");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(output.status.success(), "{command:?}: {said}");
    };
    run(Command::new("cp").arg("-r").arg(source).arg(&folder));
    // A release has it at the top, a checkout in `auto`.
    let scripts = ["configure", "auto/configure"].map(|name| folder.join(name));
    let script = scripts.iter().find(|path| path.is_file());
    let mut configure = Command::new(script.expect("nginx's source"));
    configure
        .args(["--without-http", "--without-pcre", "--with-stream"])
        .arg(format!("--add-module={}", module.display()));
    run(configure.current_dir(&folder));
    run(Command::new("make").arg("-j2").current_dir(&folder));
    folder.join("objs/nginx")
}

/// nginx between the switch's own address and the server, and its log.
struct Nginx {
    process: Running,
    log: PathBuf,
}

impl Nginx {
    fn start(lab: &Lab, program: &Path, family: Family, after: &str) -> Self {
        let folder = lab.folder().join("nginx-stream");
        fs::create_dir_all(&folder).unwrap();
        let (at, log) = (folder.display(), folder.join("error.log"));
        let _ = fs::remove_file(&log);
        let text = format!(
            "user root root;\ndaemon off;\nmaster_process off;\npid {at}/pid;\n\
             error_log {} notice;\nevents {{ worker_connections 8192; }}\nstream {{\nserver {{\n\
             listen {};\nproxy_pass {};\nproxy_timeout 1h;\nfairlead_handoff {} {after};\n}}\n}}\n",
            log.display(),
            front(family),
            family.server_at(1, 7),
            socket(lab).display(),
        );
        let configuration = folder.join("nginx.conf");
        fs::write(&configuration, text).unwrap();
        let mut command = lab.switch.command(&program.to_string_lossy());
        command.arg("-p").arg(&folder).arg("-c").arg(&configuration);
        command.arg("-e").arg(&log);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let process = lab.switch.start(&mut command).expect("starting nginx");
        Self { process, log }
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it has handed this number of connections off.
    fn has_handed_off(&self, count: usize) {
        let until = Instant::now() + PATIENCE;
        while self.text().matches("fairlead: handed off as").count() < count {
            assert!(Instant::now() < until, "{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn kill(mut self) {
        self.process.signal(Signal::Kill).expect("killing nginx");
        self.process.wait_for(PATIENCE).expect("its end");
    }
}

/// As soon as it listens.
fn tunnel(lab: &Lab, nginx: &Nginx, family: Family) -> TcpStream {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match lab
            .client
            .enter(|| TcpStream::connect(front(family)))
            .unwrap()
        {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < until, "{error}: {}", nginx.text()),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A transfer goes on when nginx has handed it off and is killed; idle tunnels outlive one nginx
/// after another.
#[test]
fn tunnels_of_nginx_outlive_it() {
    let name = "handoff_nginx::tunnels_of_nginx_outlive_it";
    let Some(source) = std::env::var_os(SOURCE) else {
        return skip(name, &format!("{SOURCE} names no source of nginx"));
    };
    on_the_fast_path(|lab| {
        let program = built(lab, source.as_ref());
        let _servers = Family::BOTH.map(|family| Origin::start(lab, family.server_at(1, 7), echo));
        let switch = switch(lab);
        for family in Family::BOTH {
            let nginx = Nginx::start(lab, &program, family, "8m");
            exchange(tunnel(lab, &nginx, family), 24 << 20, || {
                nginx.has_handed_off(1);
                nginx.kill();
            });
        }
        assert!(all_over(&switch), "{}", switch.status());
        let (each, mut tunnels) = (rounds(10, 200), Vec::new());
        for _ in 0..rounds(2, 10) {
            let nginx = Nginx::start(lab, &program, Family::V4, "128k");
            for count in 1..=each {
                let stream = tunnel(lab, &nginx, Family::V4);
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                ping(&stream, 0);
                nginx.has_handed_off(count);
                tunnels.push(stream);
            }
            nginx.kill();
        }
        for stream in &tunnels {
            ping(stream, 65_536);
        }
        assert_eq!(switch.count("live"), tunnels.len() as u64);
        let (_, list) = order(lab, &["list"]);
        assert!(list.contains("carried"), "{list}");
        // Who is not handed off is nginx's as ever.
        let nginx = Nginx::start(lab, &program, Family::V4, "1g");
        let stream = tunnel(lab, &nginx, Family::V4);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        (0..16).for_each(|part| ping(&stream, part * 65_536));
        assert!(!nginx.text().contains("handed off"), "{}", nginx.text());
        nginx.kill();
    });
}
