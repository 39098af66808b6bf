//! `sendfile`: a range of a file is named, or copied where it has no name.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use fairlead_handoff::{Body, Cid, Command};
use fairlead_offload::layout::{self, FILES, RANGES, SEND_BYTES, line};
use fairlead_offload::piece::RANGE_MAX;
use fairlead_offload::{Piece, Span};
use libc::{c_int, off64_t};

use crate::channel::Channel;
use crate::entry::{Carried, Inner};
use crate::flow::{Outcome, borrowed, cannot_write, post_bytes, post_piece, stop};
use crate::settings::settings;
use crate::table::lock;

/// Smaller pieces are cheaper to copy than to name.
const NAMED_MIN: u64 = 1_024;
/// Where ranges may begin.
const PAGE: u64 = 4_096;

/// A file as the card knows it; `None`: it does not, and has no room for it.
fn number_of(channel: &Channel, file: c_int, about: &std::fs::Metadata) -> Option<u16> {
    let name = (about.dev(), about.ino());
    let mut files = lock(&channel.files);
    // The card keeps it open, so that no other file gets this inode.
    if let Some(at) = files.iter().position(|one| *one == name) {
        return u16::try_from(at).ok();
    }
    let number = u16::try_from(files.len())
        .ok()
        .filter(|number| *number < FILES)?;
    let post = Command::Post {
        len: number,
        address: 0,
    };
    match channel.ask(Cid(0), post, &[borrowed(file)]).ok()?.0 {
        Body::Done(..) => {
            files.push(name);
            Some(number)
        }
        _ => None,
    }
}

/// Sends up to `len` bytes of a file from an offset on.
pub(crate) fn send(
    fd: c_int,
    inner: &mut Inner,
    file: c_int,
    offset: off64_t,
    len: usize,
) -> Outcome {
    let Some(carried) = inner.carried() else {
        return Outcome::Moved;
    };
    if let Some(error) = cannot_write(carried) {
        return Outcome::Failed(error);
    }
    // SAFETY: the program's descriptor, which is not closed here.
    let open = ManuallyDrop::new(unsafe { File::from_raw_fd(file) });
    let about = match open.metadata() {
        Ok(about) if about.is_file() => about,
        // As the kernel says of what has no offsets, and of all else.
        Ok(about) if about.file_type().is_socket() || about.file_type().is_fifo() => {
            return Outcome::Failed(libc::ESPIPE);
        }
        Ok(_) => return Outcome::Failed(libc::EINVAL),
        Err(error) => return Outcome::Failed(error.raw_os_error().unwrap_or(libc::EBADF)),
    };
    let Ok(offset) = u64::try_from(offset) else {
        return Outcome::Failed(libc::EINVAL);
    };
    let len = (len as u64).min(about.len().saturating_sub(offset));
    if len == 0 {
        return Outcome::Done(0);
    }
    if carried.room() == 0 || carried.waiting_ranges() >= RANGES {
        if !carried.channel.look() {
            return Outcome::Failed(carried.take_error(libc::EPIPE));
        }
        stop(fd, carried);
        return Outcome::Later;
    }
    if len >= NAMED_MIN && offset.is_multiple_of(PAGE) && !settings().copies_files {
        let number = number_of(&carried.channel, file, &about);
        if let Some(number) = number
            && let Some(sent) = name_range(carried, number, offset, len)
        {
            return Outcome::Done(sent);
        }
    }
    copy(fd, carried, file, offset, len)
}

fn name_range(carried: &mut Carried, file: u16, offset: u64, len: u64) -> Option<usize> {
    // Whole pages, so that what is left can be named, too.
    let most = u64::from(RANGE_MAX) / PAGE * PAGE;
    let len = len.min(most) as u32;
    let piece = Piece::Range { file, offset, len };
    piece.address()?;
    carried.ranges = carried.ranges.wrapping_add(1);
    let sent = carried.word(line::RANGES_SENT);
    sent.store(carried.ranges, std::sync::atomic::Ordering::Release);
    post_piece(carried, piece);
    Some(len as usize)
}

fn copy(fd: c_int, carried: &mut Carried, file: c_int, offset: u64, len: u64) -> Outcome {
    let part = len.min(u64::from(carried.room())) as u32;
    let span = Span::of(carried.sent, part, SEND_BYTES);
    let buffer = layout::send_at(carried.cid.line());
    let memory = &carried.channel.memory;
    let got = match memory.read_file(borrowed(file), offset, buffer, span) {
        Ok(got) => got,
        Err(error) => return Outcome::Failed(error.raw_os_error().unwrap_or(libc::EIO)),
    };
    if got > 0 {
        post_bytes(carried, got as u32);
    }
    if (got as u64) < len {
        stop(fd, carried);
    }
    Outcome::Done(got)
}
