//! A build without support for GPUs.

use anyhow::Result;

use super::OnDevice;
use crate::cli::model_arguments::Dtype;

const WHY: &str = "this build has no GPU support (cargo feature `cuda`)";

/// There is none.
#[derive(Clone)]
pub(in crate::cli) enum Gpu {}

impl Gpu {
    pub(super) fn new(_: u32) -> Result<Self, &'static str> {
        Err(WHY)
    }

    pub(super) fn first() -> Result<(Self, u32), &'static str> {
        Err(WHY)
    }

    pub(super) fn free_bytes(&self) -> Result<Option<u64>> {
        match *self {}
    }

    pub(super) fn run<W: OnDevice>(self, _: W, _: Dtype) -> Result<W::Output> {
        match self {}
    }
}

/// It is not looked for.
pub(super) fn has_driver(_: &&str) -> bool {
    false
}

/// What `turbo devices` says of them.
pub(super) fn list() -> String {
    format!("\ncuda: not available: {WHY}")
}
