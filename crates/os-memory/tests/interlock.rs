//! The interlock of the paper: bytes that wait in a send queue do not change when their block is
//! used again.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};

use fairlead_http_cache::{BlockSize, Extent, Store};
use fairlead_netns::trial::{Needs, in_namespaces, name_of};
use fairlead_os_memory::BlockFile;

const LINES: u32 = 64;
const BYTES: usize = LINES as usize * 4_096;

fn run<F: FnOnce()>(test: F) {
    in_namespaces(name_of::<F>(), Needs::default(), |_| {}, test);
}

fn fill(file: &mut BlockFile, byte: u8) {
    for line in 0..LINES {
        let at = Extent {
            at: BlockSize::PAGE.offset_of(line),
            len: 4_096,
        };
        assert!(file.write(at, &[byte; 4_096]));
    }
}

/// Sends as much as the queue takes, writes the blocks again, and only then reads. Returns how many
/// of the bytes that arrive are old and new.
fn overwritten(release: bool) -> (usize, usize) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut theirs = listener.accept().unwrap().0;
    ours.set_nonblocking(true).unwrap();
    let mut file = BlockFile::in_memory(BlockSize::PAGE, LINES).unwrap();
    fill(&mut file, b'o');
    let (to, from) = (ours.as_raw_fd(), file.as_fd().as_raw_fd());
    // SAFETY: both descriptors are open, and no offset is passed.
    let sent = unsafe { libc::sendfile(to, from, std::ptr::null_mut(), BYTES) };
    let sent = usize::try_from(sent).expect("the queue takes some");
    if release {
        file.release(&(0..LINES).collect::<Vec<_>>());
    }
    fill(&mut file, b'n');
    let mut bytes = vec![0; sent];
    theirs.read_exact(&mut bytes).unwrap();
    let old = bytes.iter().filter(|byte| **byte == b'o').count();
    (old, sent - old)
}

#[test]
fn released_blocks_do_not_change_what_was_sent() {
    run(|| {
        let (old, new) = overwritten(true);
        assert!(old > 4_096 && new == 0, "{old} old bytes, {new} new ones");
        // Without the release the test would find it.
        let (_, new) = overwritten(false);
        assert!(new > 0, "written pages are sent as they are");
    });
}
