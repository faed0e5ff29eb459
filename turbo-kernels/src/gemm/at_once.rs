//! How many products of a max-pool a GPU holds at once: what its memory has to have room for.
//!
//! In: rows and columns of the product. Out: values of scratch.

/// The most values of products that [`Gemm::gemm_max_pool`](super::Gemm::gemm_max_pool) holds at once: more make no
/// call faster. It is small in tests, so that a case has several such parts.
pub(super) const MOST_PRODUCTS: usize = if cfg!(test) { 1 << 12 } else { 1 << 26 };
/// The columns held at once are a multiple of this, so that their rows begin where wide accesses do.
pub(super) const COLUMNS: usize = 64;

/// Room for the products of `rows` rows that a GPU holds at once: somewhat more than they take, so that fewer rows
/// never need more.
#[must_use]
pub fn products_at_once(rows: usize, out_features: usize) -> usize {
    let columns = out_features.checked_next_multiple_of(COLUMNS).unwrap_or(usize::MAX);
    rows.saturating_mul(COLUMNS).max(rows.saturating_mul(columns).min(MOST_PRODUCTS))
}
