//! Compares the client's answer with the switch's log and the expected result.

use std::net::IpAddr;

use super::client::Answer;
use super::journal::Entry;
use super::scene::{Expect, Request, condition};

/// Result of a request, as shown in the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The answer: status and size.
    pub answer: String,
    /// Who answered, by its own account.
    pub by: String,
    /// Why, by the switch's record.
    pub why: String,
    /// What disagrees; empty when all is well.
    pub faults: Vec<String>,
}

/// Compares. The answering server's own account (`X-Server`) must be the server that the switch
/// recorded as decided; a refusal must be recorded with the status that the client got.
pub(super) fn judge(request: &Request, answers: &[Answer], entries: &[Entry]) -> Row {
    let mut faults = Vec::new();
    let wanted = 1 + usize::from(request.then.is_some());
    if answers.len() != wanted {
        faults.push(format!("{} answers instead of {wanted}", answers.len()));
    }
    let decided = entries
        .iter()
        .rev()
        .find(|entry| matches!(entry, Entry::Decided { .. }));
    let refused = entries
        .iter()
        .rev()
        .find(|entry| matches!(entry, Entry::Refused { .. }));
    for answer in answers {
        match request.expect {
            Expect::Pool(pool) => {
                // Simulated TLS servers have no keys, and so no HTTP status.
                let status = if request.tls && answer.simulated {
                    0
                } else {
                    200
                };
                faults.extend(faults_of_answer(answer, decided, pool, status));
            }
            Expect::Status(status) => {
                faults.extend(faults_of_refusal(answer, refused, Some(status)));
            }
            Expect::Alert => faults.extend(faults_of_refusal(answer, refused, None)),
        }
    }
    if let (
        Expect::Pool(_),
        Some(Entry::Closed {
            source, bytes_out, ..
        }),
    ) = (
        request.expect,
        entries
            .iter()
            .rev()
            .find(|entry| matches!(entry, Entry::Closed { .. })),
    ) {
        if let Some(saw) = answers
            .iter()
            .filter_map(|answer| answer.saw)
            .find(|saw| saw != source)
        {
            faults.push(format!(
                "the server saw {saw}, the switch recorded {source}"
            ));
        }
        let body: u64 = answers.iter().map(|answer| answer.body_bytes).sum();
        if *bytes_out < body {
            faults.push(format!(
                "{body} bytes of body in {bytes_out} bytes of stream"
            ));
        }
    }
    Row {
        answer: show_answers(answers),
        by: show_servers(answers),
        why: show_why(entries),
        faults,
    }
}

fn faults_of_answer(
    answer: &Answer,
    decided: Option<&Entry>,
    pool: &str,
    status: u16,
) -> Vec<String> {
    let mut faults = Vec::new();
    if let Some(error) = &answer.error {
        faults.push(error.clone());
    }
    if answer.status != status {
        faults.push(format!("status {} instead of {status}", answer.status));
    }
    let Some(Entry::Decided {
        server,
        pool: recorded,
        ..
    }) = decided
    else {
        faults.push("the switch recorded no decision".into());
        return faults;
    };
    if recorded != pool {
        faults.push(format!(
            "the switch chose pool {recorded} instead of {pool}"
        ));
    }
    match &answer.server {
        None => faults.push("no server named itself".into()),
        Some((name, at)) => {
            if at != server {
                faults.push(format!("{at} answered, but the switch recorded {server}"));
            }
            if !name.starts_with(&format!("{pool}-")) {
                faults.push(format!("{name} answered, which is not of pool {pool}"));
            }
        }
    }
    faults
}

fn faults_of_refusal(answer: &Answer, refused: Option<&Entry>, status: Option<u16>) -> Vec<String> {
    let mut faults = Vec::new();
    if let Some((name, at)) = &answer.server {
        faults.push(format!(
            "{name} at {at} answered a request that should have been refused"
        ));
    }
    if answer.status != status.unwrap_or(0) {
        let wanted = status.map_or("no HTTP answer".into(), |status| format!("status {status}"));
        faults.push(format!("status {} instead of {wanted}", answer.status));
    }
    if status.is_none() && answer.error.is_none() {
        faults.push("the client did not complain".into());
    }
    if status == Some(503) && answer.retry_after.is_none() && !answer.simulated {
        faults.push("503 without Retry-After".into());
    }
    match refused {
        Some(Entry::Refused {
            status: recorded, ..
        }) => {
            if *recorded != status.map(u64::from) {
                faults.push(format!("the switch recorded status {recorded:?}"));
            }
        }
        _ => faults.push("the switch recorded no refusal".into()),
    }
    faults
}

fn show_answers(answers: &[Answer]) -> String {
    let statuses: Vec<String> = answers
        .iter()
        .map(|answer| answer.status.to_string())
        .collect();
    let body: u64 = answers.iter().map(|answer| answer.body_bytes).sum();
    match answers
        .iter()
        .find_map(|answer| answer.retry_after.as_ref())
    {
        Some(after) => format!("{}, retry in {after} s", statuses.join("+")),
        None if answers.iter().all(|answer| answer.status == 0) => {
            let served = answers.iter().any(|answer| answer.server.is_some());
            if served { "answered" } else { "TLS alert" }.into()
        }
        None => format!("{}, {}", statuses.join("+"), show_bytes(body)),
    }
}

pub(super) fn show_servers(answers: &[Answer]) -> String {
    let mut names: Vec<String> = answers
        .iter()
        .map(|answer| match &answer.server {
            Some((name, at)) => format!("{name} :{}", at.port()),
            None => "the switch".into(),
        })
        .collect();
    names.dedup();
    names.join(", ")
}

/// What the switch recorded, in one line.
pub(super) fn show_why(entries: &[Entry]) -> String {
    let mut parts = Vec::new();
    for entry in entries {
        match entry {
            Entry::Decided {
                service,
                route,
                pool,
                server,
                attempt,
                ..
            } => {
                if *attempt > 0 {
                    parts.push(format!("retry {attempt} at {server}"));
                    continue;
                }
                let index = route
                    .strip_prefix('#')
                    .and_then(|digits| digits.parse::<usize>().ok());
                let words = index
                    .and_then(|number| condition(service, number.checked_sub(1)?))
                    .unwrap_or_else(|| route.clone());
                parts.push(format!("{service} {route} {words} -> {pool} {server}"));
            }
            Entry::Refused {
                service, reason, ..
            } => {
                parts.push(format!("{service} refused: {}", reason.replace('_', " ")));
            }
            Entry::Closed { .. } => {}
        }
    }
    if parts.is_empty() {
        "(not logged)".into()
    } else {
        parts.join("; ")
    }
}

/// The addresses that servers saw as the client's, each once.
pub(super) fn seen_as(answers: &[Answer]) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = answers
        .iter()
        .filter_map(|answer| answer.saw)
        .map(|saw| saw.ip())
        .collect();
    all.dedup();
    all
}

/// A number of bytes for people.
pub(super) fn show_bytes(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{} KiB", bytes >> 10),
        10_000_000..10_000_000_000 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::scene::SECTIONS;

    fn decided(server: &str) -> Entry {
        Entry::Decided {
            client: "10.1.0.10:4000".parse().unwrap(),
            service: "web".into(),
            route: "#1".into(),
            pool: "images".into(),
            server: server.parse().unwrap(),
            attempt: 0,
            subject: "GET 10.1.0.3/cat.jpg".into(),
        }
    }

    fn answer(name: &str, at: &str) -> Answer {
        Answer {
            status: 200,
            body_bytes: 30,
            server: Some((name.into(), at.parse().unwrap())),
            ..Answer::default()
        }
    }

    fn refused(status: Option<u64>) -> Entry {
        Entry::Refused {
            client: "10.1.0.10:4000".parse().unwrap(),
            service: "web".into(),
            reason: "http_malformed".into(),
            status,
            subject: String::new(),
        }
    }

    #[test]
    fn an_answer_by_the_logged_server_passes() {
        let request = &SECTIONS[0].requests[0];
        let entries = [decided("10.2.0.1:8081")];
        let row = judge(request, &[answer("images-1", "10.2.0.1:8081")], &entries);
        assert_eq!(row.faults, [""; 0]);
        assert_eq!(row.by, "images-1 :8081");
        assert_eq!(
            row.why,
            "web #1 path_suffix = [.jpg, .png] -> images 10.2.0.1:8081"
        );
    }

    #[test]
    fn an_answer_by_another_server_fails() {
        let request = &SECTIONS[0].requests[0];
        let row = judge(
            request,
            &[answer("images-2", "10.2.0.1:8082")],
            &[decided("10.2.0.1:8081")],
        );
        assert_eq!(
            row.faults,
            ["10.2.0.1:8082 answered, but the switch recorded 10.2.0.1:8081"]
        );
        let row = judge(request, &[answer("images-1", "10.2.0.1:8081")], &[]);
        assert_eq!(row.faults, ["the switch recorded no decision"]);
        let row = judge(
            request,
            &[answer("pages-1", "10.2.0.1:8081")],
            &[decided("10.2.0.1:8081")],
        );
        assert_eq!(
            row.faults,
            ["pages-1 answered, which is not of pool images"]
        );
    }

    #[test]
    fn a_refusal_must_be_logged_with_the_status_received() {
        let request = &SECTIONS[2].requests[0];
        let got = Answer {
            status: 400,
            ..Answer::default()
        };
        assert!(
            judge(request, std::slice::from_ref(&got), &[refused(Some(400))])
                .faults
                .is_empty()
        );
        assert_eq!(
            judge(request, std::slice::from_ref(&got), &[refused(Some(404))])
                .faults
                .len(),
            1
        );
        assert_eq!(
            judge(request, &[got], &[]).faults,
            ["the switch recorded no refusal"]
        );
        let served = answer("pages-1", "10.2.0.1:8084");
        assert_eq!(
            judge(request, &[served], &[refused(Some(400))])
                .faults
                .len(),
            2
        );
    }

    #[test]
    fn sizes_are_told_for_people() {
        assert_eq!(show_bytes(9_999), "9999 B");
        assert_eq!(show_bytes(16 << 20), "16 MiB");
    }
}
