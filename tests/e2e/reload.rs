//! SIGHUP: another configuration, the same process, and nobody notices.

use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fairlead_netns::Signal;

use crate::harness::{
    Connection, Family, Lab, PATIENCE, SetAtEnd, Switch, binary, in_a_lab, on_the_fast_path,
    prefix_in, web_service,
};
use crate::restart::{KeepAlive, in_kernel, start, web_on};

/// Sends SIGHUP when the configuration is now this one, and waits until this many runs have said
/// that they are ready.
pub(crate) fn reload(lab: &Lab, switch: &mut Switch, configuration: &str, runs: usize) {
    lab.file("fairlead.toml", configuration);
    switch.signal(Signal::HangUp);
    let until = Instant::now() + PATIENCE;
    while switch.log().matches("ready: e2e").count() < runs {
        assert!(Instant::now() < until, "no new run:\n{}", switch.log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The service with servers of this number.
fn served_by(number: u8) -> String {
    let servers = |family: Family| vec![family.server_at(number, 8080)];
    web_service("transparent", "", "", servers)
}

/// The status of what one new connection is answered.
fn asks(lab: &Lab) -> Option<u16> {
    let mut connection = Connection::open(lab, Family::V4.virtual_at(80)).ok()?;
    Some(connection.ask("GET", "a.example", "/").ok()?.status)
}

fn open_files(switch: &Switch) -> usize {
    let folder = std::fs::read_dir(format!("/proc/{}/fd", switch.id()));
    folder.expect("the switch's open files").count()
}

/// How often the device has had nobody who reads it, and somebody again.
fn carrier_changes(lab: &Lab) -> u64 {
    let mut command = lab.switch.command("ip");
    command.args(["-s", "-s", "-j", "link", "show", "dev", "fairlead0"]);
    let output = command.output().expect("running ip");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("what ip says");
    told[0]["stats64"]["tx"]["carrier_changes"]
        .as_u64()
        .expect("a number")
}

#[test]
fn a_reload_changes_who_serves_and_no_connection_notices() {
    on_the_fast_path(|lab| {
        let (first, second) = (web_on(lab, &[1]), web_on(lab, &[2]));
        let mut switch = start(lab, &served_by(1));
        let id = switch.id();
        let keep_alive = KeepAlive::start(lab, 40);
        let end = AtomicBool::new(false);
        let changes = carrier_changes(lab);
        let asked = std::thread::scope(|scope| {
            // Also when an assertion below fails: the scope waits for the thread either way.
            let over = SetAtEnd(&end);
            // New connections all the while, also where nobody is there to take them.
            let newcomers = scope.spawn(|| {
                let mut asked = 0;
                while !end.load(Ordering::SeqCst) {
                    assert_eq!(asks(lab), Some(200), "request {asked}");
                    asked += 1;
                }
                asked
            });
            reload(lab, &mut switch, &in_kernel(&served_by(2)), 2);
            let files = open_files(&switch);
            for run in 3..6 {
                keep_alive.wait_for_more(100);
                reload(lab, &mut switch, &in_kernel(&served_by(2)), run);
            }
            // Its threads open files for a moment, so that a look may find one more or one less.
            let until = Instant::now() + PATIENCE;
            while open_files(&switch) > files + 1 {
                assert!(Instant::now() < until, "descriptors pile up");
                std::thread::sleep(Duration::from_millis(20));
            }
            drop(over);
            newcomers.join().expect("every request was answered")
        });
        assert!(asked > 10, "{asked} requests in all");
        assert_eq!(carrier_changes(lab), changes, "the device was never closed");
        assert_eq!((switch.id(), switch.is_alive()), (id, true));
        keep_alive.wait_for_more(100);
        let status = switch.status();
        assert!(status["adopted"].as_u64() >= Some(40), "{status}");
        assert_eq!(
            status["pools"][0]["servers"][0]["endpoint"],
            "10.2.0.2:8080"
        );
        keep_alive.finish();
        drop(first);
        assert_eq!(asks(lab), Some(200), "by the other server");
        drop(second);
        switch.wait_for_count("live", 0);
    });
}

#[test]
fn a_reload_that_cannot_be_is_refused_and_everything_goes_on() {
    on_the_fast_path(|lab| {
        let _web = web_on(lab, &[1]);
        let good = in_kernel(&served_by(1));
        let mut switch = Switch::start_with(lab, &good);
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        connection.ask("GET", "a.example", "/").unwrap();
        let bad = [
            (good.replace("\"web\"", "\"web"), "fairlead.toml:"),
            (good.replace("\"e2e\"", "\"other\""), "instance.name"),
            (good.replace("9090", "80"), "in use"),
        ];
        let somebody = lab
            .switch
            .enter(|| std::net::TcpListener::bind("127.0.0.1:80"));
        let _taken = somebody.unwrap().unwrap();
        for (number, (configuration, why)) in bad.iter().enumerate() {
            assert_ne!(configuration, &good);
            lab.file("fairlead.toml", configuration);
            switch.signal(Signal::HangUp);
            switch.wait_for_count("reloads_refused", number as u64 + 1);
            switch.wait_for_log(why);
        }
        assert_eq!(asks(lab), Some(200));
        assert_eq!(connection.ask("GET", "a.example", "/").unwrap().status, 200);
        let metrics = switch.page("/metrics").unwrap();
        assert!(
            metrics.contains("fairlead_reloads_refused_total 3"),
            "{metrics}"
        );
        assert_eq!(switch.count("adopted"), 0, "it is the first run still");
        reload(lab, &mut switch, &good, 2);
        assert_eq!(connection.ask("GET", "a.example", "/").unwrap().status, 200);
        assert_eq!(switch.count("reloads_refused"), 0, "a new run");
    });
}

/// What the first run has pinned, and its device, suit a later one with far more in it, and with a
/// family that there was none of.
#[test]
fn a_reload_may_bring_many_servers_and_another_family() {
    on_the_fast_path(|lab| {
        let _web = web_on(lab, &[1]);
        let few = in_kernel(&web_service("snat", "", "", |family| match family {
            Family::V4 => vec![family.server_at(1, 8080)],
            Family::V6 => Vec::new(),
        }));
        let sources = "snat = [\"100.64.0.0/24\", \"fd64::/120\"]";
        assert!(few.contains(sources));
        let few = few.replace(sources, "snat = [\"100.64.0.0/30\"]");
        let mut switch = Switch::start_with(lab, &few);
        let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
        connection.ask("GET", "a.example", "/").unwrap();
        // Nothing answers at the others, which are not chosen.
        let others = 10_000..10_300;
        let mut many = web_service("snat", "", "", |family| {
            let all = std::iter::once(8080).chain(others.clone());
            all.map(|port| family.server_at(1, port)).collect()
        });
        for port in others {
            many = many.replace(
                &format!(":{port}\" }}"),
                &format!(":{port}\", weight = 0 }}"),
            );
        }
        reload(lab, &mut switch, &in_kernel(&many), 2);
        assert_eq!(connection.ask("GET", "a.example", "/").unwrap().status, 200);
        assert_eq!(switch.count("adopted"), 1);
        assert_eq!(asks(lab), Some(200));
        let mut six = Connection::to(lab, Family::V6.virtual_at(80));
        assert_eq!(six.ask("GET", "a.example", "/").unwrap().status, 200);
        assert_ne!(switch.status()["mode"], "engine");
    });
}

#[test]
fn a_service_manager_is_told() {
    on_the_fast_path(|lab| {
        let path = lab.folder().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        let told = || {
            let mut message = [0; 256];
            let length = manager.recv(&mut message).unwrap();
            String::from_utf8_lossy(&message[..length]).into_owned()
        };
        let _web = web_on(lab, &[1]);
        let configuration = in_kernel(&served_by(1));
        let mut command = lab.switch.command(&binary().to_string_lossy());
        command.env("NOTIFY_SOCKET", &path);
        let mut switch = Switch::run(lab, &configuration, command, &[]).ready();
        assert_eq!(told().trim_end(), "READY=1\nSTATUS=in service");
        reload(lab, &mut switch, &configuration, 2);
        let reloading = told();
        assert!(
            reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="),
            "{reloading}"
        );
        assert_eq!(told().trim_end(), "READY=1\nSTATUS=in service");
        // One that is refused is over, too: whoever has asked for it waits for this.
        lab.file(
            "fairlead.toml",
            configuration.replace("\"e2e\"", "\"other\""),
        );
        switch.signal(Signal::HangUp);
        assert!(told().starts_with("RELOADING=1\nMONOTONIC_USEC="));
        let refused = told();
        assert!(
            refused.starts_with("READY=1\nSTATUS=reload refused")
                && refused.contains("instance.name"),
            "{refused}"
        );
        switch.signal(Signal::Terminate);
        assert_eq!(told().trim_end(), "STOPPING=1");
        assert_eq!(switch.wait_for_end(), Some(0));
    });
}

#[test]
fn the_engine_alone_refuses_to_reload() {
    in_a_lab(|lab| {
        let _web = web_on(lab, &[1]);
        let services = served_by(1);
        // In other quotes, so that it stays this mode whichever the tests are run in.
        let prefix = prefix_in("engine", "").replace("\"engine\"", "'engine'");
        let mut switch = Switch::start_with(lab, &format!("{prefix}{services}"));
        assert_eq!(switch.status()["mode"], "engine");
        switch.signal(Signal::HangUp);
        switch.wait_for_count("reloads_refused", 1);
        switch.wait_for_log("held by this process");
        assert_eq!(asks(lab), Some(200));
    });
}
