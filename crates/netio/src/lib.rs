//! Traits between drivers and the core, for receiving and transmitting packets.
//!
//! A driver implements [`RxQueue`] and [`TxQueue`]. Middleware ([`Faults`], [`Tee`]) implements the
//! same traits around another queue, transparently for driver and caller.
//!
//! Absent by design: sockets, clocks, threads, files, random sources. Time is an argument, chance
//! a seed.
#![forbid(unsafe_code)]

mod batch;
mod fault;
mod memory;
mod tee;

pub use batch::Batch;
pub use fault::{FaultCounts, FaultPlan, Faults};
pub use memory::{MemoryFull, MemoryQueue};
pub use tee::{Direction, Sink, Tee};

use fairlead_base::{Instant, Packet};

/// A source of packets.
pub trait RxQueue {
    /// What can go wrong with the queue as a whole. A single bad packet is no error: the driver
    /// counts it and goes on.
    type Error: core::error::Error + Send + Sync + 'static;

    /// Appends packets that have arrived to `batch`, until it is full or none is left, and says
    /// how many. Never waits: `Ok(0)` with room in the batch means that nothing is there now.
    ///
    /// `now` is the caller's clock, read once a batch.
    fn receive(&mut self, now: Instant, batch: &mut Batch) -> Result<usize, Self::Error>;
}

/// A transmit queue.
pub trait TxQueue {
    /// Why a packet was refused. It is lost, as on a wire; the caller counts it and continues.
    type Error: core::error::Error + Send + Sync + 'static;

    /// Takes one packet. Queues that collect packets send them at [`Self::flush`] at the latest.
    /// The packet's contents are read only; drivers that must finish a checksum do so in their
    /// own memory.
    fn transmit(&mut self, now: Instant, packet: &Packet) -> Result<(), Self::Error>;

    /// Flushes collected packets. Call it after every batch.
    fn flush(&mut self, now: Instant) -> Result<(), Self::Error>;
}

impl<Q: RxQueue + ?Sized> RxQueue for &mut Q {
    type Error = Q::Error;
    fn receive(&mut self, now: Instant, batch: &mut Batch) -> Result<usize, Self::Error> {
        (**self).receive(now, batch)
    }
}

impl<Q: TxQueue + ?Sized> TxQueue for &mut Q {
    type Error = Q::Error;
    fn transmit(&mut self, now: Instant, packet: &Packet) -> Result<(), Self::Error> {
        (**self).transmit(now, packet)
    }
    fn flush(&mut self, now: Instant) -> Result<(), Self::Error> {
        (**self).flush(now)
    }
}
