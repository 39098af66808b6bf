//! `fairlead reload` and `fairlead drain`: what signals do, with an answer.

use std::fs::Permissions;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use fairlead_netns::trial::{copy_program, skip};
use fairlead_netns::{Running, Signal};

use crate::harness::{
    Connection, Family, Lab, PATIENCE, Switch, binary, in_a_lab, on_the_fast_path, prefix_in,
    web_service,
};
use crate::restart::{in_kernel, web_on};

fn command(lab: &Lab, arguments: &[&str]) -> Command {
    let mut command = lab.switch.command(&binary().to_string_lossy());
    // "FILE" is the configuration.
    let file = lab.folder().join("fairlead.toml");
    for argument in arguments {
        match *argument {
            "FILE" => command.arg(&file),
            other => command.arg(other),
        };
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Its exit code, and what it says: on standard output, and as an error.
pub(crate) fn fairlead(lab: &Lab, arguments: &[&str]) -> (Option<i32>, String, String) {
    told(&command(lab, arguments).output().expect("running fairlead"))
}

fn told(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// The service with servers of this number.
fn served_by(number: u8) -> String {
    web_service("snat", "", "", |family| {
        vec![family.server_at(number, 8080)]
    })
}

/// The engine alone, whichever mode the tests are run in: in other quotes.
fn in_engine(lines: &str) -> String {
    let prefix = prefix_in("engine", "").replace("\"engine\"", "'engine'");
    let prefix = prefix.replace("drain_timeout = \"1s\"", lines);
    format!("{prefix}{}", served_by(1))
}

/// The switch; or `None` if it has no socket, which is reported.
fn start(lab: &Lab, test: &str, configuration: &str) -> Option<Switch> {
    let switch = Switch::start_with(lab, configuration);
    if switch.log().contains("no control socket") {
        skip(test, "the folder of sockets cannot be made by this user");
        return None;
    }
    Some(switch)
}

fn connect(lab: &Lab) -> Connection {
    let mut connection = Connection::to(lab, Family::V4.virtual_at(80));
    assert_eq!(connection.ask("GET", "a.example", "/").unwrap().status, 200);
    connection
}

fn is_draining(switch: &Switch) -> bool {
    switch.status()["draining"] == true
}

/// A command that goes on, once it has said something.
fn begun(lab: &Lab, arguments: &[&str]) -> (Running, String) {
    let mut process = lab.switch.start(&mut command(lab, arguments)).unwrap();
    let mut first = [0; 256];
    let read = process.child().stdout.as_mut().unwrap().read(&mut first);
    let first = String::from_utf8_lossy(&first[..read.unwrap()]).into_owned();
    (process, first)
}

/// The rest of what it says, and its exit code.
fn rest(process: &mut Running) -> (Option<i32>, String) {
    let status = process
        .wait_for(PATIENCE)
        .unwrap()
        .expect("it does not end");
    let child = process.child();
    let mut text = String::new();
    let out = child.stdout.as_mut().unwrap();
    out.read_to_string(&mut text).unwrap();
    let errors = child.stderr.as_mut().unwrap();
    errors.read_to_string(&mut text).unwrap();
    (status.code(), text)
}

#[test]
fn a_reload_by_command_tells_what_came_of_it() {
    on_the_fast_path(|lab| {
        let _servers = [web_on(lab, &[1]), web_on(lab, &[2])];
        let good = in_kernel(&served_by(1));
        let test = "orders::a_reload_by_command_tells_what_came_of_it";
        let Some(mut switch) = start(lab, test, &good) else {
            return;
        };
        let mut connection = connect(lab);
        let by_file = ["reload", "-c", "FILE"];
        let by_name = ["reload", "--instance", "e2e"];

        lab.file("fairlead.toml", in_kernel(&served_by(2)));
        let (code, out, errors) = fairlead(lab, &by_file);
        assert_eq!((code, errors.as_str()), (Some(0), ""), "{out}");
        for line in [
            "e2e: 4 changes\n",
            "  pool four: server 10.2.0.2:8080 is new\n",
            "  pool four: server 10.2.0.1:8080 is gone\n",
            "in service again after ",
        ] {
            assert!(out.contains(line), "no {line:?}:\n{out}");
        }
        assert_eq!(connection.ask("GET", "a.example", "/").unwrap().status, 200);
        assert!(switch.count("adopted") >= 1);
        let (code, out, _) = fairlead(lab, &by_name);
        assert!(
            code == Some(0) && out.contains("the configuration has not changed"),
            "{out}"
        );

        lab.file("fairlead.toml", good.replace("\"web\"", "\"web"));
        let (code, _, errors) = fairlead(lab, &by_name);
        assert_eq!(code, Some(1));
        assert!(
            errors.contains("refused; the old configuration stays in service"),
            "{errors}"
        );
        assert!(errors.contains("fairlead.toml:"), "{errors}");
        assert_eq!(switch.count("reloads_refused"), 1);
        let (code, _, errors) = fairlead(lab, &by_file);
        assert_eq!(code, Some(1));
        assert!(errors.contains("no reload was requested"), "{errors}");
        assert_eq!(switch.count("reloads_refused"), 1);

        lab.file("fairlead.toml", good.replace("\"e2e\"", "\"other\""));
        let (code, _, errors) = fairlead(lab, &by_file);
        assert_eq!(code, Some(1));
        assert!(
            errors.contains("instance \"other\" is not running") && errors.contains("e2e"),
            "{errors}"
        );
        assert!(switch.is_alive());
        assert_eq!(connection.ask("GET", "a.example", "/").unwrap().status, 200);
    });
}

#[test]
fn a_new_run_that_cannot_start_is_told() {
    on_the_fast_path(|lab| {
        let _web = web_on(lab, &[1]);
        let good = in_kernel(&served_by(1));
        let test = "orders::a_new_run_that_cannot_start_is_told";
        // A copy, at whose place something else lies later.
        let copy = lab.folder().join("fairlead-copy");
        copy_program(binary(), &copy);
        let mut switch = Switch::launch_as(lab, &good, &copy, &[]).ready();
        if switch.log().contains("no control socket") {
            return skip(test, "the folder of sockets cannot be made by this user");
        }
        std::fs::remove_file(&copy).unwrap();
        copy_program(Path::new("/bin/false"), &copy);
        let (code, _, errors) = fairlead(lab, &["reload", "--instance", "e2e"]);
        assert_eq!(code, Some(1), "{errors}");
        assert!(
            errors.contains("has exited instead") || errors.contains("own file no longer exists"),
            "{errors}"
        );
        if errors.contains("has exited") {
            switch.wait_for_end();
            return;
        }
        assert!(switch.is_alive());
    });
}

#[test]
fn a_drain_by_command_waits_for_the_last_connection() {
    in_a_lab(|lab| {
        let _web = web_on(lab, &[1]);
        let test = "orders::a_drain_by_command_waits_for_the_last_connection";
        let Some(mut switch) = start(lab, test, &in_engine("drain_timeout = \"10m\"")) else {
            return;
        };
        let mut open = connect(lab);
        let (mut watching, first) = begun(lab, &["drain", "-c", "FILE"]);
        assert!(
            first.starts_with("e2e: 1 connection left, reset in "),
            "{first}"
        );
        assert!(is_draining(&switch));

        // Another one does not hurry it, as a second signal would.
        let (code, _, errors) = fairlead(lab, &["drain", "--instance", "e2e", "--timeout", "0.5"]);
        assert_eq!(code, Some(1));
        assert!(
            errors.contains("1 connection left; the drain continues"),
            "{errors}"
        );
        let (mut left, _) = begun(lab, &["drain", "--instance", "e2e"]);
        left.signal(Signal::Interrupt).unwrap();
        let (code, text) = rest(&mut left);
        assert_eq!(code, Some(130), "{text}");
        assert!(
            text.contains("1 connection left; the drain continues"),
            "{text}"
        );
        let (code, _, errors) = fairlead(lab, &["reload", "--instance", "e2e"]);
        assert!(
            code == Some(1) && errors.contains("the switch is stopping"),
            "{errors}"
        );
        assert_eq!(open.ask("GET", "a.example", "/").unwrap().status, 200);

        drop(open);
        let (code, text) = rest(&mut watching);
        assert_eq!(code, Some(0), "{text}");
        assert!(
            text.contains("e2e has exited; no connection was reset"),
            "{text}"
        );
        assert_eq!(switch.wait_for_end(), Some(0));
        let (code, _, errors) = fairlead(lab, &["drain", "--instance", "e2e"]);
        assert!(
            code == Some(1) && errors.contains("instance \"e2e\" is not running"),
            "{errors}"
        );
    });
}

#[test]
fn a_drain_whose_time_is_over_tells_who_was_cut_off() {
    in_a_lab(|lab| {
        let _web = web_on(lab, &[1]);
        let test = "orders::a_drain_whose_time_is_over_tells_who_was_cut_off";
        let Some(mut switch) = start(lab, test, &in_engine("drain_timeout = \"1s\"")) else {
            return;
        };
        let _open = connect(lab);
        let (code, out, _) = fairlead(lab, &["drain", "--instance", "e2e"]);
        assert_eq!(code, Some(0), "{out}");
        assert!(out.contains("e2e has exited; 1 connection reset"), "{out}");
        assert_eq!(switch.wait_for_end(), Some(0));
    });
}

#[test]
fn a_drain_is_one_also_where_connections_would_be_kept() {
    on_the_fast_path(|lab| {
        let _web = web_on(lab, &[1]);
        let lines = "drain_timeout = \"10m\"\non_stop = \"keep\"";
        let configuration = in_kernel(&served_by(1)).replace("drain_timeout = \"1s\"", lines);
        let test = "orders::a_drain_is_one_also_where_connections_would_be_kept";
        let Some(mut switch) = start(lab, test, &configuration) else {
            return;
        };
        let open = connect(lab);
        let (mut watching, first) = begun(lab, &["drain", "--instance", "e2e"]);
        assert!(first.contains("1 connection left"), "{first}");
        assert!(switch.is_alive() && is_draining(&switch));
        drop(open);
        let (code, text) = rest(&mut watching);
        assert_eq!(code, Some(0), "{text}");
        assert!(!switch.is_alive(), "a start would be refused still");
        assert_eq!(switch.wait_for_end(), Some(0));
    });
}

#[test]
fn an_order_that_nobody_waits_for_any_more_is_not_done() {
    in_a_lab(|lab| {
        let _web = web_on(lab, &[1]);
        let test = "orders::an_order_that_nobody_waits_for_any_more_is_not_done";
        let Some(mut switch) = start(lab, test, &in_engine("drain_timeout = \"1s\"")) else {
            return;
        };
        switch.signal(Signal::Stop);
        let begun = Instant::now();
        for order in ["drain", "reload"] {
            let (code, _, errors) =
                fairlead(lab, &[order, "--instance", "e2e", "--timeout", "0.3"]);
            assert_eq!(code, Some(1));
            assert!(
                errors.contains("timed out: the process is suspended"),
                "{errors}"
            );
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{begun:?}");
        switch.signal(Signal::Continue);
        let _open = connect(lab);
        assert!(switch.is_alive() && !is_draining(&switch));
    });
}

#[test]
fn who_may_not_give_orders_is_told_so() {
    in_a_lab(|lab| {
        let test = "orders::who_may_not_give_orders_is_told_so";
        let Some(mut switch) = start(lab, test, &in_engine("drain_timeout = \"1s\"")) else {
            return;
        };
        // Where anybody may run it.
        let copy = lab.folder().join("fairlead-copy");
        copy_program(binary(), &copy);
        std::fs::set_permissions(lab.folder(), Permissions::from_mode(0o755)).unwrap();
        let mut asks = lab.switch.command("setpriv");
        asks.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        let output = asks
            .arg(&copy)
            .args(["drain", "--instance", "e2e"])
            .output();
        let output = output.expect("running setpriv, of util-linux");
        if output.status.code() == Some(127) || output.status.code() == Some(126) {
            return skip(test, "this user cannot be another one");
        }
        let (code, _, errors) = told(&output);
        assert_eq!(code, Some(1), "{errors}");
        assert!(
            errors.contains("only root and the user running the instance"),
            "{errors}"
        );
        assert!(switch.is_alive() && !is_draining(&switch));
    });
}

#[test]
fn the_engine_alone_says_why_it_does_not_reload() {
    in_a_lab(|lab| {
        let _web = web_on(lab, &[1]);
        let test = "orders::the_engine_alone_says_why_it_does_not_reload";
        let Some(mut switch) = start(lab, test, &in_engine("drain_timeout = \"1s\"")) else {
            return;
        };
        let until = Instant::now() + Duration::from_secs(10);
        let (code, _, errors) = fairlead(lab, &["reload", "--instance", "e2e"]);
        assert!(Instant::now() < until, "it waited for a refusal");
        assert_eq!(code, Some(1));
        assert!(errors.contains("held by this process"), "{errors}");
        assert!(switch.is_alive());
        assert_eq!(switch.count("reloads_refused"), 1);
    });
}
