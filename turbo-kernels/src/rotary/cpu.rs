//! Rotary positions on the CPU. No lane depends on another.

use super::Rotary;
use crate::{
    Columns, HeadSizes, KernelError, Layout,
    device::{Cpu, CpuQueue},
    lanes,
    norm::for_each_row,
    sequences::Sequences,
    simd::{Kernel, Simd},
};

const NAME: &str = "rotary";

impl Rotary for Cpu {
    fn rotary(
        &self,
        queue: &mut CpuQueue,
        heads: HeadSizes,
        layout: Layout<&[u32]>,
        x: Columns<&[f32]>,
        table: &[f32],
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let (width, head_dim) = (heads.width(), heads.head_dim);
        let size = |argument, expected, got| Err(KernelError::Size { kernel: NAME, argument, expected, got });
        if head_dim % 2 != 0 {
            return size("head_dim", "an even number".into(), head_dim);
        }
        let sequences = Sequences::checked(NAME, layout, "out", width, out.len())?;
        x.check(NAME, "x", sequences.rows(), width)?;
        let positions = KernelError::check_rows(NAME, "table", head_dim, table.len())?;
        if let Some(b) = (0..sequences.len()).find(|&b| sequences.tokens(b).len() > positions) {
            let expected = format!("at most {positions}, the positions of the table (sequence {b})");
            return size("a sequence length", expected.into(), sequences.tokens(b).len());
        }
        for_each_row(queue, width, out, |first, out| {
            let row = first / width;
            let tokens = sequences.tokens(sequences.of_row(row));
            if row >= tokens.end {
                return out.fill(0.0);
            }
            let angles = &table[(row - tokens.start) * head_dim..][..head_dim];
            self.supported_isa().run(Turn { x: x.part(row, 0, width), angles, out });
        })
    }
}

/// All heads of one row.
struct Turn<'a> {
    x: &'a [f32],
    /// Cosines, then sines.
    angles: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let head_dim = self.angles.len();
        let (cos, sin) = self.angles.split_at(head_dim / 2);
        for (x, out) in self.x.chunks_exact(head_dim).zip(self.out.chunks_exact_mut(head_dim)) {
            let (x1, x2) = x.split_at(head_dim / 2);
            let (out1, out2) = out.split_at_mut(head_dim / 2);
            let halves = x1.chunks(S::LANES).zip(x2.chunks(S::LANES));
            let angles = cos.chunks(S::LANES).zip(sin.chunks(S::LANES));
            let outs = out1.chunks_mut(S::LANES).zip(out2.chunks_mut(S::LANES));
            for (((x1, x2), (cos, sin)), (out1, out2)) in halves.zip(angles).zip(outs) {
                let (x1, x2) = (lanes::read(s, x1, 0.0), lanes::read(s, x2, 0.0));
                let (cos, sin) = (lanes::read(s, cos, 0.0), lanes::read(s, sin, 0.0));
                lanes::write(s, s.sub(s.mul(x1, cos), s.mul(x2, sin)), out1);
                lanes::write(s, s.mul_add(x2, cos, s.mul(x1, sin)), out2);
            }
        }
    }
}
