//! `fairlead content`: what servers' packets consist of, and links that content crosses once.

mod link;
mod live;
mod meter;
mod view;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use fairlead_content::{BlockSize, Policy, meter::DEVICES_MAX};
use fairlead_lab::Size;

use crate::config::parse_duration;

/// Arguments of `fairlead content`.
#[derive(Clone, Debug, Args)]
pub struct ContentArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ContentCommand,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum ContentCommand {
    /// Measure what a server sends, by kind, and what a content cache on its network interface
    /// would save
    Meter(MeterArgs),
    /// On a server's machine: send blocks of files over a link as references to what its other end
    /// has (experimental)
    Refer(ReferArgs),
    /// At the other end of the link: put the blocks back in place of the references (experimental)
    Resolve(ResolveArgs),
}

/// Arguments of `fairlead content meter`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  fairlead content meter --interface eth0
  fairlead content meter --interface eth0 --port 80 --size 64M --devices 2
  fairlead content meter --interface eth0 --for 10s --json
It ends at Ctrl-C, or after the time of --for. Packets are only read. CAP_BPF, CAP_PERFMON,
CAP_NET_ADMIN and a kernel with BTF are needed (Linux 6.1 or later).

Exit codes:
  0    measured
  1    the meter cannot run; standard error gives the reason")]
pub struct MeterArgs {
    /// Interface that the server sends by
    #[arg(short, long, value_name = "NAME")]
    pub interface: String,
    /// Only TCP packets sent from these ports, up to 16
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    pub port: Vec<u16>,
    /// Size of each device's cache (4K to 64G)
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = size)]
    pub size: Size,
    /// Number of devices (1 to 64); each connection belongs to one
    #[arg(long, value_name = "NUMBER", default_value = "1", value_parser = devices)]
    pub devices: u32,
    /// Which blocks stay: lru, fifo, clock, sieve, s3-fifo, gdsf
    #[arg(long, value_name = "NAME", default_value = "lru")]
    pub policy: Policy,
    /// How long, and what is shown
    #[command(flatten)]
    pub watch: WatchArgs,
}

/// How long a command runs, and what it shows.
#[derive(Clone, Copy, Debug, Args)]
pub struct WatchArgs {
    /// How long to run: 10s, 5m (up to 7 days)
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub duration: Option<Duration>,
    /// Seconds between updates on a terminal (0.1 to 3600)
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = crate::top::interval)]
    pub interval: Duration,
    /// Print one JSON document at the end
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `fairlead content refer`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  fairlead content refer --interface eth0 --secret /etc/fairlead/link --port 80
The other end of the link runs `fairlead content resolve` with the same secret and size. It ends at
Ctrl-C, or after the time of --for; content then goes as bytes again. CAP_BPF, CAP_PERFMON,
CAP_NET_ADMIN and a kernel with BTF are needed (Linux 6.6 or later).

Exit codes:
  0    it ran, and ended as asked
  1    it cannot run; standard error gives the reason")]
pub struct ReferArgs {
    /// Interface that the server sends by
    #[arg(short, long, value_name = "NAME")]
    pub interface: String,
    /// Only TCP packets sent from these ports, up to 16
    #[arg(long, value_name = "PORTS", value_delimiter = ',')]
    pub port: Vec<u16>,
    /// What both ends have in common
    #[command(flatten)]
    pub link: LinkArgs,
}

/// Arguments of `fairlead content resolve`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  fairlead content resolve --interface eth1 --secret /etc/fairlead/link
The server's machine runs `fairlead content refer` with the same secret and size. While packets of
references come, end the server's side first: what nobody resolves is lost, and sent again. CAP_BPF,
CAP_PERFMON, CAP_NET_ADMIN and a kernel with BTF are needed (Linux 6.6 or later).

Exit codes:
  0    it ran, and ended as asked
  1    it cannot run; standard error gives the reason")]
pub struct ResolveArgs {
    /// Interface on the way to the server
    #[arg(short, long, value_name = "NAME")]
    pub interface: String,
    /// What both ends have in common
    #[command(flatten)]
    pub link: LinkArgs,
}

/// What both ends of a link with references have in common.
#[derive(Clone, Debug, Args)]
pub struct LinkArgs {
    /// File with the secret that both ends share, 16 bytes or more
    #[arg(long, value_name = "FILE")]
    pub secret: std::path::PathBuf,
    /// Size of the store of blocks at the far end (128K to 4G); rounded to a power of two
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = link_size)]
    pub size: Size,
    /// How long, and what is shown
    #[command(flatten)]
    pub watch: WatchArgs,
}

/// Memory of all caches' directories is limited by this: some 50 bytes for each 4 KiB.
const SIZE_MAX: u64 = 64 << 30;
const TIME_MAX: Duration = Duration::from_secs(7 * 86_400);

fn size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    match (u64::from(BlockSize::PAGE.bytes())..=SIZE_MAX).contains(&size.0) {
        true => Ok(size),
        false => Err("must be between 4K and 64G".to_owned()),
    }
}

fn link_size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    match (128 << 10..=4 << 30).contains(&size.0) {
        true => Ok(Size(1 << size.0.ilog2())),
        false => Err("must be between 128K and 4G".to_owned()),
    }
}

fn devices(text: &str) -> Result<u32, String> {
    let number = text.parse().ok();
    number
        .filter(|number| (1..=DEVICES_MAX).contains(number))
        .ok_or_else(|| format!("must be a whole number between 1 and {DEVICES_MAX}"))
}

fn time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).ok_or("write a time with its unit: 10s, 5m")?;
    match (Duration::from_millis(100)..=TIME_MAX).contains(&time) {
        true => Ok(time),
        false => Err("must be between 100ms and 7d".to_owned()),
    }
}

/// Runs the command.
pub fn run(args: &ContentArgs) -> ExitCode {
    match &args.command {
        ContentCommand::Meter(args) => meter::run(args),
        ContentCommand::Refer(args) => link::refer(args),
        ContentCommand::Resolve(args) => link::resolve(args),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn read(more: &[&str]) -> Result<MeterArgs, clap::Error> {
        let words = ["fairlead", "content", "meter", "--interface", "eth0"];
        let cli = Cli::try_parse_from(words.iter().chain(more))?;
        let Command::Content(ContentArgs {
            command: ContentCommand::Meter(args),
        }) = cli.command
        else {
            panic!("another command");
        };
        Ok(args)
    }

    #[test]
    fn the_papers_cache_is_the_default() {
        let args = read(&[]).expect("valid");
        assert_eq!((args.size, args.devices), (Size(16 << 20), 1));
        assert_eq!((args.policy, args.watch.duration), (Policy::Lru, None));
        let more = ["--port", "80,8080", "--for", "1m", "--policy", "s3-fifo"];
        let args = read(&more).expect("valid");
        assert_eq!(args.port, [80, 8_080]);
        assert_eq!(args.watch.duration, Some(Duration::from_secs(60)));
        assert_eq!(args.policy, Policy::S3Fifo);
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        for (option, value) in [
            ("--size", "1K"),
            ("--size", "65G"),
            ("--devices", "0"),
            ("--devices", "65"),
            ("--for", "10"),
            ("--for", "8d"),
            ("--policy", "best"),
            ("--port", "65536"),
        ] {
            assert!(read(&[option, value]).is_err(), "{option} {value}");
        }
    }
}
