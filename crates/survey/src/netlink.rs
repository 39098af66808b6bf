//! Questions to the kernel over netlink, and the form of its answers.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Octets of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
/// Room for one datagram of answers: the kernel fills up to 32 KiB.
const ANSWER_BYTES: usize = 64 << 10;
/// Maximum datagrams per answer: a machine with 100,000 routes sends some hundreds.
const DATAGRAMS_MAX: usize = 4_096;
/// The kernel answers within microseconds; one that does not in this time is broken.
static PATIENCE: libc::timeval = libc::timeval {
    tv_sec: 5,
    tv_usec: 0,
};

/// One message of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: u16,
    /// What follows the header.
    pub(crate) body: Vec<u8>,
}

/// Asks `question` (a message of `kind`) of one netlink family.
///
/// # Errors
/// The kernel's error, or an invalid answer.
pub(crate) fn ask(
    family: libc::c_int,
    kind: u16,
    dump: bool,
    question: &[u8],
) -> io::Result<Vec<Message>> {
    let socket = open(family)?;
    let flags = NLM_F_REQUEST | if dump { NLM_F_DUMP } else { NLM_F_ACK };
    let length = (HEADER_BYTES + question.len()) as u32;
    let mut request = Vec::with_capacity(length as usize);
    request.extend(length.to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    request.extend([0; 8]);
    request.extend_from_slice(question);
    // SAFETY: an open socket and bytes of the length given.
    let sent = unsafe {
        libc::send(
            socket.as_raw_fd(),
            request.as_ptr().cast(),
            request.len(),
            0,
        )
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut answers = Vec::new();
    let mut room = vec![0; ANSWER_BYTES];
    for _ in 0..DATAGRAMS_MAX {
        // SAFETY: an open socket and room of the length given.
        let got =
            unsafe { libc::recv(socket.as_raw_fd(), room.as_mut_ptr().cast(), room.len(), 0) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        if take(&room[..got as usize], &mut answers)? {
            return Ok(answers);
        }
    }
    Err(io::Error::other("an answer without an end"))
}

fn open(family: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: makes a descriptor, touches no memory of ours.
    let socket = unsafe { libc::socket(libc::AF_NETLINK, kind, family) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just made and that nobody else has.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: an open socket and a structure of the length given.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const PATIENCE).cast(),
            size_of::<libc::timeval>() as u32,
        )
    };
    match set {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes the messages of one datagram; true when the answer is whole.
fn take(mut datagram: &[u8], answers: &mut Vec<Message>) -> io::Result<bool> {
    while datagram.len() >= HEADER_BYTES {
        let length = u32_at(datagram, 0) as usize;
        let kind = u16_at(datagram, 4);
        if length < HEADER_BYTES || length > datagram.len() {
            return Err(io::Error::other("a netlink message of a wrong length"));
        }
        let body = &datagram[HEADER_BYTES..length];
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let errno = u32_at(body, 0) as i32;
                return match errno {
                    0 => Ok(true),
                    _ => Err(io::Error::from_raw_os_error(errno.wrapping_neg())),
                };
            }
            _ => answers.push(Message {
                kind,
                body: body.to_vec(),
            }),
        }
        datagram = &datagram[length.next_multiple_of(4).min(datagram.len())..];
    }
    Ok(false)
}

/// The attributes in `bytes`: types without their flags, and values. What is damaged ends them.
pub(crate) fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        if rest.len() < 4 {
            return None;
        }
        let length = usize::from(u16_at(rest, 0));
        let kind = u16_at(rest, 2) & 0x3fff;
        let value = rest.get(4..length)?;
        rest = &rest[length.next_multiple_of(4).min(rest.len())..];
        Some((kind, value))
    })
}

/// The first attribute of a type.
pub(crate) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// Appends an attribute.
pub(crate) fn push(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    to.extend(((4 + value.len()) as u16).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend_from_slice(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// Text that ends at the first NUL.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|one| *one == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

/// In native byte order; 0 past the end.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let two = bytes.get(at..).and_then(|rest| rest.first_chunk::<2>());
    two.map_or(0, |two| u16::from_ne_bytes(*two))
}

/// As [`u16_at`].
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let four = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    four.map_or(0, |four| u32::from_ne_bytes(*four))
}

/// As [`u16_at`].
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let eight = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>());
    eight.map_or(0, |eight| u64::from_ne_bytes(*eight))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_were_written() {
        let mut bytes = Vec::new();
        push(&mut bytes, 3, b"eth0\0");
        push(&mut bytes, 4, &7u32.to_ne_bytes());
        let read: Vec<_> = attributes(&bytes).collect();
        assert_eq!(read, [(3, &b"eth0\0"[..]), (4, &7u32.to_ne_bytes()[..])]);
        assert_eq!(text(read[0].1), "eth0");
        assert_eq!(attribute(&bytes, 4).map(|four| u32_at(four, 0)), Some(7));
        assert_eq!(attribute(&bytes, 9), None);
    }

    #[test]
    fn damage_ends_the_attributes() {
        for bytes in [&[3u8, 0, 1, 0][..], &[200, 0, 1, 0, 1], &[1], &[]] {
            assert_eq!(attributes(bytes).count(), 0, "{bytes:?}");
        }
    }

    #[test]
    fn datagrams_of_wrong_lengths_are_refused() {
        let mut answers = Vec::new();
        for length in [0u32, 15, 17] {
            let mut datagram = vec![0; 16];
            datagram[..4].copy_from_slice(&length.to_ne_bytes());
            assert!(take(&datagram, &mut answers).is_err(), "{length}");
        }
        assert!(!take(&[1, 2, 3], &mut answers).unwrap());
    }
}
