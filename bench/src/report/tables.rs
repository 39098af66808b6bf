//! Tables of Markdown from records. Every figure of `docs/performance.md` is written here.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::record::Record;
use super::targets::{self, Target};
use crate::table::ratio;

/// A table and its caption, as Markdown.
pub(crate) type Markdown = String;

/// Rows of cells under a head.
#[derive(Debug, Default)]
pub(super) struct Grid {
    rows: Vec<Vec<String>>,
}

impl Grid {
    pub(super) fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Self {
        let mut grid = Self::default();
        grid.push(head);
        grid
    }

    pub(super) fn push<S: Into<String>>(&mut self, row: impl IntoIterator<Item = S>) {
        self.rows.push(row.into_iter().map(Into::into).collect());
    }

    /// Without blanks around the cells: the README counts its words.
    fn compact(&self) -> Markdown {
        self.markdown()
            .replace(" | ", "|")
            .replace("| ", "|")
            .replace(" |", "|")
    }

    pub(super) fn markdown(&self) -> Markdown {
        let mut text = String::new();
        for (at, row) in self.rows.iter().enumerate() {
            text += &format!("| {} |\n", row.join(" | "));
            if at == 0 {
                text += &format!("|{}\n", "---|".repeat(row.len()));
            }
        }
        text
    }
}

/// `peers`: requests/s and p99 beside proxies, plain forwarding and the bare link.
pub(crate) fn peers(record: &Record, with_targets: bool, base: &str) -> Result<Markdown> {
    let mut grid = match with_targets {
        true => Grid::new([
            "requests",
            "× best peer",
            "target",
            "× direct",
            "target",
            "link, × best peer",
            "p99 ms: Fairlead / quickest peer / direct",
        ]),
        false => Grid::new([
            "requests",
            "× best peer",
            "× direct",
            "p99 ms: Fairlead / quickest peer / direct",
        ]),
    };
    let mut missed = Vec::new();
    for cell in record.cells()? {
        let row = PeersRow::read(&cell)?;
        if with_targets {
            grid.push(row.with_targets()?);
            missed.extend(row.missed()?);
        } else {
            grid.push([
                row.title(),
                row.to_best(None),
                two(row.to_direct),
                row.p99.text(false),
            ]);
        }
    }
    let targets = match (with_targets, missed.is_empty()) {
        (false, _) => String::new(),
        (true, true) => "\nEvery target is met.\n".to_owned(),
        (true, false) => format!("\nTargets that are missed:\n\n{}", missed.concat()),
    };
    Ok(format!(
        "{}\n{}{targets}",
        peers_caption(record, base)?,
        grid.markdown()
    ))
}

/// One row of a record of `peers`.
#[derive(Debug)]
struct PeersRow {
    kind: String,
    size: String,
    best: String,
    to_best: f64,
    to_direct: f64,
    /// Plain forwarding's share of the best peer's rate.
    direct_to_best: f64,
    /// The bare link's share; records before it was measured have none.
    link_to_best: Option<f64>,
    p99: P99,
}

/// The 99th percentile of latencies, in ms.
#[derive(Clone, Copy, Debug)]
struct P99 {
    fairlead: f64,
    quickest_peer: f64,
    direct: f64,
}

impl P99 {
    fn read(cell: &Record) -> Result<Self> {
        let of = |target: &str| cell.number(&format!("/targets/{target}/p99_ms"));
        // A proxy that could not hold the connections has no latency.
        let quickest = peers_of(cell)?
            .iter()
            .filter_map(|name| of(name).ok())
            .min_by(f64::total_cmp);
        Ok(Self {
            fairlead: of("fairlead")?,
            quickest_peer: quickest.context("no peer has a p99")?,
            direct: of("direct")?,
        })
    }

    fn is_missed(self) -> bool {
        self.fairlead >= self.quickest_peer
    }

    /// `1.5 / 2.2 / 1.4`, the first bold where its target counts and is missed.
    fn text(self, with_target: bool) -> String {
        let own = bold(millis(self.fairlead), with_target && self.is_missed());
        let others = [self.quickest_peer, self.direct].map(millis);
        format!("{own} / {}", others.join(" / "))
    }
}

/// The proxies that a row was measured with.
fn peers_of(cell: &Record) -> Result<Vec<String>> {
    let targets = cell.at("/targets")?.as_object();
    let targets = targets.with_context(|| format!("{}: targets is not an object", cell.name))?;
    let is_peer = |name: &&String| !matches!(name.as_str(), "fairlead" | "direct" | "link");
    let peers: Vec<String> = targets.keys().filter(is_peer).cloned().collect();
    ensure!(!peers.is_empty(), "{}: a row without a peer", cell.name);
    Ok(peers)
}

impl PeersRow {
    fn read(cell: &Record) -> Result<Self> {
        let best = cell.text("/best_peer")?.to_owned();
        Ok(Self {
            kind: cell.text("/kind")?.to_owned(),
            size: cell.text("/size")?.to_owned(),
            to_best: cell.number("/ratio_to_best_peer")?,
            to_direct: cell.number("/ratio_to_direct")?,
            direct_to_best: ratio(&rates(cell, "direct")?, &rates(cell, &best)?),
            link_to_best: cell.number("/link_to_best_peer").ok(),
            p99: P99::read(cell)?,
            best,
        })
    }

    fn title(&self) -> String {
        title(&self.kind, &self.size)
    }

    fn target(&self) -> Result<Target> {
        let target = targets::of(&self.kind, &self.size);
        target.with_context(|| format!("no target for {}", self.title()))
    }

    fn to_best(&self, target: Option<f64>) -> String {
        let missed = target.is_some_and(|target| self.to_best < target);
        format!("{} ({})", bold(two(self.to_best), missed), peer(&self.best))
    }

    fn with_targets(&self) -> Result<[String; 7]> {
        let target = self.target()?;
        Ok([
            self.title(),
            self.to_best(Some(target.best_peer)),
            two(target.best_peer),
            bold(two(self.to_direct), self.to_direct < target.direct),
            two(target.direct),
            self.link_to_best.map_or_else(|| "–".to_owned(), two),
            self.p99.text(true),
        ])
    }

    /// One list item for each missed target, with what bounds it.
    fn missed(&self) -> Result<Vec<String>> {
        let target = self.target()?;
        let mut missed = Vec::new();
        if self.to_best < target.best_peer {
            let bound = match self.link_to_best {
                Some(link) if link < target.best_peer => format!(
                    "No switch can meet this target here: client and server on one link, with \
                     nothing between them, reach {}.",
                    two(link)
                ),
                Some(link) => format!(
                    "Plain forwarding reaches {}, the bare link {}.",
                    two(self.direct_to_best),
                    two(link)
                ),
                None => format!("Plain forwarding reaches {}.", two(self.direct_to_best)),
            };
            missed.push(format!(
                "- {}: {} of the best peer, target {}. {bound}\n",
                self.title(),
                two(self.to_best),
                two(target.best_peer)
            ));
        }
        if self.to_direct < target.direct {
            missed.push(format!(
                "- {}: {} of plain forwarding, target {}.\n",
                self.title(),
                two(self.to_direct),
                two(target.direct)
            ));
        }
        if self.p99.is_missed() {
            missed.push(format!(
                "- {}: p99 of {} ms; the target is less than the quickest peer's {} ms. Plain \
                 forwarding has {} ms.\n",
                self.title(),
                millis(self.p99.fairlead),
                millis(self.p99.quickest_peer),
                millis(self.p99.direct)
            ));
        }
        Ok(missed)
    }
}

fn rates(cell: &Record, target: &str) -> Result<Vec<f64>> {
    let rates = cell
        .at(&format!("/targets/{target}/all_rates"))?
        .as_array()
        .context("all_rates is not a list")?;
    Ok(rates.iter().filter_map(Value::as_f64).collect())
}

fn peers_caption(record: &Record, base: &str) -> Result<Markdown> {
    let offloads = match record.at("/offloads")?.as_bool() {
        Some(true) => "offloads on",
        _ => "offloads off",
    };
    let distinct = match record.at("/distinct_heads").ok().and_then(Value::as_bool) {
        Some(true) => ", every head different",
        _ => "",
    };
    Ok(format!(
        "`{}`: {}, {}, {offloads}, {} connections{distinct}, medians of {} rounds of {} s; {}, \
         nginx {}; {}.\n",
        record.command(),
        fast_path(record)?,
        congestion(record)?,
        record.number("/client_connections")?,
        record.number("/rounds")?,
        record.number("/seconds")?,
        version(record, "haproxy")?,
        version(record, "nginx")?.trim_start_matches("nginx "),
        record.link(base)
    ))
}

/// The way that the switch itself named in its log.
fn fast_path(record: &Record) -> Result<String> {
    let line = record.text("/fast_path")?;
    let (_, way) = line.split_once("fast path: ").unwrap_or(("", line));
    let way = way.split([' ', ',']).next().unwrap_or(way);
    Ok(match way {
        "engine" => "engine mode (user space)".to_owned(),
        way => format!("kernel fast path ({way})"),
    })
}

fn congestion(record: &Record) -> Result<String> {
    Ok(record.text("/congestion_control")?.to_uppercase())
}

/// `HAProxy 2.6.12` from what the program says of itself.
fn version(record: &Record, program: &str) -> Result<String> {
    let line = record.text(&format!("/{program}"))?;
    let digits = line.find(|letter: char| letter.is_ascii_digit());
    let number = digits.map_or("", |at| &line[at..]);
    let end = number.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let name = if program == "haproxy" {
        "HAProxy"
    } else {
        program
    };
    Ok(format!("{name} {}", &number[..end.unwrap_or(number.len())]))
}

/// The same rows in several records, one column each: how far runs and builds differ.
pub(crate) fn spread(records: &[Record], base: &str) -> Result<Markdown> {
    let mut head = vec!["requests".to_owned()];
    let mut rows: Vec<Vec<String>> = Vec::new();
    for record in records {
        head.push(format!(
            "[{}]({base}bench/records/{}.json)",
            &record.commit()[..7],
            record.name
        ));
        for (at, cell) in record.cells()?.iter().enumerate() {
            let value = match cell.number("/ratio_to_best_peer") {
                Ok(best) => format!("{} / {}", two(best), two(cell.number("/ratio_to_direct")?)),
                Err(_) => two(cell.number("/share_of_cheapest_peer")?),
            };
            let title = title(cell.text("/kind")?, cell.text("/size")?);
            match rows.get_mut(at) {
                Some(row) => {
                    ensure!(row[0] == title, "{} has other rows", record.name);
                    row.push(value);
                }
                None => rows.push(vec![title, value]),
            }
        }
    }
    let mut grid = Grid::new(head);
    rows.into_iter().for_each(|row| grid.push(row));
    Ok(grid.markdown())
}

/// `cost`: what the switch's own core is busy with.
pub(crate) fn cost(record: &Record, base: &str) -> Result<Markdown> {
    let mut grid = Grid::new([
        "requests",
        "Fairlead, µs",
        "cheapest peer, µs",
        "share",
        "target",
    ]);
    let mut missed = false;
    for cell in record.cells()? {
        let (kind, size) = (cell.text("/kind")?, cell.text("/size")?);
        let target = targets::of(kind, size).context("a row without a target")?;
        let above = |name: &str| cell.number(&format!("/targets/{name}/above_forwarding_us"));
        let mut cheapest = (String::new(), f64::INFINITY);
        for name in peers_of(&cell)? {
            let above = above(&name)?;
            if above < cheapest.1 {
                cheapest = (name, above);
            }
        }
        let (own, share) = (above("fairlead")?, cell.number("/share_of_cheapest_peer")?);
        let over = share > target.cost;
        missed |= over;
        let share = match share < 0.0 {
            true => "below 0".to_owned(),
            false => two(share),
        };
        grid.push([
            title(kind, size),
            minus(format!("{own:.1}")),
            format!("{:.1} ({})", cheapest.1, peer(&cheapest.0)),
            bold(share, over),
            two(target.cost),
        ]);
    }
    let verdict = match missed {
        true => "Bold shares miss their target.",
        false => "Every target is met.",
    };
    Ok(format!(
        "`{}`: {}, {}, {} connections, medians of {} rounds of {} s; {}.\n\n{}\n{verdict}\n",
        record.command(),
        fast_path(record)?,
        congestion(record)?,
        record.number("/client_connections")?,
        record.number("/rounds")?,
        record.number("/seconds")?,
        record.link(base),
        grid.markdown()
    ))
}

/// `open`: many open connections of which one in 20 is active.
pub(crate) fn open(record: &Record, base: &str) -> Result<Markdown> {
    let mut grid = Grid::new([
        "open connections",
        "× best peer",
        "× direct",
        "p99 ms: Fairlead / quickest peer / direct",
        "Fairlead, resident",
    ]);
    for cell in record.cells()? {
        let best = cell.text("/best_peer")?;
        let p99 = P99::read(&cell)?;
        grid.push([
            thousands(cell.number("/open")?),
            format!(
                "{} ({})",
                two(cell.number("/ratio_to_best_peer")?),
                peer(best)
            ),
            two(cell.number("/ratio_to_direct")?),
            p99.text(false),
            format!("{:.0} MiB", cell.number("/fairlead_resident_kib")? / 1024.0),
        ]);
    }
    Ok(format!(
        "`{}`: {}, {}, medians of {} rounds of {} s; {}.\n\n{}",
        record.command(),
        fast_path(record)?,
        congestion(record)?,
        record.number("/rounds")?,
        record.number("/seconds")?,
        record.link(base),
        grid.markdown()
    ))
}

/// `flood`: open and new connections while SYNs come in.
pub(crate) fn flood(record: &Record, base: &str) -> Result<Markdown> {
    let resident = record.at("/fairlead_resident_kib")?.as_array();
    let resident: Vec<f64> = resident
        .context("fairlead_resident_kib is not a list")?
        .iter()
        .filter_map(Value::as_f64)
        .collect();
    let (before, after) = (resident.first(), resident.last());
    let grown = after
        .zip(before)
        .map_or(0.0, |(after, before)| after - before);
    let (lost, paced, client) = (
        record.number("/held_lost")?,
        record.number("/paced_to_flood_dropped_first")?,
        record.number("/wrk_to_flood_dropped_first")?,
    );
    let mut grid = Grid::new(["under the flood", "measured", "target"]);
    grid.push([
        format!(
            "open connections lost, of {}",
            thousands(record.number("/held")?)
        ),
        bold(thousands(lost), lost > 0.0),
        "0".to_owned(),
    ]);
    grid.push([
        format!(
            "paced clients, {} connections/s: share of answers",
            thousands(record.number("/legitimate_per_second")?)
        ),
        bold(two(paced), two(paced) != "1.00"),
        "1.00".to_owned(),
    ]);
    grid.push([
        "unpaced client: share of answers".to_owned(),
        bold(two(client), client < targets::FLOOD_CLIENT),
        two(targets::FLOOD_CLIENT),
    ]);
    grid.push([
        "resident memory of Fairlead".to_owned(),
        format!(
            "{:.0} MiB, grown by {:.1} MiB",
            after.copied().unwrap_or(0.0) / 1024.0,
            grown / 1024.0
        ),
        "–".to_owned(),
    ]);
    Ok(format!(
        "`{}`: {} SYNs/s, {}, medians of {} rounds of {} s; {}.\n\n{}",
        record.command(),
        thousands(record.number("/flood_at_the_service/syns_per_second")?),
        fast_path(record)?,
        record.number("/rounds")?,
        record.number("/seconds")?,
        record.link(base),
        grid.markdown()
    ))
}

/// `core`: the core in memory, one thread.
pub(crate) fn core(record: &Record, base: &str) -> Result<Markdown> {
    let mut grid = Grid::new(["in memory, one thread", "measured", "target"]);
    splice_rows(record, &mut grid)?;
    let syn_acks = record.number("/handshakes/syn_acks_per_second")?;
    grid.push([
        "SYN to SYN-ACK".to_owned(),
        bold(
            format!("{:.1} million/s", syn_acks / 1e6),
            syn_acks < targets::SYN_ACK_RATE,
        ),
        format!("{:.0} million/s", targets::SYN_ACK_RATE / 1e6),
    ]);
    let growth = record.number("/handshakes/heap_growth_bytes")?;
    grid.push([
        format!(
            "heap grown by {} SYNs",
            thousands(record.number("/handshakes/syns")?)
        ),
        bold(format!("{} bytes", thousands(growth)), growth > 0.0),
        "0".to_owned(),
    ]);
    let bytes = record.number("/memory/resident_bytes_per_connection")?;
    grid.push([
        format!(
            "resident memory a connection, at {}",
            thousands(record.number("/memory/connections")?)
        ),
        bold(
            format!("{bytes:.0} bytes"),
            bytes > targets::CONNECTION_BYTES,
        ),
        format!("{:.0} bytes", targets::CONNECTION_BYTES),
    ]);
    Ok(format!(
        "`{}`; {}.\n\n{}",
        record.command(),
        record.link(base),
        grid.markdown()
    ))
}

/// Packet rates and allocations of spliced connections in memory.
fn splice_rows(record: &Record, grid: &mut Grid) -> Result<()> {
    let cases = record
        .at("/splice")?
        .as_array()
        .context("splice is not a list")?;
    for (connections, target) in targets::SPLICE_RATE {
        let of = |case: &&Value| case["connections"].as_u64() == Some(connections);
        let rates = cases.iter().filter(of);
        let rates: Vec<f64> = rates
            .filter_map(|case| case["packets_per_second"].as_f64())
            .collect();
        ensure!(
            !rates.is_empty(),
            "{}: no {connections} connections",
            record.name
        );
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let most = rates.iter().copied().fold(0.0, f64::max);
        let range = match [least, most].map(|rate| format!("{:.0}", rate / 1e6)) {
            [least, most] if least == most => format!("{least} million/s"),
            [least, most] => format!("{least} to {most} million/s"),
        };
        grid.push([
            format!(
                "spliced packets, {} connections",
                thousands(connections as f64)
            ),
            bold(range, least < target),
            format!("{:.0} million/s", target / 1e6),
        ]);
    }
    let mut allocations = 0.0;
    for case in cases {
        allocations += case["allocations"].as_f64().context("no allocations")?;
    }
    grid.push([
        "allocations for spliced packets".to_owned(),
        bold(thousands(allocations), allocations > 0.0),
        "0".to_owned(),
    ]);
    Ok(())
}

/// The laboratory beside libCacheSim.
pub(crate) fn lab(record: &Record, base: &str) -> Result<Markdown> {
    let mut grid = Grid::new(["", "× peer", "target", "million/s", "target"]);
    for row in targets::LAB {
        let times = record.number(&format!("{}/times_the_peer", row.pointer))?;
        let rate = record.number(&format!("{}/per_second", row.pointer))?;
        let reading = row.rate.is_some();
        let times_missed = row.times.is_some_and(|target| times < target);
        let rate_missed = row.rate.is_some_and(|target| rate < target);
        let dash = || "–".to_owned();
        grid.push([
            row.what.to_owned(),
            match reading {
                true => dash(),
                false => bold(format!("{times:.1}"), times_missed),
            },
            row.times.map_or_else(dash, |target| format!("{target:.0}")),
            bold(format!("{:.1}", rate / 1e6), rate_missed),
            row.rate
                .map_or_else(dash, |target| format!("{:.0}", target / 1e6)),
        ]);
    }
    let accesses = record.number("/memory/accesses")?;
    let parity = record
        .at("/parity")?
        .as_array()
        .context("parity is not a list")?;
    let equal = parity
        .iter()
        .filter(|row| row["difference"].as_f64() == Some(0.0))
        .count();
    Ok(format!(
        "`{}`; {}.\n\n{}\nBold rows miss their target. Making and simulating {} accesses takes \
         {:.1} GiB (target: 2 GiB). {equal} of {} comparisons of misses with libCacheSim (LRU, \
         FIFO, CLOCK, SIEVE, S3-FIFO and MIN, fully associative) are equal to the last miss.\n",
        record.command(),
        record.link(base),
        grid.markdown(),
        thousands(accesses),
        record.number("/memory/peak_mib")? / 1024.0,
        parity.len()
    ))
}

/// The records of the README's table.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) fast: Record,
    pub(crate) cost: Record,
    pub(crate) offloads_off: Record,
    pub(crate) engine: Record,
}

/// The one table of the README.
pub(crate) fn summary(records: &Summary, base: &str) -> Result<Markdown> {
    let mut grid = Grid::new([
        "requests",
        "× best proxy",
        "× direct",
        "p99 ms: Fairlead / quickest proxy / direct",
        "CPU, share of cheapest proxy's",
        "offloads off, × best proxy",
        "engine mode, × best proxy",
    ]);
    let rows = |record: &Record| -> Result<Vec<PeersRow>> {
        record.cells()?.iter().map(PeersRow::read).collect()
    };
    let (off, engine) = (rows(&records.offloads_off)?, rows(&records.engine)?);
    let cost = records.cost.cells()?;
    for (at, row) in rows(&records.fast)?.into_iter().enumerate() {
        let other = |rows: &[PeersRow]| -> Result<String> {
            let other = rows.get(at).filter(|other| other.title() == row.title());
            let other = other.context("records of the summary have different rows")?;
            Ok(losing(other.to_best))
        };
        let share = cost
            .get(at)
            .context("the record of cost has fewer rows")?
            .number("/share_of_cheapest_peer")?;
        grid.push([
            row.title(),
            losing(row.to_best),
            losing(row.to_direct),
            row.p99.text(false),
            match share < 0.0 {
                true => "below 0".to_owned(),
                false => two(share),
            },
            other(&off)?,
            other(&engine)?,
        ]);
    }
    let links = [
        ("kernel", &records.fast),
        ("CPU", &records.cost),
        ("offloads off", &records.offloads_off),
        ("engine", &records.engine),
    ];
    let links =
        links.map(|(name, record)| format!("[{name}]({base}bench/records/{}.json)", record.name));
    Ok(format!(
        "{}\n{}, {} connections. Records: {}.\n",
        grid.compact(),
        records.fast.machine(),
        records.fast.number("/client_connections")?,
        links.join(", ")
    ))
}

fn title(kind: &str, size: &str) -> String {
    let at = size.find(|letter: char| !letter.is_ascii_digit());
    let (number, unit) = size.split_at(at.unwrap_or(size.len()));
    format!("{kind}, {number} {unit}")
}

fn peer(name: &str) -> &str {
    match name {
        "haproxy" => "HAProxy",
        "haproxy-tuned" => "HAProxy tuned",
        "nginx-128k" => "nginx, 128 KiB",
        name => name,
    }
}

pub(super) fn two(value: f64) -> String {
    minus(format!("{value:.2}"))
}

/// A ratio, bold where it is below 1 as it is shown.
fn losing(ratio: f64) -> String {
    bold(two(ratio), ratio < 0.995)
}

/// A minus sign instead of a hyphen, and none before zero.
fn minus(text: String) -> String {
    match text.strip_prefix('-') {
        Some(rest) if rest.chars().all(|letter| matches!(letter, '0' | '.')) => rest.to_owned(),
        Some(rest) => format!("−{rest}"),
        None => text,
    }
}

fn millis(value: f64) -> String {
    match value < 10.0 {
        true => format!("{value:.1}"),
        false => format!("{value:.0}"),
    }
}

pub(super) fn bold(text: String, bold: bool) -> String {
    match bold {
        true => format!("**{text}**"),
        false => text,
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) && digit != '-' {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
