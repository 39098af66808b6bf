//! What the paper prints (Kim, Rixner and Pai, 2005).

/// A column of table 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Log {
    /// Its name.
    pub name: &'static str,
    /// Total response bytes, in MB.
    pub response_megabytes: f64,
    /// Average response size, in bytes.
    pub mean_bytes: f64,
    /// Data set size, in MB.
    pub data_set_megabytes: f64,
    /// Total requests.
    pub requests: f64,
    /// Distinct files.
    pub files: f64,
    /// Beginnings of the names of files that have all or a part of this log.
    pub begins: &'static [&'static str],
}

const fn log(name: &'static str, values: [f64; 5], begins: &'static [&'static str]) -> Log {
    let [
        response_megabytes,
        mean_bytes,
        data_set_megabytes,
        requests,
        files,
    ] = values;
    Log {
        name,
        response_megabytes,
        mean_bytes,
        data_set_megabytes,
        requests,
        files,
        begins,
    }
}

/// Table 1.
pub const LOGS: [Log; 6] = [
    log(
        "Berkeley",
        [82_545.0, 25_920.0, 6_664.0, 3_184_540.0, 97_766.0],
        &[],
    ),
    log(
        "IBM",
        [44_487.0, 2_857.0, 997.0, 15_568_217.0, 39_363.0],
        &[],
    ),
    log(
        "NASA",
        [96_069.0, 56_983.0, 271.0, 1_685_904.0, 4_690.0],
        &["nasa"],
    ),
    log(
        "Rice",
        [8_588.0, 34_936.0, 1_191.0, 245_820.0, 15_528.0],
        &[],
    ),
    log(
        "SPEC",
        [50_644.0, 14_732.0, 5_036.0, 3_604_784.0, 33_387.0],
        &[],
    ),
    log(
        "World Cup",
        [72_869.0, 6_847.0, 93.0, 10_641_170.0, 5_163.0],
        &["wc98-day", "wc_day", "worldcup", "wc98_"],
    ),
];

/// Figure 4: utilization of the bus.
pub const UTILIZATION: [(&str, f64); 2] = [("NASA", 0.95), ("World Cup", 0.84)];
/// Figure 4: shares of content and overhead "regardless of the workload".
pub const CONTENT_SHARE: f64 = 0.60;
/// See [`CONTENT_SHARE`].
pub const OVERHEAD_SHARE: f64 = 0.30;
/// Figure 7, with two caches of 16 MB: ranges over IBM, NASA, Rice and World Cup.
pub const CONTENT_REMOVED: (f64, f64) = (0.55, 0.89);
/// See [`CONTENT_REMOVED`].
pub const OVERHEAD_REMOVED: (f64, f64) = (0.16, 0.35);
/// See [`CONTENT_REMOVED`].
pub const ALL_REMOVED: (f64, f64) = (0.34, 0.59);
/// Figure 7: gains of the request rate with two caches of 16 MB.
pub const GAINS: [(&str, f64); 2] = [("NASA", 0.32), ("World Cup", 0.10)];
/// Figure 8: at 66 MHz on AMD.
pub const OVERHEAD_SHARE_AMD_66: f64 = 0.60;
/// Figures 8 and 10: overhead per content byte against 33 MHz.
pub const PER_BYTE: [(&str, f64); 2] = [("pci66-amd", 4.0), ("pci66-intel", 2.0)];
/// Figure 12: the exponents of the lines that are drawn.
pub const ZIPF: [f64; 2] = [0.9, 0.7];

/// The paper's log of which a file is all or a part, by the file's name.
pub fn recognise(file: &str) -> Option<&'static Log> {
    let lower = file.to_ascii_lowercase();
    let begins = |log: &&Log| log.begins.iter().any(|begin| lower.starts_with(begin));
    LOGS.iter().find(begins)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_recognised_by_their_names() {
        let name = |file: &str| recognise(file).map(|log| log.name);
        assert_eq!(name("NASA_access_log_Jul95.gz"), Some("NASA"));
        assert_eq!(name("nasa-1995-07-09.log.zst"), Some("NASA"));
        assert_eq!(name("wc98-day6-sample200k.csv.zst"), Some("World Cup"));
        assert_eq!(name("epa-http.log"), None);
    }

    #[test]
    fn totals_agree_with_means() {
        for log in LOGS {
            let mean = log.response_megabytes * 1e6 / log.requests;
            assert!(
                (mean / log.mean_bytes - 1.0).abs() < 0.06,
                "{}: {mean}",
                log.name
            );
        }
    }
}
