//! Interfaces: where the program is attached, and how.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

use aya::pin::PinError;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{SchedClassifierLink, TcAttachOptions, TcAttachType, TcError, TcHandle};
use aya::programs::xdp::XdpLink;
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, Xdp, XdpMode};

use crate::filter;
use crate::interfaces::{interface_index, interface_name};
use crate::kernel::{Kernel, LoadError};
use crate::pins;

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
    #[source]
    pub cause: ProgramError,
}

impl AttachError {
    /// True when the driver has no such way at all.
    pub fn is_unsupported(&self) -> bool {
        let mut cause: Option<&(dyn Error + 'static)> = self.source();
        while let Some(one) = cause {
            let said = one.downcast_ref::<io::Error>();
            if said.is_some_and(|error| error.kind() == io::ErrorKind::Unsupported) {
                return true;
            }
            cause = one.source();
        }
        false
    }
}

/// An interface that the program is attached to. It is detached when [`Kernel`] goes, unless its
/// link is pinned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The interface's name.
    pub interface: String,
    /// How.
    pub mode: Mode,
}

/// A link that ends with this.
#[derive(Debug)]
pub(crate) enum Held {
    Tc(#[expect(dead_code, reason = "kept for its end")] SchedClassifierLink),
    Xdp(#[expect(dead_code, reason = "kept for its end")] XdpLink),
}

impl Kernel {
    pub(crate) fn load_program(&mut self) -> Result<(), LoadError> {
        match self.mode {
            Mode::Tc => self.classifier()?.load()?,
            Mode::XdpNative | Mode::XdpGeneric => self.xdp()?.load()?,
        }
        Ok(())
    }

    pub(crate) fn classifier(&mut self) -> Result<&mut SchedClassifier, LoadError> {
        let program = self.ebpf.program_mut(TC_PROGRAM);
        Ok(program.ok_or(LoadError::Missing(TC_PROGRAM))?.try_into()?)
    }

    pub(crate) fn xdp(&mut self) -> Result<&mut Xdp, LoadError> {
        let program = self.ebpf.program_mut(XDP_PROGRAM);
        Ok(program.ok_or(LoadError::Missing(XDP_PROGRAM))?.try_into()?)
    }

    /// Says whose the program is, which a later run of the instance takes the place of where it
    /// outlives this process without being pinned (tc before Linux 6.6).
    pub fn set_instance(&mut self, instance: &str) {
        self.instance = Some(instance.to_owned());
    }

    /// Attaches the program to an interface of this network namespace, if it is not there yet.
    ///
    /// # Errors
    /// What the kernel refused, and where.
    pub fn attach(&mut self, interface: &str) -> Result<Attachment, AttachError> {
        let mode = self.mode;
        let there = interface_index(interface).is_some_and(|index| self.held.contains_key(&index));
        let attached = match mode {
            _ if there => Ok(()),
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

    /// By a link of its own where the kernel has them (6.6), else as a filter.
    fn attach_tc(&mut self, interface: &str) -> Result<(), ProgramError> {
        if !filter::has_links() {
            return self.attach_filter(interface);
        }
        let pin = self.pin_of(interface);
        let program = self.classifier().map_err(|_| ProgramError::NotLoaded)?;
        if let Some(link) = pin.as_deref().and_then(pinned::<SchedClassifierLink>)
            && let Ok(link) = program.attach_to_link(link)
        {
            // The pin keeps the link; this process needs no hold on it.
            return program.take_link(link).map(drop);
        }
        let options = TcAttachOptions::TcxOrder(LinkOrder::default());
        let link = program.attach_with_options(interface, TcAttachType::Ingress, options)?;
        let link = program.take_link(link)?;
        match pin {
            Some(pin) => hold(link, &pin),
            None => {
                self.keep(interface, Held::Tc(link));
                Ok(())
            }
        }
    }

    /// A filter stays until somebody removes it, and only its note leads there: so wherever a start
    /// is ended, there is a note while there is a filter.
    fn attach_filter(&mut self, interface: &str) -> Result<(), ProgramError> {
        let note = self.pin_of(interface);
        let handle = match &self.instance {
            Some(instance) => filter::handle(&pins::folder_of(instance)),
            None => TcHandle::AUTO_ASSIGN,
        };
        let program = self.classifier().map_err(|_| ProgramError::NotLoaded)?;
        let Some(note) = note else {
            let link = filter::attach(program, interface, handle)?;
            self.keep(interface, Held::Tc(link));
            return Ok(());
        };
        let is_first = !note.exists();
        if is_first {
            program.pin(&note).map_err(pin_failed)?;
        }
        let attached = filter::attach(program, interface, handle);
        // The link's end would be the filter's.
        let attached = attached.map(std::mem::forget);
        if is_first {
            return attached.inspect_err(|_| {
                let _ = std::fs::remove_file(&note);
            });
        }
        attached?;
        // In one step in the place of the note of the program before this one.
        let new = note.with_file_name("new-note");
        let _ = std::fs::remove_file(&new);
        program.pin(&new).map_err(pin_failed)?;
        Ok(std::fs::rename(&new, &note).map_err(TcError::IoError)?)
    }

    fn attach_xdp(&mut self, interface: &str, mode: XdpMode) -> Result<(), ProgramError> {
        let pin = self.pin_of(interface);
        let other = self.pin_of_other_xdp(interface);
        let program = self.xdp().map_err(|_| ProgramError::NotLoaded)?;
        if let Some(link) = pin.as_deref().and_then(pinned::<XdpLink>)
            && let Ok(link) = program.attach_to_link(link)
        {
            // The pin keeps the link; this process needs no hold on it.
            return program.take_link(link).map(drop);
        }
        // An interface has room for one program only.
        if let Some(other) = other {
            let _ = pins::remove(&other);
        }
        let link = program.attach(interface, mode)?;
        let link = program.take_link(link)?;
        match pin {
            Some(pin) => hold(link, &pin),
            None => {
                self.keep(interface, Held::Xdp(link));
                Ok(())
            }
        }
    }

    /// Has a link for as long as this lives, or until the interface is gone: the program would have
    /// the old ones for as long as it lives, a descriptor each.
    fn keep(&mut self, interface: &str, link: Held) {
        if let Some(index) = interface_index(interface) {
            self.held.insert(index, link);
        }
    }

    /// Where the link to an interface is pinned, if links are.
    fn pin_of(&self, interface: &str) -> Option<PathBuf> {
        let index = interface_index(interface)?;
        Some(self.pins.as_ref()?.link(self.mode, index))
    }

    fn pin_of_other_xdp(&self, interface: &str) -> Option<PathBuf> {
        let other = match self.mode {
            Mode::Tc => return None,
            Mode::XdpNative => Mode::XdpGeneric,
            Mode::XdpGeneric => Mode::XdpNative,
        };
        let index = interface_index(interface)?;
        Some(self.pins.as_ref()?.link(other, index))
    }

    /// Ends the program's work at interfaces and by ways that are not this run's: what an earlier
    /// run left and this one has not taken over. Says which.
    pub fn detach_others(&mut self, attached: &[Attachment]) -> Vec<String> {
        let Some(pins) = &self.pins else {
            return Vec::new();
        };
        let ours = attached.iter().filter_map(|one| {
            let index = interface_index(&one.interface)?;
            Some(pins.link(one.mode, index))
        });
        let ours: Vec<PathBuf> = ours.collect();
        let others = pins.links().into_iter().filter(|one| !ours.contains(one));
        let removed = others.filter(|other| pins::remove(other).is_ok());
        removed.map(|other| other.display().to_string()).collect()
    }

    /// Removes links whose interfaces are gone, and says how many of them were pinned. An interface
    /// that comes back is another to the kernel and gets a link of its own, so that the old ones
    /// would stay for as long as this run. One that was moved to another network namespace has kept
    /// the program, which would answer for addresses that may be somebody else's there.
    pub fn forget_gone(&mut self) -> usize {
        let is_gone = |interface: u32| interface_name(interface).is_none();
        self.held.retain(|interface, _| !is_gone(*interface));
        let links = self.pins.iter().flat_map(|pins| pins.links());
        let gone = links.filter(|link| pins::at(link).is_ok_and(|(_, index)| is_gone(index)));
        gone.filter(|link| pins::remove(link).is_ok()).count()
    }
}

/// A link that an earlier run pinned.
fn pinned<L: TryFrom<FdLink>>(pin: &Path) -> Option<L> {
    let link = PinnedLink::from_pin(pin).ok()?;
    L::try_from(FdLink::from(link)).ok()
}

/// Lets a link outlive this process.
pub(crate) fn hold<L>(link: L, pin: &Path) -> Result<(), ProgramError>
where
    FdLink: TryFrom<L>,
{
    // Before links, XDP programs stay without being pinned.
    let Ok(link) = FdLink::try_from(link) else {
        return Ok(());
    };
    // One of an interface that is gone, whose index has been given to another.
    let _ = std::fs::remove_file(pin);
    link.pin(pin).map_err(pin_failed)?;
    Ok(())
}

fn pin_failed(error: PinError) -> TcError {
    TcError::IoError(std::io::Error::other(error.to_string()))
}

pub(crate) const TC_PROGRAM: &str = "fairlead_tc";
pub(crate) const XDP_PROGRAM: &str = "fairlead_xdp";
