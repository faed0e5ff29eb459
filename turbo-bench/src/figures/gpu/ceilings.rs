//! What a GPU can do at most; shares are relative to this.

use serde::{Deserialize, Serialize};

use super::{Dtype, Operation};

/// Rates per second of operations that are timed alone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// The engine that reached them.
    pub by: String,
    /// Bytes of a copy within the GPU's memory, read and written.
    pub copy: f64,
    /// Operations of a product in bf16, a multiply-add being two.
    pub bf16: f64,
    /// The same in f16.
    pub f16: f64,
    /// The same in f32, without TF32.
    pub f32: f64,
}

/// Ceilings, measured in the process whose times they are compared with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    /// Rates of turbo, and of PyTorch where it was present: the GPU can do what either of them reaches.
    pub rates: Vec<Rates>,
    /// Microseconds of a kernel with next to nothing to do, launched like all that are timed.
    pub launch_us: f64,
    /// The same, with each launch enqueued by the host.
    pub enqueue_us: f64,
}

impl Ceilings {
    /// The bandwidth of a copy: bytes per second.
    #[must_use]
    pub fn copy(&self) -> f64 {
        self.greatest(|rates| rates.copy)
    }

    /// The rate of products: operations per second.
    #[must_use]
    pub fn product(&self, dtype: Dtype) -> f64 {
        self.greatest(|rates| match dtype {
            Dtype::Bf16 => rates.bf16,
            Dtype::F16 => rates.f16,
            Dtype::F32 => rates.f32,
        })
    }

    /// The share of the copy bandwidth that an operation reaches in so many microseconds.
    #[must_use]
    pub fn of_copy(&self, operation: &Operation, dtype: Dtype, us: f64) -> f64 {
        operation.bytes(dtype) as f64 / (us * 1e-6) / self.copy()
    }

    fn greatest(&self, of: impl Fn(&Rates) -> f64) -> f64 {
        self.rates.iter().map(of).fold(0.0, f64::max)
    }
}

/// The copy that is timed: far more than any cache holds.
pub const COPY: Operation = Operation::Copy { rows: 131_072, columns: 1024 };
/// The product that is timed: long enough that nothing but multiplication counts.
pub const PRODUCT: Operation = Operation::Product { rows: 8192, columns: 8192 };
/// An operation with next to nothing to do.
pub const NOTHING: Operation = Operation::Copy { rows: 1, columns: 32 };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_of_them_reaches_counts() {
        let rates = |by: &str, copy, bf16| Rates { by: by.to_owned(), copy, bf16, f16: 7.0, f32: 1.0 };
        let rates = vec![rates("turbo", 4e12, 700e12), rates("torch", 4.2e12, 690e12)];
        let ceilings = Ceilings { rates, launch_us: 1.0, enqueue_us: 2.0 };
        assert_eq!((ceilings.copy(), ceilings.product(Dtype::Bf16)), (4.2e12, 700e12));
        let softmax = Operation::Softmax { rows: 1_050_000, columns: 100 };
        assert!((ceilings.of_copy(&softmax, Dtype::Bf16, 200.0) - 0.5).abs() < 1e-12);
    }
}
