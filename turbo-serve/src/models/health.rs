//! The health of several models together.

use crate::engine::Health;

/// The worst of them; `None` if there are none.
pub(super) fn worst(all: impl Iterator<Item = Health>) -> Option<Health> {
    all.max_by_key(|health| match health {
        Health::Ready => 0,
        Health::Starting => 1,
        Health::Failing => 2,
        Health::Stopping => 3,
    })
}
