//! The loader against files that nobody wrote on purpose: it neither panics nor takes long, and
//! what it says points into the file.

use std::time::{Duration, Instant};

use fairlead::config::{FINDINGS_MAX, LoadError, Report, load, parse};
use proptest::prelude::*;

const EDGE: &str = include_str!("../../../../examples/edge.toml");
const TLS: &str = include_str!("../../../../examples/tls-sni.toml");
const TRANSPARENT: &str = include_str!("../../../../examples/transparent.toml");

/// Every finding lies within the file, and none is said too often.
fn is_within(report: &Report, text: &str) -> bool {
    let lines = text.lines().count() + 1;
    report.diagnostics().len() <= FINDINGS_MAX
        && report.diagnostics().iter().all(|one| {
            let (line, column) = report.position(one);
            let width = text
                .lines()
                .nth(line - 1)
                .map_or(0, |line| line.chars().count());
            line <= lines && column <= width + 2 && !one.message().is_empty()
        })
}

fn check(text: &str) {
    match parse(text, "hostile.toml") {
        Ok(loaded) => {
            assert!(is_within(&loaded.warnings, text), "{}", loaded.warnings);
            assert_eq!(loaded.warnings.errors(), 0);
        }
        Err(report) => {
            assert!(report.errors() > 0);
            assert!(is_within(&report, text), "{report}\nof\n{text}");
            assert!(!report.render(true).is_empty());
        }
    }
}

fn sample() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just(EDGE), Just(TLS), Just(TRANSPARENT)]
}

fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len()))
        .rev()
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(0)
}

/// Pieces that are likely to hurt.
fn splinter() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("[[".to_owned()),
        Just("]]\n".to_owned()),
        Just("{".to_owned()),
        Just("\"".to_owned()),
        Just("'''".to_owned()),
        Just("= = =".to_owned()),
        Just("\u{feff}".to_owned()),
        Just("\0".to_owned()),
        Just("\r".to_owned()),
        Just("99999999999999999999999999".to_owned()),
        Just("-1".to_owned()),
        Just("1e400".to_owned()),
        Just("1979-05-27".to_owned()),
        Just("[[service]]\n".to_owned()),
        Just("service = 7\n".to_owned()),
        Just("\"\\u0000\"".to_owned()),
        Just("\u{1f980}".to_owned()),
        "\\PC{0,12}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_text_is_answered(text in "\\PC{0,400}") {
        check(&text);
    }

    #[test]
    fn a_damaged_file_is_answered(
        text in sample(),
        damage in prop::collection::vec((any::<u16>(), 0usize..40, splinter()), 1..6),
    ) {
        let mut text = text.to_owned();
        for (at, len, piece) in damage {
            let from = floor(&text, usize::from(at) % (text.len() + 1));
            let to = floor(&text, from + len).max(from);
            text.replace_range(from..to, &piece);
        }
        check(&text);
    }

    #[test]
    fn a_file_with_lines_moved_and_lost_is_answered(
        text in sample(),
        order in prop::collection::vec(any::<prop::sample::Index>(), 1..60),
    ) {
        let lines: Vec<&str> = text.lines().collect();
        let shuffled: Vec<&str> = order.iter().map(|index| lines[index.index(lines.len())]).collect();
        check(&shuffled.join("\n"));
    }
}

/// Loads a text and fails if that takes long.
fn quickly(text: &str) -> Result<fairlead::config::Loaded, Report> {
    let begun = Instant::now();
    let answer = parse(text, "large.toml");
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    answer
}

#[test]
fn nesting_ends_somewhere() {
    for (open, close) in [("[", "]"), ("{a=", "}")] {
        let text = format!("a = {}{}", open.repeat(50_000), close.repeat(50_000));
        assert!(quickly(&text).is_err());
    }
    assert!(quickly(&format!("[{}]", "a.".repeat(50_000) + "a")).is_err());
}

#[test]
fn thousands_of_mistakes_are_counted_not_listed() {
    let text =
        "x = 1\n[[service]]\nbogus = 1\n".to_owned() + &"[[service]]\nbogus = 1\n".repeat(200);
    let report = quickly(&text).unwrap_err();
    assert_eq!(report.diagnostics().len(), FINDINGS_MAX);
    assert!(report.errors() > 800, "{}", report.errors());
    assert!(report.to_string().contains("more of the same file"));
}

#[test]
fn an_error_is_shown_however_many_warnings_there_are() {
    let service = |port: u32| {
        format!(
            "[[service]]\nname = \"s{port}\"\nlisten = \"10.1.0.3:{port}\"\nprotocol = \"tcp\"\n\
             source = \"transparent\"\nunmatched = 404\nroute = [{{ pool = \"p\" }}]\n"
        )
    };
    let services: String = (1..=130).map(service).collect();
    let pool = "[[pool]]\nname = \"p\"\nserver = [{ address = \"10.2.0.1:80\" }]\n";
    let loaded = quickly(&format!("{services}{pool}")).unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(
        loaded.warnings.warnings(),
        130,
        "and those that are not kept"
    );
    let report = quickly(&format!("{services}{pool}connect_timeout = \"5x\"\n")).unwrap_err();
    assert_eq!((report.errors(), report.warnings()), (1, 130));
    let told = report.to_string();
    assert!(told.contains("\"5x\" is not a duration"), "{told}");
    assert!(told.ends_with("… and 31 more of the same file\n"), "{told}");
}

#[test]
fn the_largest_tables_load_in_time() {
    let mut text = "[[service]]\nname = \"a\"\nlisten = \"10.1.0.3:80\"\nprotocol = \"http\"\n\
                    source = \"transparent\"\n"
        .to_owned();
    for route in 0..1_024 {
        let hosts: Vec<_> = (0..24)
            .map(|host| format!("\"h{host}.r{route}.example\""))
            .collect();
        text += &format!(
            "[[service.route]]\nhost = [{}]\npool = \"p\"\n",
            hosts.join(",")
        );
    }
    text += "[[pool]]\nname = \"p\"\nserver = [";
    for server in 0..1_024 {
        text += &format!(
            "{{address=\"10.2.{}.{}:80\"}},",
            server / 250,
            server % 250 + 1
        );
    }
    text += "]\n";
    assert!(text.len() < 1 << 20);
    let loaded = quickly(&text).unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(loaded.settings.switch.services[0].routes.len(), 1_024);
    let more = text.replace("[[pool]]", "[[service.route]]\npool = \"p\"\n[[pool]]");
    let report = quickly(&more).unwrap_err();
    assert!(
        report
            .to_string()
            .contains("1025 of `route`, more than the 1024 allowed")
    );
}

#[test]
fn regular_expressions_are_limited_in_size_and_number() {
    let service = "[[service]]\nname = \"a\"\nlisten = \"10.1.0.3:80\"\nprotocol = \"http\"\n\
                   source = \"transparent\"\n[[service.route]]\npool = \"p\"\npath_regex = [";
    let pool = "]\n[[pool]]\nname = \"p\"\nserver = [{ address = \"10.2.0.1:80\" }]\n";
    let with = |one: &str, count| format!("{service}{}{pool}", format!("'{one}',").repeat(count));
    assert!(quickly(&with("^/[a-z]+$", 256)).is_ok());
    let report = quickly(&with("^/[a-z]+$", 257)).unwrap_err();
    assert!(
        report
            .to_string()
            .contains("more than 256 regular expressions"),
        "{report}"
    );
    for bomb in [
        "(a{1000}){1000}",
        "\\w{60000}",
        "((((((((((a*)*)*)*)*)*)*)*)*)*){999}",
    ] {
        let _ = quickly(&with(bomb, 20));
    }
    let nested = format!("{}a{}", "(".repeat(500), ")".repeat(500));
    assert!(quickly(&with(&nested, 1)).is_err());
}

#[test]
fn files_that_are_no_text_are_answered() {
    let folder = std::env::temp_dir().join(format!("fairlead-hostile-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("a.toml");

    std::fs::write(&path, b"[instance]\nname = \"a\xff\"\n").unwrap();
    let Err(LoadError::Broken(report)) = load(&path) else {
        panic!("it is not UTF-8")
    };
    assert_eq!(
        report.position(&report.diagnostics()[0]),
        (2, 10),
        "{report}"
    );

    std::fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
    assert!(matches!(load(&path), Err(LoadError::TooLarge { .. })));
    let missing = load(&folder.join("b.toml")).unwrap_err();
    assert!(
        missing.to_string().contains("b.toml: No such file"),
        "{missing}"
    );
    assert!(matches!(load(&folder), Err(LoadError::Unreadable { .. })));
    std::fs::remove_dir_all(&folder).unwrap();
}
