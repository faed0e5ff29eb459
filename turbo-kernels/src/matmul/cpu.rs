//! The batched products on the CPU: each head's second factor is packed into panels, its first into tiles, and the tile
//! kernel of [`crate::gemm`] multiplies them.

use super::{BatchedMatMul, HeadStrides, MatMulShape, Rhs};
use crate::{
    KernelError,
    device::{Cpu, CpuQueue, SharedMut},
    gemm::{
        Block, EvenTiles, F32, LaidTiles, Panel, Products, Results, TileRegisters, TileSizes, held_rows,
        multiply, pack_tile, panel_width, tile_values,
    },
    simd::{Kernel, Simd},
};

/// Multiply-adds that are worth a piece: some ten microseconds.
const PIECE_WORK: usize = 1 << 20;

impl BatchedMatMul for Cpu {
    fn batched_matmul(
        &self,
        queue: &mut CpuQueue,
        shape: MatMulShape,
        (a, a_at): (&[f32], HeadStrides),
        (b, b_at, rhs): (&[f32], HeadStrides, Rhs),
        (out, out_at): (&mut [f32], HeadStrides),
    ) -> Result<(), KernelError> {
        let MatMulShape { batch_size, num_heads, num_kv_heads, m, n, k } = shape;
        shape.check([a_at, b_at, out_at], rhs, [a.len(), b.len(), out.len()])?;
        if [batch_size, num_heads, m, n].contains(&0) {
            return Ok(());
        }
        let isa = self.supported_isa();
        let (width, rows) = isa.run(TileSizes);
        let panel_values = n.next_multiple_of(width) * k;
        let groups = batch_size * num_kv_heads;
        let per_piece = (PIECE_WORK / (m * n * k * (num_heads / num_kv_heads)).max(1)).clamp(1, groups);
        let out = SharedMut::new(out);
        Ok(queue.for_each_piece(
            groups.div_ceil(per_piece),
            panel_values + tile_values(rows, k),
            |piece, scratch| {
                let (panels, tile) = scratch.split_at_mut(panel_values);
                for number in piece * per_piece..groups.min((piece + 1) * per_piece) {
                    let group = (number / num_kv_heads, number % num_kv_heads);
                    isa.run(HeadGroup { shape, group, a, a_at, b, b_at, rhs, out, out_at, panels, tile });
                }
            },
        )?)
    }
}

/// The products of one sequence with one head of `b`.
struct HeadGroup<'a> {
    shape: MatMulShape,
    /// Sequence and head of `b`.
    group: (usize, usize),
    a: &'a [f32],
    a_at: HeadStrides,
    b: &'a [f32],
    b_at: HeadStrides,
    rhs: Rhs,
    /// No two heads share a value.
    out: SharedMut<'a, f32>,
    out_at: HeadStrides,
    /// Scratch for the packed `b` and for one packed tile of `a`.
    panels: &'a mut [f32],
    tile: &'a mut [f32],
}

impl Kernel for HeadGroup<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        self.pack_panels(panel_width::<S>());
        let heads = self.shape.num_heads / self.shape.num_kv_heads;
        let (sequence, kv_head) = self.group;
        for head in kv_head * heads..(kv_head + 1) * heads {
            self.multiply(s, (sequence, head));
        }
    }
}

impl HeadGroup<'_> {
    /// The product of one head of `a` with the packed panels.
    #[inline(always)]
    fn multiply<S: Simd>(&mut self, s: S, head: (usize, usize)) {
        let MatMulShape { m, n, k, .. } = self.shape;
        let tiles = EvenTiles::new(m, held_rows::<S>());
        // SAFETY: nothing else multiplies on this thread before this returns.
        let (mut products, mut registers) = (Products::new(), unsafe { TileRegisters::new(s) });
        for number in 0..tiles.count() {
            let rows = tiles.range(number);
            let sources = rows.clone().map(|i| row(self.a, self.a_at, head, i, k));
            pack_tile(sources, k, self.tile);
            let tile = LaidTiles::packed(rows.start, rows.len(), self.tile);
            for first in (0..n).step_by(panel_width::<S>()) {
                let panel = Panel::cached(&self.panels[first * k..]);
                // SAFETY: `products` are borrowed here.
                unsafe {
                    multiply::<S, F32>(
                        s,
                        &mut registers,
                        &tile,
                        panel,
                        Block::whole(k),
                        None,
                        Results::of_one(products.place::<S>()),
                    )
                };
                let columns = panel_width::<S>().min(n - first);
                for (i, line) in rows.clone().zip(products.0.chunks_exact(panel_width::<S>())) {
                    let start = self.out_at.row(head.0, head.1, i) + first;
                    // SAFETY: `check_apart` gave every value an element of its own, and only this call computes the
                    // values of this head.
                    let out = unsafe { self.out.slice(start, columns) };
                    out.copy_from_slice(&line[..columns]);
                }
            }
        }
    }

    /// Packs `b` as the tile kernel reads it: `[panel][k][width]`. Columns past the last one keep what the scratch
    /// held; their products are not stored.
    fn pack_panels(&mut self, width: usize) {
        let MatMulShape { n, k, .. } = self.shape;
        for first in (0..n).step_by(width) {
            let columns = width.min(n - first);
            let panel = &mut self.panels[first * k..][..width * k];
            match self.rhs {
                Rhs::Normal => {
                    for (i, line) in panel.chunks_exact_mut(width).enumerate() {
                        let values = row(self.b, self.b_at, self.group, i, n);
                        line[..columns].copy_from_slice(&values[first..][..columns]);
                    }
                }
                Rhs::Transposed => {
                    for column in 0..columns {
                        let values = row(self.b, self.b_at, self.group, first + column, k);
                        for (line, value) in panel.chunks_exact_mut(width).zip(values) {
                            line[column] = *value;
                        }
                    }
                }
            }
        }
    }
}

/// Row `i` of a head, `len` values; without values it may lie anywhere.
fn row(values: &[f32], at: HeadStrides, (b, h): (usize, usize), i: usize, len: usize) -> &[f32] {
    if len == 0 { &[] } else { &values[at.row(b, h, i)..][..len] }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::{CpuOptions, Device, Isa};

    #[test]
    fn bits_are_those_of_one_chain() {
        let shape = MatMulShape { batch_size: 2, num_heads: 3, num_kv_heads: 3, m: 19, n: 37, k: 29 };
        let MatMulShape { m, n, k, .. } = shape;
        let values = |len: usize| -> Vec<f32> { (0..len).map(|i| (i as f32 * 0.7).sin()).collect() };
        let (a, b) = (values(6 * m * k), values(6 * n * k));
        let at = |rows: usize, columns: usize| HeadStrides {
            first: 0,
            batch_stride: 3 * rows * columns,
            head_stride: rows * columns,
            row_stride: columns,
        };
        for isa in Isa::available() {
            let cpu = Cpu::new(CpuOptions { threads: NonZeroUsize::new(2), isa: Some(isa) }).unwrap();
            let mut out = vec![f32::NAN; 6 * m * n];
            let (a_in, b_in) = ((&a[..], at(m, k)), (&b[..], at(n, k), Rhs::Transposed));
            cpu.batched_matmul(&mut cpu.queue().unwrap(), shape, a_in, b_in, (&mut out, at(m, n))).unwrap();
            let fused = isa != Isa::Portable || crate::simd::PORTABLE_IS_FUSED;
            for (i, got) in out.into_iter().enumerate() {
                let (head, row, column) = (i / (m * n), i / n % m, i % n);
                let want = (0..k).fold(0.0f32, |sum, j| {
                    let (x, y) = (a[(head * m + row) * k + j], b[(head * n + column) * k + j]);
                    if fused { x.mul_add(y, sum) } else { x * y + sum }
                });
                assert_eq!(got.to_bits(), want.to_bits());
            }
        }
    }

    #[test]
    fn values_that_share_an_element_are_refused() {
        let cpu = Cpu::new(CpuOptions::default()).unwrap();
        let shape = MatMulShape { batch_size: 1, num_heads: 1, num_kv_heads: 1, m: 2, n: 2, k: 1 };
        let at = HeadStrides { first: 0, batch_stride: 4, head_stride: 4, row_stride: 1 };
        let mut out = [0.0; 4];
        let answer = cpu.batched_matmul(
            &mut cpu.queue().unwrap(),
            shape,
            (&[1.0; 4], at),
            (&[1.0; 4], at, Rhs::Normal),
            (&mut out, at),
        );
        assert!(matches!(answer, Err(KernelError::Size { argument: "out strides", got: 1, .. })));
    }
}
