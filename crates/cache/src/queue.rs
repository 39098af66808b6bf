//! Queues of numbered lines as linked lists in arrays.

/// No line.
pub const NONE: u32 = u32::MAX;

/// A queue of lines as a doubly linked list; the head is where newcomers enter. It allocates
/// nothing after it is made.
#[derive(Clone, Debug)]
pub struct Queue {
    /// By line: towards the head, towards the tail.
    links: Vec<[u32; 2]>,
    pub(crate) head: u32,
    pub(crate) tail: u32,
    pub(crate) len: usize,
}

const AHEAD: usize = 0;
const BEHIND: usize = 1;

impl Queue {
    /// An empty queue for lines below `lines`.
    pub fn new(lines: usize) -> Self {
        Self {
            links: vec![[NONE; 2]; lines],
            head: NONE,
            tail: NONE,
            len: 0,
        }
    }

    /// Adds a line that is not in the queue, at the head.
    #[inline]
    pub fn push(&mut self, line: u32) {
        self.links[line as usize] = [NONE, self.head];
        match self.head {
            NONE => self.tail = line,
            head => self.links[head as usize][AHEAD] = line,
        }
        self.head = line;
        self.len += 1;
    }

    /// Removes a line that is in the queue.
    #[inline]
    pub fn remove(&mut self, line: u32) {
        let [ahead, behind] = self.links[line as usize];
        match ahead {
            NONE => self.head = behind,
            ahead => self.links[ahead as usize][BEHIND] = behind,
        }
        match behind {
            NONE => self.tail = ahead,
            behind => self.links[behind as usize][AHEAD] = ahead,
        }
        self.len -= 1;
    }

    /// Moves a line of the queue to the head.
    #[inline]
    pub fn renew(&mut self, line: u32) {
        if self.head != line {
            self.remove(line);
            self.push(line);
        }
    }

    /// The next line towards the head.
    #[inline]
    pub fn ahead(&self, line: u32) -> Option<u32> {
        some(self.links[line as usize][AHEAD])
    }

    /// The line that entered last.
    #[inline]
    pub fn head(&self) -> Option<u32> {
        some(self.head)
    }

    /// The line that entered first.
    #[inline]
    pub fn tail(&self) -> Option<u32> {
        some(self.tail)
    }

    /// Lines in the queue.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without a line.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[inline]
fn some(line: u32) -> Option<u32> {
    (line != NONE).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_leave_in_the_order_in_which_they_were_renewed() {
        let mut queue = Queue::new(4);
        for line in 0..4 {
            queue.push(line);
        }
        queue.renew(0);
        queue.renew(0);
        queue.remove(2);
        assert_eq!((queue.head(), queue.ahead(1)), (Some(0), Some(3)));
        let mut left = Vec::new();
        while let Some(line) = queue.tail() {
            queue.remove(line);
            left.push(line);
        }
        assert_eq!((left, queue.len()), (vec![1, 3, 0], 0));
        assert!(queue.is_empty());
    }
}
