//! Embeddings on a GPU. Ids are on the device, so an id outside its table is not refused: its token's row becomes NaN,
//! and nothing outside the table is read.

use super::{Embed, Lookup};
use crate::{
    KernelError,
    cuda::{
        Cuda, CudaQueue, CudaView, CudaViewMut, Family, Kernel, RowKernel, blocks, count, family, is_wide,
        named, row_kernels, size, warp_to_a_row,
    },
    device::Float,
    norm::NormWeights,
};

pub(crate) static FAMILY: Family = family!("embed", "../norm/row.cuh", "embed.cu");

/// Other rows go to `embed_sum_layer_norm_…_any`.
static IN_REGISTERS: [RowKernel; 5] = row_kernels! { "embed_sum_layer_norm":
    "_512", 512, 32, 1, 128;
    "_768", 768, 32, 1, 128;
    "_1024", 1024, 32, 1, 128;
    "_2048", 2048, 256, 1, 256;
    "_4096", 4096, 256, 1, 256;
};

/// Tables that a kernel sums, as in `embed.cu`.
const MOST_TABLES: usize = 4;

impl<F: Float> Embed for Cuda<F> {
    fn embed(
        &self,
        queue: &mut CudaQueue,
        lookup: Lookup<CudaView<'_, F>, CudaView<'_, u32>>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        const NAME: &str = "embed";
        let tokens = lookup.ids.len();
        let columns = out.len().checked_div(tokens).unwrap_or(0);
        KernelError::check_length(NAME, "out", columns * tokens, out.len())?;
        if out.len() == 0 {
            return Ok(());
        }
        let table_rows = table_rows(NAME, &lookup, columns, tokens)?;
        let (tokens, columns) = (count(NAME, "tokens", tokens)?, count(NAME, "columns", columns)?);
        let kernel = Kernel { module: FAMILY.of::<F>(), name: named!(F, "embed") };
        let args = (lookup.table, lookup.ids, table_rows, out, tokens, columns);
        // SAFETY: there are `tokens` ids and rows of out, and the kernel reads only rows of the table.
        Ok(unsafe { queue.launch(kernel, warp_to_a_row(tokens), args) }?)
    }

    /// At most four lookups.
    fn embed_sum_layer_norm(
        &self,
        queue: &mut CudaQueue,
        lookups: &[Lookup<CudaView<'_, F>, CudaView<'_, u32>>],
        weights: NormWeights<CudaView<'_, F>>,
        out: CudaViewMut<'_, F>,
    ) -> Result<(), KernelError> {
        const NAME: &str = "embed_sum_layer_norm";
        let columns = weights.gain.len();
        weights.fits(NAME, columns)?;
        let tokens = KernelError::check_rows(NAME, "out", columns, out.len())?;
        if lookups.is_empty() || lookups.len() > MOST_TABLES {
            let (argument, expected) = ("lookups", "1 to 4".into());
            return Err(KernelError::Size { kernel: NAME, argument, expected, got: lookups.len() });
        }
        let mut rows = [0; MOST_TABLES];
        for (lookup, rows) in lookups.iter().zip(&mut rows) {
            *rows = table_rows(NAME, lookup, columns, tokens)?;
        }
        // tables beyond the last repeat the first
        let table = |i: usize| lookups.get(i).unwrap_or(&lookups[0]).table;
        let ids = |i: usize| lookups.get(i).unwrap_or(&lookups[0]).ids;
        let first = rows[0];
        rows[lookups.len()..].fill(first);

        let NormWeights { gain, offset, epsilon } = weights;
        let views = lookups.iter().map(|lookup| lookup.table).chain([gain]).chain(offset);
        let wide = is_wide::<F>(columns, views.map(|view| view.address()).chain([out.address()]));
        let chosen = RowKernel::choose(&IN_REGISTERS, columns).filter(|_| wide);
        let (tokens, columns) = (count(NAME, "tokens", tokens)?, count(NAME, "columns", columns)?);
        let (kernel, shape) = match chosen {
            Some(kernel) => (kernel.kernel::<F>(&FAMILY), kernel.shape(tokens)),
            None => {
                let name = named!(F, "embed_sum_layer_norm", "_any");
                (Kernel { module: FAMILY.of::<F>(), name }, blocks(tokens, 256))
            }
        };
        let args = (
            table(0),
            table(1),
            table(2),
            table(3),
            ids(0),
            ids(1),
            ids(2),
            ids(3),
            rows[0],
            rows[1],
            rows[2],
            rows[3],
            lookups.len() as u32,
            gain,
            offset,
            epsilon,
            out,
            tokens,
            columns,
        );
        // SAFETY: each lookup has `tokens` ids and a table with the stated number of rows of `columns` values, gain and
        // offset have one row, out has `tokens`; the kernel reads only rows of the tables.
        Ok(unsafe { queue.launch(kernel, shape, args) }?)
    }
}

/// The number of rows of a table for `tokens` tokens; if there are tokens, it has a row.
fn table_rows<F: Float>(
    kernel: &'static str,
    lookup: &Lookup<CudaView<'_, F>, CudaView<'_, u32>>,
    columns: usize,
    tokens: usize,
) -> Result<u32, KernelError> {
    KernelError::check_length(kernel, "ids", tokens, lookup.ids.len())?;
    let rows = KernelError::check_rows(kernel, "table", columns, lookup.table.len())?;
    if rows == 0 && tokens > 0 && columns > 0 {
        return Err(KernelError::Size {
            kernel,
            argument: "rows of a table",
            expected: "at least 1".into(),
            got: 0,
        });
    }
    size(kernel, "rows of a table", rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cuda::{
            on_emulator::{all, answer, upload},
            on_every_emulator,
        },
        device::Device,
        suite::{self, aligned},
    };

    #[test]
    fn agrees_with_the_twin() {
        on_every_emulator!(check);
    }

    fn check<D: Embed>(device: &D) {
        suite::embed(device);
        aligned(|| suite::embed(device));
        suite::embed::wide_rows(device);
        aligned(|| suite::embed::wide_rows(device));
    }

    #[test]
    fn an_id_outside_its_table_gives_a_row_of_nan() {
        on_every_emulator!(check_ids_outside);
    }

    fn check_ids_outside<F: Float>(device: &Cuda<F>) {
        const TOKENS: usize = 3;
        let mut queue = device.queue().unwrap();
        // rows of 5 values are streamed, those of 8 held in registers
        for columns in [5, 8] {
            let ramp: Vec<F> = (0..2 * columns).map(|i| F::from_f32(i as f32)).collect();
            let table = upload(device, &mut queue, &ramp);
            let ids = upload(device, &mut queue, &[1u32, 2, 0]);
            let lookup = Lookup { table: all(&table, 2 * columns), ids: all(&ids, TOKENS) };
            let weights = NormWeights { gain: all(&table, columns), offset: None, epsilon: 1e-5 };
            let row = answer(device, &mut queue, TOKENS * columns, |queue, out| {
                device.embed(queue, lookup, out).unwrap();
            });
            let sum = answer(device, &mut queue, TOKENS * columns, |queue, out| {
                device.embed_sum_layer_norm(queue, &[lookup, lookup], weights, out).unwrap();
            });
            for out in [row, sum] {
                let is_nan = out.chunks(columns).map(|row| row.iter().all(|v| v.is_nan()));
                assert_eq!(is_nan.collect::<Vec<_>>(), [false, true, false], "{columns} columns: {out:?}");
            }
        }
    }
}
