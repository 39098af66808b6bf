//! Human-readable findings.

use super::{Findings, State};
use crate::screen::{BOLD, DIM, GREEN, Paint, RED, YELLOW, plural};

/// All findings, successful checks in one line each.
pub(super) fn render(findings: &Findings, paint: Paint) -> String {
    let mut out = String::new();
    let mut about = "";
    for check in &findings.checks {
        if check.about != about {
            about = &check.about;
            let gap = if out.is_empty() { "" } else { "\n" };
            out += &format!("{gap}{}\n", paint.text(BOLD, about));
        }
        let mark = mark(check.state, paint);
        let what = crate::status::plain_line(&check.what);
        let what = match check.state {
            State::Ok | State::Warning => what,
            State::Unseen => paint.text(DIM, &what),
            State::Problem => paint.text(RED, &what),
        };
        out += &format!("  {mark}  {what}\n");
        if let Some(advice) = &check.advice
            && check.state != State::Ok
        {
            out += &format!("           {}\n", crate::status::plain_line(advice));
        }
    }
    out += &format!("\n{}\n", verdict(findings, paint));
    out
}

/// A mark of seven columns, so that the texts line up.
fn mark(state: State, paint: Paint) -> String {
    match state {
        State::Ok => paint.text(GREEN, "     ok"),
        State::Unseen => paint.text(DIM, " unseen"),
        State::Warning => paint.text(YELLOW, "warning"),
        State::Problem => paint.text(RED, "problem"),
    }
}

fn verdict(findings: &Findings, paint: Paint) -> String {
    let count = |state| {
        findings
            .checks
            .iter()
            .filter(|check| check.state == state)
            .count()
    };
    let mut parts = Vec::new();
    for (state, word) in [(State::Problem, "problem"), (State::Warning, "warning")] {
        if count(state) > 0 {
            parts.push(plural(count(state), word));
        }
    }
    if count(State::Unseen) > 0 {
        parts.push(format!("{} not checked", count(State::Unseen)));
    }
    let counted = match parts.is_empty() {
        true => "no findings".to_owned(),
        false => parts.join(", "),
    };
    let can = match findings.can_serve {
        true => paint.text(GREEN, "fairlead serve can run here"),
        false => paint.text(RED, "fairlead serve cannot run here"),
    };
    format!("{can}, mode {}: {counted}", findings.expected_mode)
}

#[cfg(test)]
mod tests {
    use super::super::Check;
    use super::*;

    fn findings() -> Findings {
        Findings {
            version: "0.1.0",
            can_serve: false,
            expected_mode: "engine".into(),
            why_not_better: String::new(),
            checks: vec![
                Check::ok("machine", "kernel", "Linux 6.18").advise("never shown"),
                Check::unseen("machine", "jit", "not shown here"),
                Check::problem("machine", "tun", "no /dev/net/tun").advise("`modprobe tun`"),
                Check::warning("interface eth0", "queues", "1 for 2").advise("`ethtool -L`"),
            ],
        }
    }

    #[test]
    fn each_finding_has_its_line_and_what_to_do_below_it() {
        let expected = "\
machine
       ok  Linux 6.18
   unseen  not shown here
  problem  no /dev/net/tun
           `modprobe tun`

interface eth0
  warning  1 for 2
           `ethtool -L`

fairlead serve cannot run here, mode engine: 1 problem, 1 warning, 1 not checked
";
        assert_eq!(render(&findings(), Paint(false)), expected);
        assert!(render(&findings(), Paint(true)).contains("\x1b[31m"));
    }
}
