//! cuBLASLt's products as an obvious loop.

use half::{bf16, f16};

use super::memory::Memory;
use crate::{
    cuda::{FloatType, Matrices, Product},
    device::{DeviceError, Float},
    matmul::Rhs,
    suite::twin,
};

/// Does `product` on host memory.
///
/// # Errors
/// When a value lies outside its allocation.
///
/// # Safety
/// As for [`crate::cuda::Stream::product`].
pub(super) unsafe fn multiply(memory: &Memory, product: &Product) -> Result<(), DeviceError> {
    let Product { input, output, batch, m, n, k, .. } = *product;
    if batch == 0 || m == 0 || n == 0 {
        return Ok(());
    }
    let (w_rows, w_columns) = match product.w_order {
        Rhs::Normal => (k, n),
        Rhs::Transposed => (n, k),
    };
    let bias = Matrices { first: product.bias, row_stride: 0, batch_stride: 0 };
    // SAFETY: the caller promises the types, and that nothing else writes there meanwhile.
    let (x, w, bias, add) = unsafe {
        (
            read(memory, input, product.x, [batch, m, k])?,
            read(memory, input, product.w, [batch, w_rows, w_columns])?,
            if product.bias.0 == 0 { vec![0.0; n] } else { read(memory, input, bias, [1, 1, n])? },
            product.add.map(|add| read(memory, output, add, [batch, m, n])).transpose()?,
        )
    };
    let mut y = Vec::with_capacity(batch * m * n);
    for b in 0..batch {
        for i in 0..m {
            let row = &x[(b * m + i) * k..][..k];
            for j in 0..n {
                let weight = |step: usize| match product.w_order {
                    Rhs::Normal => w[(b * k + step) * n + j],
                    Rhs::Transposed => w[(b * n + j) * k + step],
                };
                let sum: f32 = row.iter().enumerate().map(|(step, x)| x * weight(step)).sum();
                let add = add.as_ref().map_or(0.0, |add| add[y.len()]);
                let value = sum + bias[j] + add;
                y.push(product.activation.map_or(value, |a| twin::activate(a, value.into()) as f32));
            }
        }
    }
    // SAFETY: as above.
    unsafe { write(memory, output, product.y, [batch, m, n], &y) }
}

/// The values of `at`, of shape `[batch, rows, columns]`, as one row-major array.
unsafe fn read(
    memory: &Memory,
    float: FloatType,
    at: Matrices,
    shape: [usize; 3],
) -> Result<Vec<f32>, DeviceError> {
    let mut values = Vec::with_capacity(shape.iter().product());
    for_each_row(memory, float, at, shape, |row| {
        // SAFETY: `row` points to that many values of this type.
        let value = |j: usize| unsafe {
            match float {
                FloatType::F32 => row.cast::<f32>().add(j).read(),
                FloatType::F16 => row.cast::<f16>().add(j).read().to_f32(),
                FloatType::Bf16 => row.cast::<bf16>().add(j).read().to_f32(),
            }
        };
        values.extend((0..shape[2]).map(value));
    })?;
    Ok(values)
}

/// Writes `values` to `at`: the reverse of [`read`].
unsafe fn write(
    memory: &Memory,
    float: FloatType,
    at: Matrices,
    shape: [usize; 3],
    values: &[f32],
) -> Result<(), DeviceError> {
    let mut rows = values.chunks_exact(shape[2]);
    for_each_row(memory, float, at, shape, |row| {
        for (j, value) in rows.next().into_iter().flatten().enumerate() {
            // SAFETY: `row` points to that many values of this type.
            unsafe {
                match float {
                    FloatType::F32 => row.cast::<f32>().add(j).write(*value),
                    FloatType::F16 => row.cast::<f16>().add(j).write(Float::from_f32(*value)),
                    FloatType::Bf16 => row.cast::<bf16>().add(j).write(Float::from_f32(*value)),
                }
            }
        }
    })
}

/// Calls `visit` with the first value of each row, all of which lie in one allocation.
fn for_each_row(
    memory: &Memory,
    float: FloatType,
    at: Matrices,
    [batch, rows, columns]: [usize; 3],
    mut visit: impl FnMut(*mut u8),
) -> Result<(), DeviceError> {
    for b in 0..batch {
        for i in 0..rows {
            let first = at.first.offset((b * at.batch_stride + i * at.row_stride) * float.bytes());
            visit(memory.locate(first, columns * float.bytes())?);
        }
    }
    Ok(())
}
