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
    /// The word for it in a packet's comment, the one that `fairlead capture` writes.
    fn word(self) -> &'static str {
        match self {
            Self::Client => "side=client",
            Self::Server => "side=server",
        }
    }
}

/// The file's only interface: libpcap 1.10 refuses files of raw IP with several, so that the leg
/// stands in each packet's comment.
const INTERFACES: [&str; 1] = ["fairlead"];

/// Where packets are written, if anywhere.
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
    /// Nowhere.
    pub fn none() -> Self {
        Self { writer: None }
    }

    /// A new file.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn file(path: &Path) -> io::Result<Self> {
        Self::to(File::create(path)?)
    }

    /// Anything that can be written to.
    ///
    /// # Errors
    /// When it cannot be.
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

    /// Writes a packet; of its end, `missing` bytes were never captured. The comment, to which the
    /// leg is added, is only made where it is wanted.
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

    /// Writes out what is buffered.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(&mut self) -> io::Result<()> {
        self.writer.as_mut().map_or(Ok(()), CaptureWriter::flush)
    }
}
