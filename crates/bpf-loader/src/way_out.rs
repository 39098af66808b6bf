//! The way out for what the engine sends: from its TUN device straight to an interface.

use aya::programs::tc::{TcAttachOptions, TcAttachType};
use aya::programs::{LinkOrder, SchedClassifier};
use aya::{Ebpf, EbpfLoader, include_bytes_aligned};

use crate::filter::has_links;
use crate::kernel::LoadError;

static OUT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/fairlead_out.o"));
const PROGRAM: &str = "fairlead_out";

/// Spares what the engine sends the stack's forwarding: the program `bpf/fairlead_out.bpf.c` on the
/// engine's device, for as long as this is there.
#[derive(Debug)]
pub struct WayOut {
    _ebpf: Ebpf,
}

impl WayOut {
    /// Attaches the program to a TUN device of this network namespace. Without it everything works,
    /// by the stack.
    ///
    /// # Errors
    /// [`LoadError::TooOld`] before Linux 6.6, where a program could stay behind on a device that
    /// outlives this process; what the kernel refuses elsewhere.
    pub fn attach(device: &str) -> Result<Self, LoadError> {
        if OUT.is_empty() {
            return Err(LoadError::NotBuiltIn);
        }
        if !has_links() {
            return Err(LoadError::TooOld("6.6"));
        }
        let mut ebpf = EbpfLoader::new().load(OUT)?;
        let program = ebpf.program_mut(PROGRAM);
        let program: &mut SchedClassifier =
            program.ok_or(LoadError::Missing(PROGRAM))?.try_into()?;
        program.load()?;
        let by_link = TcAttachOptions::TcxOrder(LinkOrder::default());
        program.attach_with_options(device, TcAttachType::Ingress, by_link)?;
        Ok(Self { _ebpf: ebpf })
    }
}
