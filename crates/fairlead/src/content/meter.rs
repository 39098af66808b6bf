//! The meter: packets from the kernel, through the driver of the content cache, to a report.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fairlead_bpf_loader::{MeterProgram, MeteredPacket, MeteredPiece};
use fairlead_content::meter::{Meter, Piece, Seen};
use fairlead_content::{Admission, BlockSize, FileId, Revision, SenderConfig};
use fairlead_driver_tun::EndSignals;
use fairlead_survey::{Offload, offloads};

use super::MeterArgs;
use super::live::Live;
use super::view::{Measured, json, table};
use crate::screen::{print_error, print_while_read};

/// Packets between looks at clock and signals.
const BATCH: usize = 4_096;
/// How long the kernel's ring may fill while nothing is read: 8 MiB hold some 20,000 responses.
const PAUSE: Duration = Duration::from_millis(4);
/// Of the directories' hashes.
const SEED: u64 = 0xfa1c;

/// Exit code 0, or 1 if nothing could be measured.
pub(super) fn run(args: &MeterArgs) -> ExitCode {
    match measure(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            print_error(&format!("fairlead content meter: {why}\n"));
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &MeterArgs) -> Result<(), String> {
    let signals = EndSignals::take_over().map_err(|error| format!("signals: {error}"))?;
    // A cache for each device; the directory of it is memory that is there from the start.
    let total = args.size.0.saturating_mul(u64::from(args.devices));
    if total > super::SIZE_MAX {
        return Err("all devices together have at most 64G".to_owned());
    }
    let mut reader = Reader {
        meter: Meter::new(args.devices, config(args)),
        pieces: Vec::new(),
        is_cut: is_cut_before_the_device(&args.interface),
    };
    let mut program = MeterProgram::attach(&args.interface, &args.port)
        .map_err(|error| format!("{}: {error}", args.interface))?;
    let begun = Instant::now();
    let until = args.watch.duration.map(|duration| begun + duration);
    let is_live = !args.watch.json && std::io::stdout().is_terminal();
    if !is_live {
        announce(args);
    }
    let mut live = Live::default();
    let mut next = begun + args.watch.interval;
    loop {
        let read = reader.read(&mut program);
        let now = Instant::now();
        let is_over = until.is_some_and(|until| now >= until);
        let is_ended = signals
            .poll_signal()
            .map_err(|error| error.to_string())?
            .is_some();
        if is_over || is_ended {
            break;
        }
        if is_live && now >= next {
            next = now + args.watch.interval;
            if !live.show(&table(args, &reader.measured(&program, begun))) {
                return Ok(()); // nobody reads
            }
        }
        if read < BATCH {
            std::thread::sleep(PAUSE);
        }
    }
    reader.read(&mut program);
    let measured = reader.measured(&program, begun);
    drop(program);
    match args.watch.json {
        true => {
            print_while_read(&format!("{:#}\n", json(args, &measured)));
        }
        false if is_live => {
            live.show(&table(args, &measured));
        }
        false => {
            print_while_read(&table(args, &measured));
        }
    }
    Ok(())
}

fn config(args: &MeterArgs) -> SenderConfig {
    SenderConfig {
        cache_bytes: args.size.0,
        block: BlockSize::PAGE,
        policy: args.policy,
        admission: Admission::up_to_the_cache(args.size.0),
        seed: SEED,
    }
}

/// Says that packets are counted from now on, and until when.
fn announce(args: &MeterArgs) {
    let end = match args.watch.duration {
        Some(duration) => format!("{} s have passed", duration.as_secs_f64()),
        None => "Ctrl-C".to_owned(),
    };
    print_error(&format!("measuring {} until {end}\n", args.interface));
}

/// True where the kernel cuts super-packets before the device gets them, so that each segment has
/// headers of its own on the bus.
fn is_cut_before_the_device(interface: &str) -> bool {
    offloads(interface).is_ok_and(|found| !found.is_on(Offload::Tso))
}

struct Reader {
    meter: Meter,
    /// Of the packet at hand.
    pieces: Vec<Piece>,
    is_cut: bool,
}

impl Reader {
    /// Reads packets that are there, at most [`BATCH`], and says how many.
    fn read(&mut self, program: &mut MeterProgram) -> usize {
        let mut read = 0;
        while read < BATCH && program.next_with(|packet| self.packet(packet)).is_some() {
            read += 1;
        }
        read
    }

    fn packet(&mut self, packet: &MeteredPacket<'_>) {
        self.pieces.clear();
        self.pieces.extend(packet.pieces().map(piece));
        self.meter.packet(&Seen {
            flow: packet.flow,
            header_bytes: packet.header_bytes,
            segment_bytes: packet.segment_bytes.filter(|_| self.is_cut),
            head: packet.head,
            pieces: &self.pieces,
        });
    }

    fn measured(&self, program: &MeterProgram, begun: Instant) -> Measured {
        let lost = program.lost();
        Measured {
            report: self.meter.report(),
            seconds: begun.elapsed().as_secs_f64(),
            lost_packets: lost.packets,
            lost_bytes: lost.bytes,
        }
    }
}

fn piece(piece: MeteredPiece) -> Piece {
    match piece {
        MeteredPiece::Memory { len } => Piece::Memory { len },
        MeteredPiece::File {
            device,
            inode,
            offset,
            len,
            file_bytes,
            version,
            changed_ns,
            is_dirty,
        } => Piece::File {
            file: FileId { device, inode },
            revision: Revision::of_file(changed_ns, version),
            file_bytes,
            offset,
            len,
            is_dirty,
        },
    }
}
