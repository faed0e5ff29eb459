//! Time to plan a queue: the split alone by queue length, and a whole poll of the batcher.

use std::hint::black_box;
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::Duration;

use criterion::{
    BatchSize, BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
    measurement::WallTime,
};
use turbo_sched::{
    BatchTotal, Batcher, BatcherConfig, Candidate, CostModel, CostTable, Layout, Limits, PackedCost, Request,
    RequestId, Splitter, sim,
};

fn models() -> [(&'static str, CostModel); 2] {
    let cost = |tokens: f64| BatchTotal(1e-3 + 1e-5 * tokens);
    let lens = [1, 16, 32, 64, 128, 256, 512];
    let grid = lens.into_iter().flat_map(|len| [1, 2, 4, 8, 16, 32].map(|size| (len, size)));
    let table = grid.map(|(len, size)| (len, size, cost(f64::from(len) * size as f64)));
    let batches = [&[8_u32][..], &[512], &[8; 32], &[128; 8]];
    let batches = batches.map(|lens| {
        let batch: Candidate = lens.iter().copied().collect();
        (batch, cost(batch.total_tokens as f64))
    });
    [
        ("padded", CostModel::Padded(CostTable::from_measurements(table).expect("a valid grid"))),
        ("packed", CostModel::Packed(Box::new(PackedCost::fit(batches).expect("valid batches")))),
    ]
}

fn lens(n: usize) -> Vec<u32> {
    let arrivals = sim::poisson(1000.0, 5..=500, Duration::from_secs(60), 0);
    arrivals.iter().take(n).map(|arrival| arrival.seq_len).collect()
}

fn split(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("split");
    let limits = Limits::batch_size(NonZeroUsize::new(20).expect("above 0"));
    for (name, model) in models() {
        for n in [10, 100, 1000] {
            let mut lens = lens(n);
            if model.layout() == Layout::Padded {
                lens.sort_unstable();
            }
            let (mut splitter, mut sizes) = (Splitter::default(), Vec::new());
            group.throughput(Throughput::Elements(n as u64));
            group.bench_function(BenchmarkId::new(name, n), |bencher| {
                bencher.iter(|| {
                    let cost = |batch: &Candidate| model.cost(batch);
                    splitter.split_into(black_box(&lens), &limits, model.layout(), cost, &mut sizes)
                });
            });
        }
    }
    group.finish();
}

fn poll(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("poll");
    let limits = Limits::batch_size(NonZeroUsize::new(20).expect("above 0"));
    for (name, model) in models() {
        for n in [10, 100, 1000] {
            let mut batcher = Batcher::new(BatcherConfig::with_limits(limits), model.clone());
            for (id, seq_len) in (0..).zip(lens(n)) {
                batcher.push(Request::new(RequestId(id), seq_len, Duration::from_micros(id)));
            }
            first_poll(&mut group, BenchmarkId::new(name, n), &batcher);
        }
    }
    group.finish();
}

/// A batch may hold the whole of a deep queue of short requests.
fn poll_short(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("poll of short requests");
    for (name, model) in models() {
        for n in [256, 512, 1024] {
            let limits = Limits {
                max_batch_size: NonZeroUsize::new(n).expect("above 0"),
                max_batch_tokens: NonZeroU64::new(16_384).expect("above 0"),
            };
            let mut batcher = Batcher::new(BatcherConfig::with_limits(limits), model.clone());
            for id in 0..n as u64 {
                batcher.push(Request::new(RequestId(id), 4 + id as u32 % 16, Duration::from_micros(id)));
            }
            first_poll(&mut group, BenchmarkId::new(name, n), &batcher);
        }
    }
    group.finish();
}

/// Times the first poll of a queue, allocations included: a clone has cold buffers.
fn first_poll(group: &mut BenchmarkGroup<'_, WallTime>, id: BenchmarkId, batcher: &Batcher) {
    group.bench_function(id, |bencher| {
        bencher.iter_batched_ref(
            || batcher.clone(),
            |batcher| {
                black_box(batcher.poll(Duration::from_millis(2)));
            },
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(benches, split, poll, poll_short);
criterion_main!(benches);
