//! What asks for the metrics: the alerts for Prometheus and the dashboard for Grafana, against the
//! metrics that there are.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_base::DropReason;
use serde_json::Value;

use crate::metrics::families;

const ALERTS: &str = include_str!("../../../../examples/alerts.yml");
const DASHBOARD: &str = include_str!("../../../../examples/grafana.json");

/// The expressions of the alerts, each on one line.
fn expressions() -> Vec<String> {
    let mut expressions = Vec::new();
    let mut lines = ALERTS.lines().peekable();
    while let Some(line) = lines.next() {
        let Some((before, first)) = line.split_once("expr: ") else {
            continue;
        };
        let mut text = first.trim_start_matches(">-").to_owned();
        let is_deeper = |line: &&str| line.find(|c| c != ' ') > Some(before.len());
        while let Some(more) = lines.next_if(is_deeper) {
            text = text + " " + more.trim();
        }
        expressions.push(text);
    }
    expressions
}

type Labels = BTreeSet<String>;

/// An expression of PromQL as far as alerts and dashboard use the language, read from left to
/// right: which labels its series have, and that both sides of each operator can match.
struct Expression<'a> {
    words: std::iter::Peekable<std::vec::IntoIter<String>>,
    of_metrics: &'a BTreeMap<String, Labels>,
}

/// Binary operators, those that bind loosest first.
const OPERATORS: [&[&str]; 4] = [
    &["and", "or", "unless"],
    &["==", "!=", ">", "<", ">=", "<="],
    &["+", "-"],
    &["*", "/", "%"],
];

/// Without `by` all labels go.
const AGGREGATIONS: [&str; 4] = ["sum", "min", "max", "count"];

impl<'a> Expression<'a> {
    fn new(text: &str, of_metrics: &'a BTreeMap<String, Labels>) -> Self {
        let mut words: Vec<String> = Vec::new();
        let (mut quoted, mut before) = (false, ' ');
        for letter in text.chars() {
            quoted ^= letter == '"';
            let kind = match letter {
                _ if quoted || letter == '"' || letter == '.' || letter == '_' => 'w',
                _ if letter.is_alphanumeric() => 'w',
                '=' | '!' | '<' | '>' | '~' => '=',
                ' ' => ' ',
                _ => '(',
            };
            match words.last_mut() {
                Some(last) if kind == before && "w=".contains(kind) => last.push(letter),
                _ if kind != ' ' => words.push(letter.into()),
                _ => {}
            }
            before = kind;
        }
        Self {
            words: words.into_iter().peekable(),
            of_metrics,
        }
    }

    fn takes(&mut self, word: &str) -> bool {
        self.words.next_if(|next| next == word).is_some()
    }

    /// Names in brackets.
    fn names(&mut self) -> Labels {
        assert!(self.takes("("));
        let inside = std::iter::from_fn(|| self.words.next_if(|word| word != ")"));
        let names = inside.filter(|word| word != ",").collect();
        assert!(self.takes(")"));
        names
    }

    /// The labels of this and what binds tighter; `None` of a number.
    fn binary(&mut self, level: usize) -> Result<Option<Labels>, String> {
        let Some(operators) = OPERATORS.get(level) else {
            return self.operand();
        };
        let mut left = self.binary(level + 1)?;
        let is_one = |word: &String| operators.contains(&word.as_str());
        while let Some(operator) = self.words.next_if(is_one) {
            let on = self.takes("on").then(|| self.names());
            let ignored = match on.is_none() && self.takes("ignoring") {
                true => self.names(),
                false => Labels::new(),
            };
            let right = self.binary(level + 1)?;
            let (Some(one), Some(other)) = (&left, &right) else {
                left = left.or(right);
                continue;
            };
            let matched = |labels: &Labels| match &on {
                Some(on) => on & labels,
                None => labels - &ignored,
            };
            let (ours, theirs) = (matched(one), matched(other));
            if ours != theirs || on.as_ref().is_some_and(|on| *on != ours) {
                return Err(format!("{ours:?} {operator} {theirs:?}"));
            }
            // Arithmetic and comparisons leave what was matched, the others the left side.
            left = Some(if level == 0 { one.clone() } else { ours });
        }
        Ok(left)
    }

    fn operand(&mut self) -> Result<Option<Labels>, String> {
        if self.takes("(") {
            let inside = self.binary(0);
            assert!(self.takes(")"));
            return inside;
        }
        let word = self.words.next().expect("an operand");
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(None);
        }
        if self.takes("by") {
            let kept = self.names();
            let labels = self.operand()?;
            return match labels {
                Some(labels) if kept.is_subset(&labels) => Ok(Some(kept)),
                labels => Err(format!("{word} by {kept:?} of {labels:?}")),
            };
        }
        if word == "histogram_quantile" {
            assert!(self.takes("(") && self.words.next().is_some() && self.takes(","));
            let labels = self.binary(0)?;
            assert!(self.takes(")"));
            let mut labels = labels.unwrap_or_default();
            return match labels.remove("le") {
                true => Ok(Some(labels)),
                false => Err(format!("{word} without buckets: {labels:?}")),
            };
        }
        if AGGREGATIONS.contains(&&*word) {
            return self.operand().map(|labels| labels.map(|_| Labels::new()));
        }
        let Some(labels) = self.of_metrics.get(&word) else {
            assert_eq!(self.words.peek().map(|word| &**word), Some("("), "{word}");
            return self.operand(); // what a function is applied to
        };
        for (open, close) in [("{", "}"), ("[", "]")] {
            if self.takes(open) {
                while self.words.next().expect("its end") != close {}
            }
        }
        Ok(Some(labels.clone()))
    }
}

/// The labels of every metric that there is, under the names that it is asked for by.
fn of_metrics() -> BTreeMap<String, Labels> {
    let target = || ["job", "instance"].map(str::to_owned).into_iter();
    let mut all = BTreeMap::from([("up".to_owned(), target().collect())]);
    for family in families(true, true) {
        let own = family.labels.into_iter().map(|(label, _)| label);
        let labels: Labels = own.chain(target()).collect();
        if family.kind == "histogram" {
            let whole: Labels = labels
                .iter()
                .filter(|label| *label != "le")
                .cloned()
                .collect();
            all.insert(format!("{}_sum", family.name), whole.clone());
            all.insert(format!("{}_count", family.name), whole);
            all.insert(format!("{}_bucket", family.name), labels);
        } else {
            all.insert(family.name, labels);
        }
    }
    all
}

/// The labels of what it gives.
fn labels_of(text: &str, of_metrics: &BTreeMap<String, Labels>) -> Result<Labels, String> {
    let mut expression = Expression::new(text, of_metrics);
    let labels = expression.binary(0)?;
    assert_eq!(expression.words.next(), None, "{text}");
    labels.ok_or_else(|| "a number".to_owned())
}

/// Series of different labels never match, and an alert of theirs never comes.
#[test]
fn both_sides_of_each_operator_in_the_alerts_can_match() {
    let of_metrics = of_metrics();
    let matches = |text: &str| labels_of(text, &of_metrics);
    let all = expressions();
    assert_eq!(all.len(), ALERTS.matches("alert:").count());
    for text in all {
        assert!(matches(&text).is_ok(), "{text}: {:?}", matches(&text));
    }
    for wrong in [
        "fairlead_engine_packets_total > 0.3 * rate(fairlead_packets_total{direction=\"rx\"}[5m])",
        "fairlead_live / fairlead_server_active > 1",
        "fairlead_live and on (job, pool) fairlead_records",
        "sum by (pool) (fairlead_live) > 0",
        "histogram_quantile(0.5, rate(fairlead_service_connection_seconds_sum[5m]))",
    ] {
        assert!(matches(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn the_alerts_are_about_metrics_and_reasons_that_there_are() {
    let whole = families(true, true);
    let names: BTreeSet<&str> = whole.iter().map(|family| &*family.name).collect();
    let words = ALERTS.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let used: BTreeSet<&str> = words.filter(|word| word.starts_with("fairlead_")).collect();
    assert!(used.len() >= 10, "{used:?}");
    let unknown: Vec<_> = used.difference(&names).collect();
    assert!(unknown.is_empty(), "no metrics: {unknown:?}");
    let reasons: BTreeSet<&str> = DropReason::ALL.iter().map(|one| one.name()).collect();
    for named in ALERTS.split("reason=").skip(1) {
        let named = named.split('"').nth(1).unwrap();
        for reason in named.split('|') {
            assert!(reasons.contains(reason), "no reason: {reason}");
        }
    }
}

/// What a panel writes beside its series: `{{label}}`.
fn named_in(legend: &str) -> Labels {
    let parts = legend.split("{{").skip(1);
    parts
        .map(|part| part.split_once("}}").expect("its end").0.to_owned())
        .collect()
}

/// Every expression is of metrics that there are and has the labels that its legend names, every
/// panel has a title and a place of its own, and all ask the source that was chosen.
#[test]
fn the_dashboard_shows_metrics_that_there_are() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let of_metrics = of_metrics();
    let (mut places, mut asked) = (BTreeSet::new(), 0);
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        let at = &panel["gridPos"];
        let [x, y, width, height] = ["x", "y", "w", "h"].map(|side| at[side].as_u64().unwrap());
        assert!(x + width <= 24, "{title}");
        for place in (x..x + width).flat_map(|x| (y..y + height).map(move |y| (x, y))) {
            assert!(places.insert(place), "{title} lies on another at {place:?}");
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            let text = target["expr"].as_str().unwrap();
            let labels = labels_of(text, &of_metrics);
            let labels = labels.unwrap_or_else(|why| panic!("{title}: {text}: {why}"));
            let legend = named_in(target["legendFormat"].as_str().unwrap());
            assert_eq!(legend, labels, "{title}: {text}");
            assert!(text.contains("instance=~\"$instance\""), "{title}: {text}");
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            asked += 1;
        }
    }
    assert!(asked >= 30, "{asked}");
}
