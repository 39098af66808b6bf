//! Bytes on their way from one connection to another.

/// Bytes of a [`Buffer`]: a head of the greatest length that can be configured fits.
pub const BLOCK_BYTES: usize = 64 << 10;

/// The blocks that buffers share, so that a connection without bytes takes no memory.
#[derive(Debug)]
pub(crate) struct Stock {
    free: Vec<Box<[u8]>>,
    /// Blocks in use.
    used: usize,
    most: usize,
}

/// Blocks that are kept for the next use, at most.
const FREE_MAX: usize = 256;

impl Stock {
    /// At most this many bytes of blocks.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let most = usize::try_from(bytes_max).unwrap_or(usize::MAX) / BLOCK_BYTES;
        Self {
            free: Vec::new(),
            used: 0,
            most: most.max(2),
        }
    }

    fn take(&mut self) -> Option<Box<[u8]>> {
        if self.used == self.most {
            return None;
        }
        self.used += 1;
        let block = self.free.pop();
        Some(block.unwrap_or_else(|| vec![0; BLOCK_BYTES].into_boxed_slice()))
    }

    fn put(&mut self, block: Box<[u8]>) {
        debug_assert!(self.used > 0, "a block came back that was not taken");
        self.used -= 1;
        if self.free.len() < FREE_MAX {
            self.free.push(block);
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.used < self.most
    }

    /// Blocks in use.
    pub(crate) fn used(&self) -> usize {
        self.used
    }
}

/// First in, first out. Has a block of the stock while it has bytes.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    block: Option<Box<[u8]>>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// What is in it.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.block {
            Some(block) => &block[self.start..self.end],
            None => &[],
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(crate) fn has_block(&self) -> bool {
        self.block.is_some()
    }

    /// Where the next bytes go; `None` where it is full, or the stock is empty.
    pub(crate) fn space(&mut self, stock: &mut Stock) -> Option<&mut [u8]> {
        if self.block.is_none() {
            self.block = Some(stock.take()?);
        }
        // A few bytes at the end of the block are not waited for.
        if self.end == BLOCK_BYTES && self.start > 0 && self.len() <= BLOCK_BYTES / 4 {
            let kept = self.start..self.end;
            self.block.as_mut()?.copy_within(kept, 0);
            (self.start, self.end) = (0, self.len());
        }
        let block = self.block.as_mut()?;
        let space = &mut block[self.end..];
        (!space.is_empty()).then_some(space)
    }

    /// This number of bytes was written into the space.
    pub(crate) fn filled(&mut self, bytes: usize) {
        self.end += bytes;
        assert!(
            self.end <= BLOCK_BYTES,
            "more was written than there is room"
        );
    }

    /// The first bytes are not needed any more.
    pub(crate) fn consume(&mut self, bytes: usize, stock: &mut Stock) {
        assert!(bytes <= self.len(), "more was taken than there is");
        self.start += bytes;
        self.rest(stock);
    }

    /// Gives the block back if nothing is in it.
    pub(crate) fn rest(&mut self, stock: &mut Stock) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if let Some(block) = self.block.take() {
                stock.put(block);
            }
        }
    }

    /// Drops what is in it.
    pub(crate) fn clear(&mut self, stock: &mut Stock) {
        self.start = self.end;
        self.rest(stock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_as_they_went_in_and_blocks_go_back() {
        let mut stock = Stock::new(2 * BLOCK_BYTES as u64);
        let mut buffer = Buffer::default();
        let (mut next_in, mut next_out) = (0_u32, 0_u32);
        for round in 0..2_000_usize {
            if let Some(space) = buffer.space(&mut stock) {
                let fits = space.len().min((round * 7919) % 9_000);
                for byte in &mut space[..fits] {
                    *byte = next_in as u8;
                    next_in += 1;
                }
                buffer.filled(fits);
            }
            let out = buffer.len().min((round * 104_729) % 8_000);
            for byte in &buffer.bytes()[..out] {
                assert_eq!(*byte, next_out as u8);
                next_out += 1;
            }
            buffer.consume(out, &mut stock);
            assert_eq!(buffer.len(), (next_in - next_out) as usize);
            assert_eq!(stock.used(), usize::from(buffer.block.is_some()));
        }
        assert!(next_out > 1_000_000);
        buffer.clear(&mut stock);
        assert_eq!(stock.used(), 0);
    }

    #[test]
    fn a_stock_has_an_end() {
        let mut stock = Stock::new(2 * BLOCK_BYTES as u64);
        let mut all: [Buffer; 3] = Default::default();
        let got = all.each_mut().map(|one| one.space(&mut stock).is_some());
        assert_eq!(got, [true, true, false]);
        all[0].rest(&mut stock);
        assert!(all[2].space(&mut stock).is_some());
    }
}
