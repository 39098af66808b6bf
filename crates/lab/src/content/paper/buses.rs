//! Figures 4 and 7 to 11, by the bus model.

use fairlead_content::bus::{Model, Time};

use super::caches::{FIGURE_7, shares, two_caches};
use super::measure::Measured;
use super::{against, claim, figure, published, row};
use crate::Size;
use crate::content::traffic::{Assumed, BUSES, throughput, traffic};
use crate::paper::{Claim, Figure};
use crate::table::percent;

/// The share of the time that the bus is occupied at its limit, as with the NASA log.
const LIMIT: f64 = 0.95;

/// What the figures of buses are made with.
struct Buses<'a> {
    measured: &'a [Measured],
    assumed: &'a Assumed,
    stall_s: f64,
}

pub(super) fn figures(
    measured: &[Measured],
    assumed: &Assumed,
    stall_s: f64,
    fitted_to: Option<&str>,
) -> Vec<Figure> {
    let buses = Buses {
        measured,
        assumed,
        stall_s,
    };
    let mut figures = vec![
        buses.figure_4(fitted_to),
        buses.reductions("figure-7", "pci33", "Figure 7: AMD/33"),
        buses.figure_8(),
        buses.reductions("figure-9", "pci66-amd", "Figure 9: AMD/66"),
        buses.figure_10(),
        buses.reductions("figure-11", "pci66-intel", "Figure 11: Intel/66"),
        buses.reductions("today", "pcie4-x8", "The same on PCI Express 4.0 x8"),
    ];
    let note = match fitted_to {
        Some(log) => format!(
            "By the model. One parameter is fitted: a stall of {:.0} ns per transfer, with which \
             {log} at the published 1.2 Gb/s of content occupies the 33 MHz bus for 95 % of the \
             time. Packets, headers and requests have assumed sizes.",
            stall_s * 1e9
        ),
        None => format!(
            "By the model. No part of the NASA log is at hand, so the stall is the one of a day \
             of it: {:.0} ns per transfer. Packets, headers and requests have assumed sizes.",
            stall_s * 1e9
        ),
    };
    for figure in &mut figures {
        figure.notes.insert(0, note.clone());
    }
    figures
}

fn of_time(time: &Time) -> [(&'static str, f64); 5] {
    let total = time.total();
    [
        ("content", time.content / total),
        ("overhead", time.overhead / total),
        ("network headers", time.network_headers / total),
        ("response headers", time.application_headers / total),
        ("other", time.other / total),
    ]
}

impl Buses<'_> {
    fn model(&self, name: &str) -> Model {
        let bus = BUSES.iter().find(|bus| bus.name == name);
        bus.unwrap_or(&BUSES[0]).with_stall(self.stall_s)
    }

    fn time(&self, one: &Measured, bus: &str, size: Option<Size>) -> Time {
        let cached = size.and_then(|size| one.result(&two_caches(size)));
        self.model(bus)
            .time(&traffic(&one.log.responses, cached, self.assumed))
    }

    /// Content at the limit of a bus, in Mb/s.
    fn rate(&self, one: &Measured, bus: &str, size: Option<Size>) -> f64 {
        let seconds = self.time(one, bus, size).total();
        throughput(&one.log.responses, seconds, LIMIT) / 1e6
    }

    /// Shares of the bus without a cache.
    fn figure_4(&self, fitted_to: Option<&str>) -> Figure {
        let (mut rows, mut claims) = (Vec::new(), Vec::new());
        for one in self.measured {
            let name = &one.log.name;
            let time = self.time(one, "pci33", None);
            let values = of_time(&time);
            let fitted = fitted_to == Some(name);
            for mut value in shares(name, "share of bus time", &values) {
                value = match value.series.as_str() {
                    "content" => against(value, Some(published::CONTENT_SHARE), true),
                    "overhead" => against(value, Some(published::OVERHEAD_SHARE), true),
                    _ => value,
                };
                value.fitted = fitted;
                rows.push(value);
            }
            let limit = self.rate(one, "pci33", None);
            rows.push(row(
                name,
                "content at 95 % of the bus (Mb/s)",
                "rate",
                limit,
            ));
            let (content, overhead) = (values[0].1, values[1].1);
            let near = |ours: f64, published: f64| (ours - published).abs() <= 0.1;
            let holds = near(content, published::CONTENT_SHARE)
                && near(overhead, published::OVERHEAD_SHARE);
            claims.push(claim(
                name,
                "about 60 % of the traffic is content and 30 % overhead, whatever the workload \
                 (here: within 10 points)",
                holds,
                format!("{} and {}", percent(content), percent(overhead)),
            ));
            if let Some(utilization) = utilization(one) {
                claims.push(claim(
                    name,
                    &format!(
                        "the bus is occupied for {} of the time",
                        percent(utilization)
                    ),
                    None,
                    "the model has no processor; NASA's 95 % is what it is fitted to".to_owned(),
                ));
            }
        }
        let title = "Figure 4: what occupies the bus without caches";
        let mut figure = figure("figure-4", title, "share", "", rows);
        figure.claims = claims;
        figure
    }

    /// What two caches take off a bus.
    fn reductions(&self, id: &str, bus: &str, title: &str) -> Figure {
        let (mut rows, mut claims) = (Vec::new(), Vec::new());
        for one in self.measured {
            let name = &one.log.name;
            let before = self.time(one, bus, None);
            for size in FIGURE_7 {
                let after = self.time(one, bus, Some(size));
                let less = |before: f64, after: f64| 1.0 - after / before;
                let values = [
                    ("content", less(before.content, after.content)),
                    ("overhead", less(before.overhead, after.overhead)),
                    ("all traffic", less(before.total(), after.total())),
                    ("rate gain, at most", before.total() / after.total() - 1.0),
                ];
                let x = size.to_string();
                rows.extend(shares(name, &x, &values));
                rows.push(row(name, "content at 95 % of the bus (Mb/s)", x, {
                    self.rate(one, bus, Some(size))
                }));
                if size == FIGURE_7[2] && id == "figure-7" {
                    let values = values.map(|(_, value)| value);
                    claims.extend(claims_of_figure_7(one, values));
                }
            }
        }
        let title = format!("{title}: reductions with two caches");
        let mut figure = figure(id, &title, "share", "size of each cache", rows);
        figure.notes.push(
            "The gain of the rate is that of a server which only the bus limits; processor, disks \
             and links may limit it before."
                .to_owned(),
        );
        figure.claims = claims;
        figure
    }

    /// Overhead per content byte against 33 MHz.
    fn per_byte(&self, one: &Measured, bus: &str) -> f64 {
        let share = |bus: &str| {
            let time = self.time(one, bus, None);
            time.overhead / time.content
        };
        share(bus) / share("pci33")
    }

    fn figure_8(&self) -> Figure {
        let (mut rows, mut claims) = (Vec::new(), Vec::new());
        for one in self.measured {
            let name = &one.log.name;
            let time = self.time(one, "pci66-amd", None);
            for value in shares(name, "pci66-amd", &of_time(&time)[..2]) {
                let amd = value.series == "overhead";
                let published = amd.then_some(published::OVERHEAD_SHARE_AMD_66);
                rows.push(against(value, published.or(Some(0.30)), true));
            }
            let gain = self.rate(one, "pci66-amd", None) - self.rate(one, "pci33", None);
            let nasa = one.log.paper_log() == Some("NASA");
            let value = row(name, "gain of content rate (Mb/s)", "pci66-amd", gain);
            rows.push(against(value, nasa.then_some(87.0), nasa));
            claims.push(claim(
                name,
                "twice the clock gains little on AMD: 87 Mb/s with NASA (here: below 10 %)",
                gain < 0.1 * self.rate(one, "pci33", None),
                format!("{gain:.0} Mb/s"),
            ));
        }
        let mut figure = figure(
            "figure-8",
            "Figure 8: AMD/66 without caches",
            "share",
            "",
            rows,
        );
        figure.claims = claims;
        figure
    }

    fn figure_10(&self) -> Figure {
        let mut rows = Vec::new();
        for one in self.measured {
            let name = &one.log.name;
            for bus in &BUSES {
                let ours = self.per_byte(one, bus.name);
                let known = published::PER_BYTE.iter().find(|known| known.0 == bus.name);
                let series = "overhead per content byte, pci33 = 1";
                let mut value = row(name, series, bus.name, ours);
                // The factor of AMD is put in.
                value.fitted = bus.name == "pci66-amd";
                rows.push(against(value, known.map(|known| known.1), true));
                let rate = self.rate(one, bus.name, None);
                let value = row(name, "content at 95 % of the bus (Mb/s)", bus.name, rate);
                let nasa = one.log.paper_log() == Some("NASA") && bus.name == "pci66-intel";
                rows.push(against(value, nasa.then_some(1_747.0), false));
            }
        }
        let title = "Figure 10: buses without caches";
        let mut figure = figure("figure-10", title, "as named", "bus", rows);
        figure.notes.push(
            "The published 1,747 Mb/s on Intel/66 is the limit of the two links, not of the bus."
                .to_owned(),
        );
        for bus in &BUSES {
            figure.notes.push(format!("{}: {}", bus.name, bus.source));
        }
        figure
    }
}

fn utilization(one: &Measured) -> Option<f64> {
    let name = one.log.paper_log()?;
    let known = published::UTILIZATION.iter().find(|known| known.0 == name);
    known.map(|known| known.1)
}

/// `values`: content, overhead and all traffic removed, and the gain at most.
fn claims_of_figure_7(one: &Measured, values: [f64; 4]) -> Vec<Claim> {
    let name = &one.log.name;
    let known = one.log.paper_log();
    let inside = |value: f64, range: (f64, f64)| {
        known.map(|_| (range.0 - 0.005..=range.1 + 0.005).contains(&value))
    };
    let mut claims = vec![
        claim(
            name,
            "16 MB caches remove 55 to 89 % of the content of IBM, NASA, Rice, World Cup",
            inside(values[0], published::CONTENT_REMOVED),
            percent(values[0]),
        ),
        claim(
            name,
            "the overhead decreases by 16 to 35 %",
            inside(values[1], published::OVERHEAD_REMOVED),
            percent(values[1]),
        ),
        claim(
            name,
            "all traffic decreases by 34 to 59 %",
            inside(values[2], published::ALL_REMOVED),
            percent(values[2]),
        ),
    ];
    let gain = published::GAINS.iter().find(|gain| Some(gain.0) == known);
    if let Some((_, gain)) = gain {
        claims.push(claim(
            name,
            &format!(
                "the request rate gains {} (here: not above the bus's)",
                percent(*gain)
            ),
            *gain <= values[3],
            format!("the bus allows {}", percent(values[3])),
        ));
    }
    claims
}
