//! A first-in first-out queue of fixed capacity, for buffers and descriptors.
//!
//! Promises: never allocates after it was made; entries past its end may be looked at (they
//! hold old values), which makes a look-ahead for prefetching branchless.

/// Numbers in the order they came.
#[derive(Debug)]
pub struct Fifo<T> {
    slots: Box<[T]>,
    head: u32,
    tail: u32,
    mask: u32,
}

impl<T: Copy + Default> Fifo<T> {
    /// Empty, for `capacity` entries (rounded up to a power of two).
    pub fn new(capacity: u32) -> Self {
        let size = capacity.next_power_of_two();
        let slots = vec![T::default(); size as usize].into_boxed_slice();
        Fifo { slots, head: 0, tail: 0, mask: size - 1 }
    }

    /// Entries in it.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Forget all.
    pub fn clear(&mut self) {
        self.head = self.tail;
    }

    /// Add one. There is room: as many entries exist as the capacity.
    #[inline(always)]
    pub fn push(&mut self, value: T) {
        debug_assert!(self.len() <= self.mask);
        self.slots[(self.tail & self.mask) as usize] = value;
        self.tail = self.tail.wrapping_add(1);
    }

    /// Take the oldest.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<T> {
        if self.head == self.tail {
            return None;
        }
        let value = self.slots[(self.head & self.mask) as usize];
        self.head = self.head.wrapping_add(1);
        Some(value)
    }

    /// The entry `ahead` behind the oldest; an old one if there are fewer.
    #[inline(always)]
    pub fn peek(&self, ahead: u32) -> T {
        self.slots[(self.head.wrapping_add(ahead) & self.mask) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_across_the_wrap() {
        let mut fifo = Fifo::<u16>::new(3);
        for round in 0..10 {
            for i in 0..4 {
                fifo.push(round * 4 + i);
            }
            assert_eq!(fifo.len(), 4);
            assert_eq!(fifo.peek(2), round * 4 + 2);
            for i in 0..4 {
                assert_eq!(fifo.pop(), Some(round * 4 + i));
            }
            assert_eq!(fifo.pop(), None);
        }
    }
}
