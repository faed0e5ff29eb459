//! Conditions that bytes meet before any device hands out a view of them.

use super::{DeviceError, Element, Span};

/// Checks that `len` values from byte `offset` on are aligned and lie inside a block of `block_bytes` bytes, which is
/// itself aligned to [`super::ALIGNMENT`].
///
/// # Errors
/// [`DeviceError::Bounds`], [`DeviceError::Misaligned`].
pub(crate) fn check_inside<T: Element>(
    block_bytes: usize,
    offset: usize,
    len: usize,
) -> Result<(), DeviceError> {
    let end = len.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset));
    if end.is_none_or(|end| end > block_bytes) {
        return Err(DeviceError::Bounds { offset, end: end.unwrap_or(usize::MAX), block_bytes });
    }
    if !offset.is_multiple_of(align_of::<T>()) {
        return Err(DeviceError::Misaligned { offset, alignment: align_of::<T>() });
    }
    Ok(())
}

/// Checks that no written span shares bytes with another span.
///
/// # Errors
/// [`DeviceError::Overlap`].
pub(crate) fn check_apart(reads: &[Span], writes: &[Span]) -> Result<(), DeviceError> {
    for (i, written) in writes.iter().enumerate() {
        let others = reads.iter().chain(&writes[i + 1..]);
        if let Some(other) = others.into_iter().find(|other| overlap(written, other)) {
            return Err(DeviceError::Overlap { written: *written, other: *other });
        }
    }
    Ok(())
}

/// The block of `span` and the span's number of values.
///
/// # Errors
/// [`DeviceError::NoBlock`] when the block does not exist, [`DeviceError::PartialElement`] when the span ends inside a
/// value.
pub(crate) fn block_of<'b, T: Element, B>(
    blocks: &'b [B],
    span: &Span,
) -> Result<(&'b B, usize), DeviceError> {
    if !span.bytes.is_multiple_of(size_of::<T>()) {
        return Err(DeviceError::PartialElement { bytes: span.bytes, element_bytes: size_of::<T>() });
    }
    let missing = DeviceError::NoBlock { block: span.block, blocks: blocks.len() };
    let block = blocks.get(span.block).ok_or(missing)?;
    Ok((block, span.bytes / size_of::<T>()))
}

fn overlap(a: &Span, b: &Span) -> bool {
    let empty = a.bytes == 0 || b.bytes == 0;
    let end = |span: &Span| span.offset.saturating_add(span.bytes);
    !empty && a.block == b.block && a.offset < end(b) && b.offset < end(a)
}
