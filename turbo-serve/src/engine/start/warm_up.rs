//! What batches cost on this machine, and how large they may be, settled before the first request.
//!
//! In: a runner with memory for one input, and a time budget. Out: the cost model that the batcher decides with, how
//! large batches may become, and the runner with memory for them. Costs are measured
//! ([`measuring`](super::measuring)), unless an earlier run has kept its costs: then a few batches are run to check
//! whether they still hold.

use std::time::{Duration, Instant};

use turbo_sched::{BatchTotal, Candidate, CostModel, Layout};

use super::{
    batch_tokens::{largest_of, tokens_in_memory, tokens_within},
    cost_cache::CostCache,
    fastest::LONG_RUN,
    measuring::{Measuring, Point, grid},
    reserved::planning,
};
use crate::engine::{BatchTokens, Capacity, EngineInfo, RunError, Seat, StartError, runner::Runner};

/// The largest batch may plan one part in this many of a device's free memory: plans of other sizes, scratch memory of
/// kernels and other processes take some, too.
const MEMORY_SHARE: u64 = 2;
/// Kept costs are discarded when a batch takes more than this many times as long as they say, or less than one part in
/// this many: they are those of another machine, or of a busy one, and are wrong for this one now.
const ODD: f64 = 4.0;

/// What is measured, and within which bounds.
pub(in crate::engine) struct WarmUp<'a> {
    pub layout: Layout,
    pub vocab_size: usize,
    /// Time for measuring.
    pub budget: Duration,
    pub max_batch_tokens: BatchTokens,
    /// The limits that the largest batch follows from.
    pub info: &'a EngineInfo,
    /// The current time.
    pub clock: &'a dyn Fn() -> Instant,
    /// The seat on the device, on which other engines may serve meanwhile.
    pub seat: &'a Seat,
}

/// Kept costs that hold, and the batches that were run to check them.
type Confirmed = (CostModel, Vec<(Candidate, Duration)>);

/// The result of a warm-up.
pub(in crate::engine) struct Warm {
    pub costs: CostModel,
    /// The largest batch; the runner has memory for it.
    pub capacity: Capacity,
    /// Most tokens that several inputs may share; one alone may have more.
    pub shared_tokens: usize,
    /// How long it took to reserve the memory that was missing.
    pub reserving: Duration,
    /// The batches that were measured now, to learn the costs or to confirm kept ones.
    pub measured: Vec<(Candidate, Duration)>,
}

impl WarmUp<'_> {
    /// The capacity to reserve before anything is measured: that of the longest input if a time bounds the batches.
    pub(in crate::engine) fn first_capacity(&self) -> Capacity {
        match self.max_batch_tokens {
            BatchTokens::AtMost(tokens) => self.info.capacity_of(tokens),
            BatchTokens::Within(_) => self.info.capacity_of(0),
        }
    }

    /// Has `runner` reserve memory for the first capacity. A configured number of tokens is not reduced until it fits,
    /// and the longest input has to fit in any case.
    ///
    /// # Errors
    /// [`StartError::Memory`]; errors of the runner, as [`StartError::Runner`].
    pub(in crate::engine) fn reserve_first(&self, runner: &mut dyn Runner) -> Result<(), StartError> {
        let _alone = planning();
        self.check_memory(runner)?;
        runner.reserve(self.first_capacity()).map_err(StartError::Runner)
    }

    /// Checks that the first capacity fits into the free memory of `runner`'s device.
    fn check_memory(&self, runner: &mut dyn Runner) -> Result<(), StartError> {
        let Some(free) = runner.free_bytes() else { return Ok(()) };
        let asked = self.first_capacity();
        let mut needed = |tokens| runner.footprint(&asked.at_most(tokens).largest(self.layout)) as u64;
        let (tokens, needs) = (asked.total_tokens, needed(asked.total_tokens));
        if needs <= free {
            return Ok(());
        }
        let fits = Some(largest_of(0..tokens, |tokens| needed(tokens) <= free)).filter(|&tokens| tokens > 0);
        Err(StartError::Memory { tokens, needed: needs, free, fits })
    }

    /// Warms up `runner`, which has memory for [`WarmUp::first_capacity`]: takes the costs that `cache` has kept if
    /// they still hold, else measures them and keeps them there.
    ///
    /// # Errors
    /// Errors of the runner.
    pub(in crate::engine) fn run(
        &self,
        runner: &mut dyn Runner,
        cache: Option<&CostCache>,
    ) -> Result<Warm, RunError> {
        if let Some(kept) = cache.and_then(CostCache::load).filter(|kept| kept.layout() == self.layout)
            && let Some((costs, measured)) = self.confirmed(kept, runner)?
        {
            return Ok(Warm { measured, ..self.sized(costs, runner)? });
        }
        let mut measuring = Measuring::new(self);
        let mut warm = self.sized(measuring.costs(runner)?, runner)?;
        if warm.capacity != self.first_capacity() {
            // How many tokens fit was extrapolated from smaller batches; the larger ones can only lower that number.
            let most = warm.shared_tokens;
            let costs = measuring.costs(runner)?;
            warm = Warm { shared_tokens: self.shared_tokens(&costs).min(most), costs, ..warm };
        }
        measuring.tell();
        if let Some(cache) = cache {
            cache.save(warm.costs.clone());
        }
        Ok(Warm { measured: measuring.measured, ..warm })
    }

    /// Has the runner reserve memory for the batches that `costs` allow.
    fn sized(&self, costs: CostModel, runner: &mut dyn Runner) -> Result<Warm, RunError> {
        let _alone = planning();
        let shared_tokens = self.shared_tokens(&costs).min(self.tokens_in_memory(runner));
        let capacity = self.info.capacity_of(shared_tokens);
        let started = (self.clock)();
        if capacity != runner.capacity() {
            runner.reserve(capacity)?;
        }
        Ok(Warm { costs, capacity, shared_tokens, reserving: self.since(started), measured: Vec::new() })
    }

    /// Most tokens that the runner's device has memory for; the configured number if there is one.
    fn tokens_in_memory(&self, runner: &mut dyn Runner) -> usize {
        let most = self.max_batch_tokens.most();
        match (self.max_batch_tokens, runner.free_bytes()) {
            (BatchTokens::Within(_), Some(free)) => {
                let footprint = |batch: &Candidate| runner.footprint(batch);
                tokens_in_memory(footprint, free / MEMORY_SHARE, self.info.max_input_length, most)
            }
            _ => most,
        }
    }

    fn shared_tokens(&self, costs: &CostModel) -> usize {
        match self.max_batch_tokens {
            BatchTokens::AtMost(tokens) => tokens,
            BatchTokens::Within(limit) => {
                tokens_within(costs, limit, self.info.max_input_length, BatchTokens::MOST)
            }
        }
    }

    /// `kept`, corrected by a few batches that are run now; `None` if they contradict it, or if no batch is short
    /// enough. They are the first, the middle and the last of the grid's batches that should take no longer than
    /// [`LONG_RUN`].
    fn confirmed(&self, mut kept: CostModel, runner: &mut dyn Runner) -> Result<Option<Confirmed>, RunError> {
        let started = (self.clock)();
        let short = |point: &Point| kept.cost(&point.batch()).as_duration() <= LONG_RUN;
        let short: Vec<Point> = grid(runner.capacity()).into_iter().filter(short).collect();
        let Some(last) = short.len().checked_sub(1) else { return Ok(None) };
        let mut points = vec![0, last / 2, last];
        points.dedup();
        let mut measured = Vec::new();
        for point in points.into_iter().map(|point| short[point]) {
            let candidate = point.batch();
            let expected = kept.cost(&candidate).as_duration();
            let time = self.measure(runner, point, expected)?;
            let ratio = time.as_secs_f64() / expected.as_secs_f64();
            if !(1.0 / ODD..=ODD).contains(&ratio) {
                let Point { seq_len, batch_size } = point;
                tracing::warn!(
                    batch_size,
                    seq_len,
                    ?expected,
                    ?time,
                    "the kept costs do not hold: measuring again"
                );
                return Ok(None);
            }
            kept.update(&candidate, BatchTotal::from_duration(time))?;
            measured.push((candidate, time));
        }
        tracing::info!(took_ms = self.since(started).as_millis() as u64, "warmed up, the kept costs hold");
        Ok(Some((kept, measured)))
    }

    pub(super) fn since(&self, then: Instant) -> Duration {
        (self.clock)().saturating_duration_since(then)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    };

    use turbo_models::{Pooling, RowLens, ScoreFunction};
    use turbo_sched::{PackedCost, Source};

    use super::super::{cost_cache::CostKey, fastest::RUNS};
    use super::*;
    use crate::engine::{
        DeviceTurns, ModelInfo, Prompts, Rows,
        runner::{Progress, Sequence},
    };

    fn batch_of(seq_len: u32, batch_size: usize) -> Candidate {
        Point { seq_len, batch_size }.batch()
    }

    /// A runner that takes 0.1 ms per token, on its own clock.
    struct Slow<'a> {
        capacity: Capacity,
        batches: usize,
        taken_us: &'a AtomicU64,
        /// Another engine's seat on its device, and the longest time that was reported to it.
        other: Seat,
        told: Duration,
    }

    impl Runner for Slow<'_> {
        fn capacity(&self) -> Capacity {
            self.capacity
        }

        fn footprint(&mut self, _: &Candidate) -> usize {
            0
        }

        fn reserve(&mut self, capacity: Capacity) -> Result<(), RunError> {
            self.capacity = capacity;
            Ok(())
        }

        fn submit(
            &mut self,
            batch: &mut dyn Iterator<Item = Sequence<'_>>,
            _keep_going: &mut dyn FnMut() -> bool,
        ) -> Result<(), RunError> {
            self.batches += 1;
            self.told = self.told.max(self.other.outlook().0);
            let tokens: usize = batch.map(|sequence| sequence.input_ids.len()).sum();
            self.taken_us.fetch_add(100 * tokens as u64, Relaxed);
            Ok(())
        }

        fn poll(&mut self) -> Result<Progress, RunError> {
            Ok(Progress::Done)
        }

        fn read(&mut self, _: usize, _: Rows, _: &mut Vec<f32>) -> Result<(), RunError> {
            Ok(())
        }
    }

    /// A model of inputs up to `max_input_length`, before it is known how many tokens a batch may have.
    fn info(max_input_length: usize, max_concurrent_requests: usize) -> EngineInfo {
        EngineInfo {
            model: ModelInfo {
                model_id: "slow".into(),
                sha: None,
                name: "slow".into(),
                dtype: "float32",
                device: "sleep".into(),
                task: Pooling::Mean.into(),
                labels: Arc::default(),
                score_function: ScoreFunction::Identity,
                pair_score_function: ScoreFunction::Sigmoid,
                mask_token: None,
                prompts: Prompts::default(),
                takes_instruction: false,
                rows: RowLens { pooled: Some(1), tokens: None, selected: None },
                max_input_length,
                vocab_size: 100,
                type_vocab_size: 1,
            },
            max_input_length,
            max_batch_tokens: BatchTokens::MOST,
            max_batch_requests: None,
            max_client_batch_size: 32,
            max_concurrent_requests,
            auto_truncate: true,
            tokenization_workers: 1,
            cache_bytes: None,
            version: "0",
        }
    }

    /// The result of a warm-up, and the number of batches that it ran.
    fn started(
        info: &EngineInfo,
        batches: (Layout, BatchTokens),
        budget_ms: u64,
        cache: Option<&CostCache>,
    ) -> (Warm, usize) {
        let (warm, batches, _) = started_beside(info, batches, budget_ms, cache);
        (warm, batches)
    }

    /// The same, and the longest time that was reported to another engine on the device.
    fn started_beside(
        info: &EngineInfo,
        (layout, max_batch_tokens): (Layout, BatchTokens),
        budget_ms: u64,
        cache: Option<&CostCache>,
    ) -> (Warm, usize, Duration) {
        let budget = Duration::from_millis(budget_ms);
        let (begun, taken_us) = (Instant::now(), AtomicU64::new(0));
        let taken = || Duration::from_micros(taken_us.load(Relaxed));
        let clock = || begun + taken();
        let device = DeviceTurns::default();
        let (seat, other) = (&device.join(), device.join());
        let warm_up = WarmUp { layout, vocab_size: 100, budget, max_batch_tokens, info, clock: &clock, seat };
        let (capacity, told) = (warm_up.first_capacity(), Duration::ZERO);
        let mut runner = Slow { capacity, batches: 0, taken_us: &taken_us, other, told };
        let warm = warm_up.run(&mut runner, cache).unwrap();
        assert_eq!(warm.capacity, runner.capacity, "the runner has memory for what it is told");
        // the smallest batch is run whatever the budget; a measurement that has begun is finished
        assert!(taken() < 2 * budget + LONG_RUN, "{:?} of {budget:?}", taken());
        (warm, runner.batches, runner.told)
    }

    #[test]
    fn others_on_the_device_are_told_how_long_a_batch_that_is_measured_takes() {
        let (.., told) =
            started_beside(&info(512, 64), (Layout::Packed, BatchTokens::AtMost(1 << 14)), 1000, None);
        // The budget suffices for a batch of a thousand tokens, which takes 0.1 s, but not for one of four thousand.
        assert!((Duration::from_millis(20)..Duration::from_millis(500)).contains(&told), "{told:?}");
    }

    #[test]
    fn what_the_budget_does_not_reach_is_extrapolated() {
        for layout in [Layout::Packed, Layout::Padded] {
            let (warm, _) = started(&info(512, 64), (layout, BatchTokens::AtMost(1 << 14)), 200, None);
            // The whole grid takes many seconds; the largest batch alone takes 1.6.
            assert_eq!((warm.capacity.total_tokens, warm.shared_tokens), (1 << 14, 1 << 14));
            let costs = warm.costs;
            assert_ne!(costs.estimate(&batch_of(4, 4)).source, Source::Extrapolated, "{layout:?}");
            let largest = costs.estimate(&batch_of(512, 32));
            assert_eq!(largest.source, Source::Extrapolated, "{layout:?}");
            assert!((0.3..40.0).contains(&largest.cost.0), "{layout:?}: {largest:?}");
        }
    }

    /// 0.1 ms per token: 30 ms are 300 tokens.
    const WITHIN: BatchTokens = BatchTokens::Within(Duration::from_millis(30));

    #[test]
    fn a_batch_is_as_large_as_its_time_allows_and_one_input_alone_as_long_as_it_may_be() {
        for layout in [Layout::Packed, Layout::Padded] {
            // More than one input fits: memory for them is reserved after measuring.
            let (warm, _) = started(&info(16, 64), (layout, WITHIN), 1000, None);
            assert!((250..=310).contains(&warm.shared_tokens), "{layout:?}: {}", warm.shared_tokens);
            assert_eq!(warm.capacity.batch_size, 64);
            assert!(warm.capacity.total_tokens >= warm.shared_tokens);
            // One input takes longer than that: it runs alone, the others share no more than fits.
            let (warm, _) = started(&info(1024, 8), (layout, WITHIN), 1000, None);
            assert!((250..=310).contains(&warm.shared_tokens), "{layout:?}: {}", warm.shared_tokens);
            assert_eq!((warm.capacity.total_tokens, warm.capacity.max_seq_len), (1024, 1024));
        }
    }

    #[test]
    fn batches_that_will_never_be_formed_are_not_measured() {
        let ran = |tokens| started(&info(512, 64), (Layout::Packed, tokens), 10_000, None).1;
        let (bounded, all) =
            (ran(BatchTokens::Within(Duration::from_millis(2))), ran(BatchTokens::AtMost(512)));
        assert!(bounded < all, "{bounded} and {all}");
    }

    const SMALL: (Layout, BatchTokens) = (Layout::Packed, BatchTokens::AtMost(64));

    #[test]
    fn a_second_start_runs_three_points_only() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache_in(folder.path());
        let (first, measured) = started(&info(16, 16), SMALL, 100, Some(&cache));
        let (second, again) = started(&info(16, 16), SMALL, 100, Some(&cache));
        assert!(measured > 20 && again <= 3 * RUNS, "{measured}, then {again}");
        let largest = batch_of(16, 4);
        let ratio = second.costs.cost(&largest).0 / first.costs.cost(&largest).0;
        assert!((0.5..2.0).contains(&ratio), "{ratio}");
    }

    #[test]
    fn kept_costs_tell_how_large_batches_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache_in(folder.path());
        let (first, _) = started(&info(16, 64), (Layout::Packed, WITHIN), 1000, Some(&cache));
        let (second, again) = started(&info(16, 64), (Layout::Packed, WITHIN), 1000, Some(&cache));
        assert!(again <= 3 * RUNS, "{again}");
        let ratio = second.shared_tokens as f64 / first.shared_tokens as f64;
        assert!((0.5..2.0).contains(&ratio), "{} and {}", first.shared_tokens, second.shared_tokens);
    }

    #[test]
    fn kept_costs_that_do_not_hold_are_measured_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache_in(folder.path());
        for per_token in [1e-9, 1.0] {
            let other = grid(Capacity { batch_size: 16, total_tokens: 64, max_seq_len: 16 }).into_iter().map(
                |point| {
                    let batch = point.batch();
                    (batch, BatchTotal(per_token * batch.total_tokens as f64))
                },
            );
            cache.save(CostModel::Packed(Box::new(PackedCost::fit(other).unwrap())));
            let (warm, measured) = started(&info(16, 16), SMALL, 100, Some(&cache));
            assert!(measured > 20, "{measured}");
            let cost = warm.costs.cost(&batch_of(16, 4)).0;
            assert!((2e-3..0.1).contains(&cost), "64 tokens of 0.1 ms took {cost} s");
        }
    }

    fn cache_in(folder: &std::path::Path) -> CostCache {
        let capacity = Capacity { batch_size: 16, total_tokens: 64, max_seq_len: 16 };
        CostCache::new(folder, CostKey::new("slow", "sleep", ("float32", "none"), Layout::Packed, capacity))
    }
}
