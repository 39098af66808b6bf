//! Interfaces: where the program is attached, and how.

use aya::programs::tc::{NlOptions, TcAttachOptions, TcAttachType, qdisc_add_clsact};
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, Xdp, XdpMode};

use crate::kernel::{Kernel, LoadError};

/// A way of attaching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// At tc ingress: for interfaces that carry super-packets and partial checksums.
    Tc,
    /// In the driver.
    XdpNative,
    /// Before the stack, for drivers without XDP.
    XdpGeneric,
}

impl Mode {
    /// As in configuration and status.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tc => "tc",
            Self::XdpNative => "xdp",
            Self::XdpGeneric => "xdp-generic",
        }
    }
}

/// Why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{interface}: {mode} refused: {cause}", mode = .mode.name())]
pub struct AttachError {
    /// The interface.
    pub interface: String,
    /// What was tried.
    pub mode: Mode,
    /// What the kernel said.
    pub cause: ProgramError,
}

/// An interface that the program is attached to. It is detached when [`Kernel`] goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The interface's name.
    pub interface: String,
    /// How.
    pub mode: Mode,
}

/// The first of the classifiers at an ingress: before rules that others may have.
const PRIORITY: u16 = 1;

impl Kernel {
    pub(crate) fn load_program(&mut self) -> Result<(), LoadError> {
        match self.mode {
            Mode::Tc => self.classifier()?.load()?,
            Mode::XdpNative | Mode::XdpGeneric => self.xdp()?.load()?,
        }
        Ok(())
    }

    pub(crate) fn classifier(&mut self) -> Result<&mut SchedClassifier, LoadError> {
        let program = self.ebpf.program_mut("fairlead_tc");
        Ok(program
            .ok_or(LoadError::Missing("fairlead_tc"))?
            .try_into()?)
    }

    pub(crate) fn xdp(&mut self) -> Result<&mut Xdp, LoadError> {
        let program = self.ebpf.program_mut("fairlead_xdp");
        Ok(program
            .ok_or(LoadError::Missing("fairlead_xdp"))?
            .try_into()?)
    }

    /// Attaches the program to an interface of this network namespace.
    ///
    /// # Errors
    /// What the kernel refused, and where.
    pub fn attach(&mut self, interface: &str) -> Result<Attachment, AttachError> {
        let mode = self.mode;
        let attached = match mode {
            Mode::Tc => self.attach_tc(interface),
            Mode::XdpNative => self.attach_xdp(interface, XdpMode::Driver),
            Mode::XdpGeneric => self.attach_xdp(interface, XdpMode::Skb),
        };
        attached.map_err(|cause| AttachError {
            interface: interface.to_owned(),
            mode,
            cause,
        })?;
        Ok(Attachment {
            interface: interface.to_owned(),
            mode,
        })
    }

    /// By a link of its own where the kernel has them (6.6): it goes when this process does,
    /// however that ends. Elsewhere as a filter of the `clsact` queueing discipline.
    fn attach_tc(&mut self, interface: &str) -> Result<(), ProgramError> {
        let program = self.classifier().map_err(|_| ProgramError::NotLoaded)?;
        let link = TcAttachOptions::TcxOrder(LinkOrder::default());
        if program
            .attach_with_options(interface, TcAttachType::Ingress, link)
            .is_ok()
        {
            return Ok(());
        }
        // It may be there already, ours of an earlier run or another's: then it serves as it is.
        let _ = qdisc_add_clsact(interface);
        let filter = TcAttachOptions::Netlink(NlOptions {
            priority: PRIORITY,
            ..NlOptions::default()
        });
        program.attach_with_options(interface, TcAttachType::Ingress, filter)?;
        Ok(())
    }

    fn attach_xdp(&mut self, interface: &str, mode: XdpMode) -> Result<(), ProgramError> {
        let program = self.xdp().map_err(|_| ProgramError::NotLoaded)?;
        program.attach(interface, mode)?;
        Ok(())
    }
}
