//! Nothing is allocated after a sender and a device are made.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use fairlead_base::Rng;
use fairlead_content::{
    Admission, BlockSize, Device, Extent, FileId, Flags, HostAddress, Limits, Part, Piece, Policy,
    Revision, Sender, SenderConfig, Store,
};

struct Counting;

thread_local! {
    /// Of this thread: the test harness has another one, which may allocate at any time.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches only
// a number of the calling thread, which needs no memory from here.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `alloc` above, which is the system's.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Memory whose contents do not matter, as in the paper's prototype.
#[derive(Debug)]
struct Discard;

const LINES: u64 = 256;

impl Store for Discard {
    fn cache_bytes(&self) -> u64 {
        LINES * 4_096
    }

    fn insert(&mut self, _from: HostAddress, _to: Extent) {}

    fn send(&mut self, _piece: Piece, _flags: Flags) {}
}

fn send(policy: Policy) -> (u64, u64) {
    let mut sender = Sender::new(SenderConfig {
        cache_bytes: LINES * 4_096,
        block: BlockSize::PAGE,
        policy,
        admission: Admission::up_to_the_cache(LINES * 4_096),
        seed: 1,
    });
    let mut device = Device::new(Discard, BlockSize::PAGE, Limits::default());
    let init = fairlead_content::Command::Init.encode().expect("fits");
    device.submit(init).expect("room");
    let mut rng = Rng::new(2);
    let before = ALLOCATIONS.get();
    for _ in 0..50_000 {
        let inode = u64::from(rng.below(400).min(rng.below(400)));
        let file_bytes = 3_000 + 100 * inode;
        let offset = u64::from(rng.below(file_bytes as u32));
        let from = HostAddress((inode << 20) + offset);
        let parts = [
            Part::NetworkHeader { from, len: 54 },
            Part::File {
                file: FileId { device: 1, inode },
                revision: Revision(u64::from(rng.chance(10_000))),
                file_bytes,
                offset,
                from,
                len: 1_460.min(file_bytes - offset) as u32,
            },
        ];
        sender.packet(&parts, true, &mut |command| {
            if let Some(descriptor) = command.encode() {
                device.submit(descriptor).expect("room");
            }
        });
        device.run();
        device.transmit();
        while device.poll_complete().is_some() {}
    }
    (ALLOCATIONS.get() - before, sender.counts().evictions)
}

#[test]
fn packets_are_sent_without_an_allocation() {
    for policy in Policy::ALL {
        let (allocations, evictions) = send(policy);
        assert!(evictions > 1_000, "{policy}: {evictions} evictions");
        assert_eq!(allocations, 0, "{policy}");
    }
}
