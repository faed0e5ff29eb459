//! What batches cost is predicted, and told.

use turbo_serve::{
    engine::{Engine, EngineConfig, Infer, InferRequest, Input},
    http::Metrics,
};

use crate::{
    fake::{config, request, wait},
    paced,
};

/// The value of the metric whose line begins with this.
fn value(metrics: &Metrics, begins: &str) -> f64 {
    let text = metrics.render();
    let line =
        text.lines().find(|line| line.starts_with(begins)).unwrap_or_else(|| panic!("no {begins} in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn serve(engine: &Engine, rounds: u32) {
    for round in 0..rounds {
        let input = |n: u32| vec![n; 1 + ((round * 7 + n * 3) % 8) as usize];
        let inputs: Vec<Vec<u32>> = (0..1 + round % 4).map(input).collect();
        let inputs = inputs.into_iter().map(Input::Ids).collect();
        wait(engine.infer(InferRequest { inputs, ..request([]) })).unwrap();
    }
}

#[test]
fn the_median_error_of_predicted_costs_is_small_and_told() {
    let metrics = Metrics::install().unwrap();
    let label = "predictions";
    let (engine, _ran) = paced::start(&EngineConfig { label: Some(label.into()), ..config() }, 0.1);
    serve(&engine, 120);
    // the last batch is counted behind its answer
    wait(engine.stop());
    let of = |name: &str| format!("{name}{{model=\"{label}\"");
    let median = value(&metrics, &of("turbo_batch_cost_error_median"));
    assert!(median > 0.0 && median < 0.15, "{median}");
    let counted = value(&metrics, &of("turbo_batch_cost_error_count"));
    assert_eq!(counted, 120.0);
    let below_15_percent =
        value(&metrics, &format!("turbo_batch_cost_error_bucket{{model=\"{label}\",le=\"0.15\"}}"));
    assert!(below_15_percent > 60.0, "{below_15_percent} of {counted}");
    let fill = value(&metrics, &of("turbo_batch_fill_sum")) / value(&metrics, &of("turbo_batch_fill_count"));
    assert!(fill > 0.05 && fill < 0.5, "a few tokens of 64: {fill}");
}
