//! Pages of the operator's in the answers that the switch gives itself.

use std::path::Path;

use crate::harness::{Family, Lab, Switch, prefix_in, web_service, with_and_without_the_fast_path};

/// The largest page.
const PAGE_BYTES: usize = 16 << 10;

/// What curl gets: its exit status, the HTTP status, the type, and the body.
fn fetched(lab: &Lab, url: &str, more: &[&str]) -> (Option<i32>, String, Vec<u8>) {
    let body = lab.folder().join("body");
    drop(std::fs::remove_file(&body));
    let mut command = lab.client.command("curl");
    command.args(["-gs", "--max-time", "10"]).args(more);
    command.args(["-w", "%{http_code} %{content_type} %header{retry-after}"]);
    command.arg("-o").arg(&body).arg(url);
    let output = command.output().expect("running curl");
    let said = String::from_utf8(output.stdout).expect("text");
    let body = std::fs::read(&body).unwrap_or_default();
    (output.status.code(), said, body)
}

fn page(lab: &Lab, name: &str, fill: u8) -> (String, Vec<u8>) {
    let bytes: Vec<u8> = (0..PAGE_BYTES).map(|at| at as u8 ^ fill).collect();
    let path = lab.file(name, &bytes);
    (path.display().to_string(), bytes)
}

fn checked(lab: &Lab, page: &Path) -> String {
    let extra = format!("unavailable_page = \"{}\"", page.display());
    let services = web_service("snat", &extra, "", |family| vec![family.server_at(1, 8080)]);
    let file = lab.file("pages.toml", prefix_in("engine", "") + &services);
    let mut command = std::process::Command::new(crate::harness::binary());
    command.args(["check", "--config"]).arg(&file);
    let output = command.output().expect("running fairlead check");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn clients_that_are_turned_away_get_the_pages_of_the_service() {
    with_and_without_the_fast_path(|lab, mode| {
        let (unavailable, sorry) = page(lab, "sorry.html", 0x55);
        let (unmatched, unknown) = page(lab, "unknown.txt", 0xaa);
        let extra =
            format!("unavailable_page = \"{unavailable}\"\nunmatched_page = \"{unmatched}\"");
        // Nobody listens at the server's port.
        let services = web_service("snat", &extra, "", |family| vec![family.server_at(1, 8080)]);
        let route = "[[service.route]]\n";
        let services = services.replace(route, &format!("{route}path_prefix = \"/app\"\n"));
        let switch = Switch::start_with(lab, &format!("{}{services}", prefix_in(mode, "")));
        for family in Family::BOTH {
            let base = format!("http://{}", family.virtual_at(80));
            for _ in 0..3 {
                let (code, said, body) = fetched(lab, &format!("{base}/app/a"), &[]);
                assert_eq!((code, &*said), (Some(0), "503 text/html; charset=utf-8 5"));
                assert!(body == sorry, "{mode}: {} bytes", body.len());
                let (code, said, body) = fetched(lab, &format!("{base}/other"), &[]);
                assert_eq!((code, &*said), (Some(0), "404 text/plain; charset=utf-8 "));
                assert!(body == unknown, "{mode}: {} bytes", body.len());
            }
            let (code, said, _) = fetched(lab, &format!("{base}/other"), &["--head"]);
            assert_eq!((code, &*said), (Some(0), "404 text/plain; charset=utf-8 "));
        }
        switch.wait_for_count("setups", 0);
        assert_eq!(switch.drops("answer_unacked"), 0);
    });
}

#[test]
fn pages_that_cannot_be_used_are_errors_of_check() {
    crate::harness::in_a_lab(|lab| {
        let long = lab.file("long.html", vec![b'a'; PAGE_BYTES + 1]);
        for (path, why) in [
            (lab.folder().join("missing.html"), "No such file"),
            (long, "it is longer than 16 KiB"),
            ("/dev/zero".into(), "it is not a regular file"),
        ] {
            let said = checked(lab, &path);
            assert!(said.contains(why), "{said}");
        }
    });
}
