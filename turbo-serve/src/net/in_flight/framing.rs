//! Finding the ends of gRPC messages.

/// A complete message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// Its bytes, including its head.
    pub(super) bytes: usize,
    pub(super) is_packed: bool,
}

/// Finds the ends of gRPC messages. Each message has a head: one byte that says whether it is packed, and four bytes of
/// its length, big-endian.
#[derive(Default)]
pub(super) struct Framing {
    head: Vec<u8>,
    /// Bytes of the message that are still to arrive, once its head is complete.
    left: usize,
}

impl Framing {
    const HEAD: usize = 5;

    /// All messages that end in this piece of data.
    pub(super) fn ends(&mut self, mut data: &[u8]) -> Vec<Ended> {
        let mut ended = Vec::new();
        while !data.is_empty() {
            if self.head.len() < Self::HEAD {
                self.head.push(data[0]);
                data = &data[1..];
                self.left = self.len();
            } else {
                let taken = self.left.min(data.len());
                self.left -= taken;
                data = &data[taken..];
            }
            if self.head.len() == Self::HEAD && self.left == 0 {
                ended.push(Ended { bytes: Self::HEAD + self.len(), is_packed: self.head[0] != 0 });
                self.head.clear();
            }
        }
        ended
    }

    /// The message's length according to its head.
    fn len(&self) -> usize {
        let len = self.head.get(1..Self::HEAD).and_then(|len| len.try_into().ok());
        len.map_or(0, |len| u32::from_be_bytes(len) as usize)
    }
}
