//! The routes of text-embeddings-inference, as its clients call them. In all bodies, fields that are not named here are
//! ignored, and `null` counts as leaving a field out.

mod classify;
mod embed;
mod info;
mod tokens;

use serde::Deserialize;

use super::target::Target;
use crate::engine::Truncation;

pub(super) use classify::{check_labels, predict};
pub(super) use embed::{compares, embed, embed_all, embed_sparse, similarity};
pub(super) use info::{check as check_health, health, info, metrics};
pub(super) use tokens::{decode, tokenize};

// shared with text-embeddings-inference's gRPC services
pub(crate) use classify::score_function;
pub(crate) use tokens::{Token, tokens};

/// Which end of a long input is cut off.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) enum TruncationDirection {
    #[serde(alias = "left")]
    Left,
    #[serde(alias = "right")]
    Right,
}

/// How a request truncates inputs that are too long. `None` leaves it to the engine: each model of an ensemble may have
/// a default of its own.
pub(super) fn truncation(
    target: &Target,
    truncate: Option<bool>,
    direction: Option<TruncationDirection>,
) -> Option<Truncation> {
    let left = matches!(direction, Some(TruncationDirection::Left));
    if truncate.is_none() && !left {
        return None;
    }
    Some(match (truncate.unwrap_or(target.engine().info().auto_truncate), left) {
        (false, _) => Truncation::Off,
        (true, true) => Truncation::Left,
        (true, false) => Truncation::Right,
    })
}
