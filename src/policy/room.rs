//! Free memory at home, by the sizes that it comes in.
//!
//! A page needs a frame of its own size. Memory that was another size is given back to the driver and made anew, which
//! takes longer than most calls; so what goes should be of the sizes that come.

/// Free frames of each size, and memory that was not made yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Sizes, and how many frames of each.
    frames: Vec<(u64, u64)>,
    loose: u64,
}

impl Room {
    /// Memory that was not made yet, in bytes.
    pub fn of_loose(loose: u64) -> Room {
        Room { frames: Vec::new(), loose }
    }

    /// A frame of this size is free, or will be.
    pub fn add(&mut self, bytes: u64) {
        match self.frames.iter_mut().find(|(size, _)| *size == bytes) {
            Some((_, count)) => *count += 1,
            None => self.frames.push((bytes, 1)),
        }
    }

    /// All of it, in bytes.
    pub fn total(&self) -> u64 {
        self.loose + self.frames.iter().map(|(size, count)| size * count).sum::<u64>()
    }

    /// Whether a page of this size has a frame, or memory that can become one at once.
    pub fn fits(&self, bytes: u64) -> bool {
        self.loose >= bytes || self.frames.iter().any(|(size, count)| *size == bytes && *count > 0)
    }

    /// Takes a frame of just this size; whether there was one.
    pub fn take_frame(&mut self, bytes: u64) -> bool {
        let found = self.frames.iter_mut().find(|(size, count)| *size == bytes && *count > 0);
        found.map(|(_, count)| *count -= 1).is_some()
    }

    /// Takes that many bytes for one page, from frames of other sizes where there is nothing better; whether there are
    /// so many.
    pub fn take(&mut self, bytes: u64) -> bool {
        if self.take_frame(bytes) {
            return true;
        }
        if self.total() < bytes {
            return false;
        }
        while self.loose < bytes
            && let Some((size, count)) = self.frames.iter_mut().find(|(_, count)| *count > 0)
        {
            *count -= 1;
            self.loose += *size;
        }
        self.loose -= bytes;
        true
    }

    /// Takes bytes for others, as far as there are any.
    pub fn reserve(&mut self, bytes: u64) {
        let bytes = bytes.min(self.total());
        self.take(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_takes_a_frame_of_its_size_before_memory_and_others_last() {
        let mut room = Room::of_loose(10);
        [32, 18, 32].into_iter().for_each(|size| room.add(size));
        assert_eq!((room.total(), room.fits(18), room.fits(11)), (92, true, false));
        assert!(room.take(18) && room.total() == 74 && !room.fits(18));
        assert!(room.take(10) && room.total() == 64, "from memory that was not made yet");
        assert!(room.take(18) && room.total() == 46, "a frame of 32 became one of 18 and a rest");
        assert!(room.fits(32) && room.fits(14) && !room.fits(15));
        assert!(!room.take(47) && room.total() == 46);
        room.reserve(100);
        assert_eq!(room.total(), 0);
    }
}
