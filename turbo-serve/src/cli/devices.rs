//! The devices of one process: each is opened once, and whatever runs on it takes turns.

use std::num::NonZeroUsize;

use anyhow::Result;
use turbo_serve::engine::DeviceTurns;

use super::device::{Chosen, NoGpu, Wish};

/// A device that models share. Clones are the same.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) device: Chosen,
    pub(super) turns: DeviceTurns,
}

/// All devices that were asked for. Clones are the same.
#[derive(Clone)]
pub(super) struct Devices(Vec<(Wish, Shared)>);

impl Devices {
    /// Opens what these wishes name; of the CPU so many threads. `tell` hears why a GPU is not used where one might have
    /// been.
    ///
    /// # Errors
    /// When a GPU was asked for that cannot be used, or the processor cannot.
    pub(super) fn open(
        wishes: impl IntoIterator<Item = Wish>,
        threads: Option<NonZeroUsize>,
        tell: impl Fn(NoGpu),
    ) -> Result<Self> {
        let mut opened = Self(Vec::new());
        for wish in wishes {
            if opened.find(wish).is_some() {
                continue;
            }
            let device = Chosen::new(wish, threads, &tell)?;
            // Two names of one device lead to one queue.
            let is = device.wish();
            if opened.find(is).is_none() {
                opened.0.push((is, Shared { device, turns: DeviceTurns::default() }));
            }
            if is != wish {
                opened.0.push((wish, opened.of(is)));
            }
        }
        Ok(opened)
    }

    /// The device of a wish that they were opened with.
    pub(super) fn of(&self, wish: Wish) -> Shared {
        self.find(wish).cloned().expect("every model's device was opened at start")
    }

    /// Threads of this process that are busy while all of them compute.
    pub(super) fn threads(&self) -> NonZeroUsize {
        // The CPU's, where it is among them: a GPU takes one, and that waits most of the time.
        self.0.iter().map(|(_, shared)| shared.device.threads()).max().unwrap_or(NonZeroUsize::MIN)
    }

    fn find(&self, wish: Wish) -> Option<&Shared> {
        self.0.iter().find(|(known, _)| *known == wish).map(|(_, shared)| shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_one_queue_by_whatever_name() {
        for wishes in [[Wish::Auto, Wish::Cpu], [Wish::Cpu, Wish::Auto]] {
            let devices = Devices::open(wishes, NonZeroUsize::new(1), |_| ()).unwrap();
            let cpu = devices.of(Wish::Cpu).turns;
            let _turn = cpu.join().take();
            assert!(devices.of(Wish::Cpu).turns.join().try_take().is_none(), "the CPU is taken");
            let auto = devices.of(Wish::Auto);
            let is_free = auto.turns.join().try_take().is_some();
            assert_eq!(is_free, auto.device.wish() != Wish::Cpu, "a GPU is another, where there is one");
        }
    }

    #[test]
    fn a_gpu_that_is_asked_for_has_to_be_there() {
        let Err(error) = Devices::open([Wish::Cpu, Wish::Cuda(4_000_000)], NonZeroUsize::new(1), |_| ())
        else {
            panic!("there is no such GPU")
        };
        assert!(error.to_string().starts_with("--device cuda:4000000: "), "{error}");
    }
}
