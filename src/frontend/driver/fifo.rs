//! A first-in first-out queue of fixed capacity, for buffers and descriptors.
//!
//! Promises: never allocates after it was made; what a loop takes or adds goes through a
//! [`Reader`] or [`Writer`], which keep their place in a register and put it back when they are
//! dropped. Entries past the end may be looked at (they hold old values), which makes a
//! look-ahead for prefetching branchless.

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

    /// To add entries. There is room: as many exist as the capacity.
    #[inline(always)]
    pub fn writer(&mut self) -> Writer<'_, T> {
        let Fifo { slots, tail, mask, .. } = self;
        Writer { at: *tail, slots: &mut slots[..=*mask as usize], tail, mask: *mask }
    }

    /// To take entries, the oldest first.
    #[inline(always)]
    pub fn reader(&mut self) -> Reader<'_, T> {
        let Fifo { slots, head, mask, .. } = self;
        Reader { at: *head, slots: &slots[..=*mask as usize], head, mask: *mask }
    }

    /// Take the oldest.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.len() == 0 { None } else { Some(self.reader().take()) }
    }

    /// The oldest; an old one if there is none.
    #[inline]
    pub fn oldest(&self) -> T {
        self.slots[(self.head & self.mask) as usize]
    }
}

/// Adds entries to a [`Fifo`].
pub struct Writer<'a, T> {
    slots: &'a mut [T],
    tail: &'a mut u32,
    at: u32,
    mask: u32,
}

impl<T> Writer<'_, T> {
    /// Add one.
    #[inline(always)]
    pub fn push(&mut self, value: T) {
        self.slots[(self.at & self.mask) as usize] = value;
        self.at = self.at.wrapping_add(1);
    }
}

impl<T> Drop for Writer<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.tail = self.at;
    }
}

/// Takes entries from a [`Fifo`].
pub struct Reader<'a, T> {
    slots: &'a [T],
    head: &'a mut u32,
    at: u32,
    mask: u32,
}

impl<T: Copy> Reader<'_, T> {
    /// Take the next entry, of which the caller knows that there is one.
    #[inline(always)]
    pub fn take(&mut self) -> T {
        let value = self.peek(0);
        self.at = self.at.wrapping_add(1);
        value
    }

    /// The entry `ahead` behind the next; an old one past the end.
    #[inline(always)]
    pub fn peek(&self, ahead: u32) -> T {
        self.slots[(self.at.wrapping_add(ahead) & self.mask) as usize]
    }
}

impl<T> Drop for Reader<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        *self.head = self.at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_across_the_wrap() {
        let mut fifo = Fifo::<u16>::new(3);
        for round in 0..10 {
            let mut writer = fifo.writer();
            for i in 0..4 {
                writer.push(round * 4 + i);
            }
            drop(writer);
            assert_eq!((fifo.len(), fifo.oldest()), (4, round * 4));
            let mut reader = fifo.reader();
            assert_eq!((reader.take(), reader.peek(1)), (round * 4, round * 4 + 2));
            drop(reader);
            for i in 1..4 {
                assert_eq!(fifo.pop(), Some(round * 4 + i));
            }
            assert_eq!(fifo.pop(), None);
        }
    }
}
