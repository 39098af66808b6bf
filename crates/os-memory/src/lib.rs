//! Memory that the kernel gives in other ways: an allocator that puts large tables on huge pages,
//! and a file of blocks for the HTTP cache ([`BlockFile`]).
//!
//! # Huge pages
//! A million connections are spread over some hundred MiB and visited at random: with pages of 4
//! KiB nearly every visit also misses the TLB, which on a virtual machine costs more than the cache
//! miss itself. Allocations of [`LARGE_BYTES`] and more are mapped on their own, aligned to
//! [`HUGE_PAGE_BYTES`], and the kernel is advised (`MADV_HUGEPAGE`) to back them by huge pages; if
//! it does not, they still work. Smaller allocations go to the system's allocator.

mod block_file;

pub use block_file::{BlockFile, BlockSender, free_memory_at};

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;

/// From this size on an allocation is mapped on its own.
pub const LARGE_BYTES: usize = 4 << 20;

/// Size and alignment of a huge page.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The allocator; a binary names it in `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct HugePages;

/// Gives memory that is free back to the kernel, as far as the system's allocator can: after a
/// start that has needed more than what follows.
pub fn give_back_free() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it may be called at any time, by any thread, and moves no allocation.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn is_large(layout: &Layout) -> bool {
    layout.size() >= LARGE_BYTES && layout.align() <= HUGE_PAGE_BYTES
}

fn mapped_bytes(size: usize) -> Option<usize> {
    size.checked_next_multiple_of(HUGE_PAGE_BYTES)
}

/// Maps zeroed memory, aligned to a huge page; null on failure.
fn map(size: usize) -> *mut u8 {
    let Some(wanted) = mapped_bytes(size) else {
        return ptr::null_mut();
    };
    let Some(with_slack) = wanted.checked_add(HUGE_PAGE_BYTES) else {
        return ptr::null_mut();
    };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory of ours.
    let base = unsafe { libc::mmap(ptr::null_mut(), with_slack, protection, kind, -1, 0) };
    if base == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    let base = base.cast::<u8>();
    let before = base.align_offset(HUGE_PAGE_BYTES);
    let after = HUGE_PAGE_BYTES - before;
    // SAFETY: `before` bytes from `base`, and `after` bytes behind `before + wanted`, belong to the
    // mapping just made and to nobody yet; both are whole pages. The rest stays mapped.
    unsafe {
        if before > 0 {
            libc::munmap(base.cast(), before);
        }
        let start = base.add(before);
        if after > 0 {
            libc::munmap(start.add(wanted).cast(), after);
        }
        // Only advice: where huge pages are switched off the mapping is as good as any.
        libc::madvise(start.cast(), wanted, libc::MADV_HUGEPAGE);
        start
    }
}

// SAFETY: small allocations are the system's. Large ones are own mappings of at least the requested
// size and alignment, and are recognized by the same layout when they are freed.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            return map(layout.size());
        }
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(&layout) {
            return map(layout.size());
        }
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if is_large(&layout) {
            let bytes = mapped_bytes(layout.size()).unwrap_or(layout.size());
            // SAFETY: a large layout means that `map` made this mapping, of just this size.
            unsafe { libc::munmap(memory.cast(), bytes) };
            return;
        }
        // SAFETY: a small layout means that the system's allocator made it.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller vouches that `new_size` is not zero and does not overflow when
        // rounded up to the alignment.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        if !is_large(&layout) && !is_large(&new_layout) {
            // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`.
            return unsafe { System.realloc(memory, layout, new_size) };
        }
        // SAFETY: the new block is distinct from the old one, both hold at least the bytes that
        // are copied, and the old one is given back with the layout it was made with.
        unsafe {
            let new = self.alloc(new_layout);
            if !new.is_null() {
                ptr::copy_nonoverlapping(memory, new, layout.size().min(new_size));
                self.dealloc(memory, layout);
            }
            new
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: HugePages = HugePages;

    #[test]
    fn large_tables_are_aligned_zeroed_and_may_grow_and_shrink() {
        let mut table = vec![0u64; LARGE_BYTES];
        assert_eq!(table.as_ptr() as usize % HUGE_PAGE_BYTES, 0);
        assert!(table.iter().step_by(511).all(|&word| word == 0));
        for (at, word) in table.iter_mut().enumerate() {
            *word = at as u64;
        }
        table.reserve_exact(LARGE_BYTES);
        assert!(
            table
                .iter()
                .enumerate()
                .all(|(at, &word)| word == at as u64)
        );
        table.truncate(100);
        table.shrink_to_fit();
        assert!(
            table
                .iter()
                .enumerate()
                .all(|(at, &word)| word == at as u64)
        );
    }

    #[test]
    fn small_allocations_grow_into_large_ones() {
        let mut bytes = Vec::new();
        for at in 0..LARGE_BYTES + 3 {
            bytes.push(at as u8);
        }
        assert!(bytes.iter().enumerate().all(|(at, &byte)| byte == at as u8));
    }
}
