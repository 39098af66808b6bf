//! The packets on both sides of the switch, written to a capture file.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use fairlead_driver_pcap::{CaptureWriter, Passage};

/// Which side of the switch a packet is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg {
    /// Between clients and the switch.
    Client,
    /// Between the switch and servers.
    Server,
}

impl Leg {
    /// Its label in a packet's comment, the same as in `fairlead capture`.
    fn word(self) -> &'static str {
        match self {
            Self::Client => "side=client",
            Self::Server => "side=server",
        }
    }
}

/// The file's only interface. libpcap 1.10 refuses raw IP files with several, so the leg is in each
/// packet's comment.
const INTERFACES: [&str; 1] = ["fairlead"];

/// The packet output, if any.
pub struct Outlet {
    writer: Option<CaptureWriter<Box<dyn Write>>>,
}

impl std::fmt::Debug for Outlet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outlet")
            .field("packets", &self.packets())
            .finish()
    }
}

impl Outlet {
    /// No output.
    pub fn none() -> Self {
        Self { writer: None }
    }

    /// A new file.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn file(path: &Path) -> io::Result<Self> {
        Self::to(File::create(path)?)
    }

    /// Any writer.
    ///
    /// # Errors
    /// The header cannot be written.
    pub fn to(out: impl Write + 'static) -> io::Result<Self> {
        let application = concat!("fairlead ", env!("CARGO_PKG_VERSION"));
        let out = Box::new(BufWriter::with_capacity(256 << 10, out)) as Box<dyn Write>;
        let writer = CaptureWriter::new(out, application, &INTERFACES)?;
        Ok(Self {
            writer: Some(writer),
        })
    }

    /// Packets written.
    pub fn packets(&self) -> u64 {
        self.writer.as_ref().map_or(0, CaptureWriter::packets)
    }

    /// Writes a packet with `missing` uncaptured bytes at its end. The comment, prefixed by the
    /// leg, is built only if there is an output.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(
        &mut self,
        leg: Leg,
        passage: Passage,
        stamp_ns: u64,
        bytes: &[u8],
        missing: usize,
        comment: impl FnOnce() -> String,
    ) -> io::Result<()> {
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        let shown = &bytes[..bytes.len().saturating_sub(missing)];
        let comment = format!("{} {}", leg.word(), comment());
        writer.write(0, passage, stamp_ns, shown, missing, &comment)
    }

    /// Flushes the buffer.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(&mut self) -> io::Result<()> {
        self.writer.as_mut().map_or(Ok(()), CaptureWriter::flush)
    }
}
