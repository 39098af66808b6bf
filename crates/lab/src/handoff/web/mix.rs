//! The files and the mix of requests of SPECweb99, as in its white paper (release 1.02).

use fairlead_base::Rng;

/// Directories. The benchmark makes them in proportion to its load, 47 for 64 connections and 676
/// for 1,024; the files of these are as many as a card opens for one process (512).
pub const DIRECTORIES: u32 = 14;
/// Files of a class in a directory.
pub const FILES: u32 = 9;
/// Size of the smallest file of each class, bytes; the others are multiples of it. Those of the
/// smallest class are rounded down.
const SIZES: [f64; 4] = [102.4, 1_024.0, 10_240.0, 102_400.0];
/// Size of the largest file, bytes.
pub const LARGEST: u32 = 921_600;
/// Classes.
pub const CLASSES: u32 = SIZES.len() as u32;
/// Requests of each class and of smaller ones, per million: 35, 50, 14 and 1 percent.
const UP_TO_CLASS: [u32; 4] = [350_000, 850_000, 990_000, WHOLE];
/// Files of a class, most popular first; their popularity follows Zipf's law.
const BY_POPULARITY: [u32; FILES as usize] = [4, 3, 5, 2, 6, 1, 7, 8, 0];
/// All of what is drawn from.
const WHOLE: u32 = 1_000_000;
/// Requests with dynamic answers of the default mix, per million.
const DYNAMIC: u32 = 300_000;
/// Requests on connections that are kept, percent; others have a connection each.
const KEPT_PERCENT: u32 = 70;
/// Fewest and most requests of a connection that is kept, equally likely.
const KEPT: [u32; 2] = [5, 15];
/// Where dynamic answers are asked for.
const DYNAMIC_PATH: &str = "/dynamic";

/// A file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Document {
    /// Its directory.
    pub directory: u32,
    /// Its class, by size.
    pub class: u32,
    /// Its number in the class, from 0.
    pub number: u32,
}

impl Document {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let each = DIRECTORIES * CLASSES * FILES;
        (0..each).map(|at| Self {
            directory: at / (CLASSES * FILES),
            class: at / FILES % CLASSES,
            number: at % FILES,
        })
    }

    /// Its bytes.
    pub fn bytes(self) -> u64 {
        (SIZES[self.class as usize] * f64::from(self.number + 1)) as u64
    }

    /// Its path, with a leading slash.
    pub fn path(self) -> String {
        let Self {
            directory,
            class,
            number,
        } = self;
        format!("/dir{directory:05}/class{class}_{number}")
    }

    /// The file of a path of a dynamic answer.
    pub fn of_dynamic(path: &str) -> Option<Self> {
        let rest = path.strip_prefix(DYNAMIC_PATH)?.strip_prefix("/dir")?;
        let (directory, rest) = rest.split_once("/class")?;
        let (class, number) = rest.split_once('_')?;
        let below = |text: &str, bound: u32| text.parse().ok().filter(|value| *value < bound);
        Some(Self {
            directory: below(directory, DIRECTORIES)?,
            class: below(class, CLASSES)?,
            number: below(number, FILES)?,
        })
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is asked for: the answer has as many bytes.
    pub document: Document,
    /// Is the answer made for each request?
    pub is_dynamic: bool,
}

impl Request {
    /// The path that is asked for.
    pub fn path(self) -> String {
        let prefix = if self.is_dynamic { DYNAMIC_PATH } else { "" };
        format!("{prefix}{}", self.document.path())
    }
}

/// Draws requests; the same for the same seed.
#[derive(Clone, Debug)]
pub struct Mix {
    rng: Rng,
    dynamic: u32,
    up_to_directory: Vec<u32>,
    up_to_file: Vec<u32>,
}

impl Mix {
    /// The default mix, or one of static requests only.
    pub fn new(seed: u64, is_static: bool) -> Self {
        Self {
            rng: Rng::new(seed),
            dynamic: if is_static { 0 } else { DYNAMIC },
            up_to_directory: zipf(DIRECTORIES),
            up_to_file: zipf(FILES),
        }
    }

    /// Requests of the next connection.
    pub fn connection(&mut self) -> u32 {
        let [fewest, most] = KEPT;
        // As many requests as their share, each of a kept connection for one of this many.
        let (kept, single) = (KEPT_PERCENT * 2, (100 - KEPT_PERCENT) * (fewest + most));
        if self.rng.below(kept + single) < kept {
            fewest + self.rng.below(most - fewest + 1)
        } else {
            1
        }
    }

    /// The next request.
    pub fn request(&mut self) -> Request {
        let class = pick(&mut self.rng, &UP_TO_CLASS);
        let directory = pick(&mut self.rng, &self.up_to_directory);
        let rank = pick(&mut self.rng, &self.up_to_file);
        Request {
            document: Document {
                directory,
                class,
                number: BY_POPULARITY[rank as usize],
            },
            is_dynamic: self.rng.chance(self.dynamic),
        }
    }

    /// Bytes of an answer that a client still waits for when it is seen at some moment, if all take
    /// as long as they have bytes: large ones are seen more often.
    pub fn remaining(&mut self) -> u64 {
        loop {
            let bytes = self.request().document.bytes();
            let left = u64::from(self.rng.below(LARGEST));
            if left < bytes {
                return left;
            }
        }
    }
}

/// Chances of the first, of the first two, …, of [`WHOLE`], where the k-th has weight 1/k.
fn zipf(count: u32) -> Vec<u32> {
    let sum = |count: u32| (1..=count).map(|k| f64::from(k).recip()).sum::<f64>();
    let all = sum(count);
    let up_to = |rank: u32| (sum(rank) / all * f64::from(WHOLE)).round() as u32;
    (1..=count).map(up_to).collect()
}

fn pick(rng: &mut Rng, up_to: &[u32]) -> u32 {
    let drawn = rng.below(WHOLE);
    up_to.partition_point(|bound| *bound <= drawn) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 200_000;

    fn is_about(count: u32, share: f64) {
        let expected = f64::from(DRAWS) * share;
        let off = (f64::from(count) - expected).abs();
        assert!(off < 6.0 * expected.sqrt(), "{count} of {DRAWS}: {share}");
    }

    #[test]
    fn requests_have_the_published_shares() {
        let mut mix = Mix::new(5, false);
        let requests: Vec<Request> = (0..DRAWS).map(|_| mix.request()).collect();
        let count =
            |is: &dyn Fn(&Request) -> bool| requests.iter().filter(|one| is(one)).count() as u32;
        for (class, share) in [0.35, 0.5, 0.14, 0.01].into_iter().enumerate() {
            is_about(count(&|one| one.document.class == class as u32), share);
        }
        // 1/k of all: 1 + 1/2 + … + 1/9 = 2.829, and to 1/14: 3.2516.
        for (number, share) in [(4, 0.3535), (3, 0.1767), (5, 0.1178), (0, 0.0393)] {
            is_about(count(&|one| one.document.number == number), share);
        }
        for (directory, share) in [(0, 0.3075), (1, 0.1538), (13, 0.0220)] {
            is_about(count(&|one| one.document.directory == directory), share);
        }
        is_about(count(&|one| one.is_dynamic), 0.3);
        let mut only_static = Mix::new(5, true);
        assert!((0..1_000).all(|_| !only_static.request().is_dynamic));
    }

    #[test]
    fn seven_of_ten_requests_are_on_kept_connections() {
        let mut mix = Mix::new(6, false);
        let (mut kept, mut connections, mut single) = (0, 0, 0);
        while kept + single < DRAWS {
            match mix.connection() {
                1 => single += 1,
                requests => {
                    assert!((5..=15).contains(&requests));
                    kept += requests;
                    connections += 1;
                }
            }
        }
        // Requests of one connection are drawn together, so their number varies more.
        let share = f64::from(kept) / f64::from(kept + single);
        assert!((share - 0.7).abs() < 0.01, "{share}");
        let mean = f64::from(kept) / f64::from(connections);
        assert!((mean - 10.0).abs() < 0.1, "{mean}");
    }

    #[test]
    fn clients_are_seen_in_large_answers_more_often() {
        let mut mix = Mix::new(7, false);
        let bytes: Vec<f64> = (0..DRAWS)
            .map(|_| mix.request().document.bytes() as f64)
            .collect();
        let squares: f64 = bytes.iter().map(|bytes| bytes * bytes).sum();
        let expected = squares / bytes.iter().sum::<f64>() / 2.0;
        let mean = (0..2_000).map(|_| mix.remaining() as f64).sum::<f64>() / 2_000.0;
        assert!((mean / expected - 1.0).abs() < 0.1, "{mean} {expected}");
        let largest = Document::all().map(Document::bytes).max();
        assert_eq!(largest, Some(LARGEST.into()));
    }

    #[test]
    fn a_seed_gives_the_same_requests() {
        let draw = |seed| {
            let mut mix = Mix::new(seed, false);
            let mut one = || (mix.connection(), mix.request());
            (0..50).map(|_| one()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn files_have_the_published_sizes_and_paths_lead_back() {
        let of_first: Vec<u64> = Document::all().take(36).map(Document::bytes).collect();
        assert_eq!(of_first[..3], [102, 204, 307]);
        assert_eq!(
            [of_first[8], of_first[9], of_first[17]],
            [921, 1_024, 9_216]
        );
        assert_eq!([of_first[26], of_first[35]], [92_160, 921_600]);
        for document in Document::all() {
            let request = Request {
                document,
                is_dynamic: true,
            };
            assert_eq!(Document::of_dynamic(&request.path()), Some(document));
        }
        assert_eq!(Document::all().count(), 504);
        for path in [
            "/dir00000/class0_0",
            "/dynamic/dir0/class4_0",
            "/dynamic/dir0/class0",
        ] {
            assert_eq!(Document::of_dynamic(path), None, "{path}");
        }
    }
}
