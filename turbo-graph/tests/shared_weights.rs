//! A weight that several layers name is one weight: read once, and on the device once.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

mod common;

use std::{borrow::Cow, collections::BTreeMap, error::Error, sync::Mutex};

use common::{NamedNoise, SMALL, Sizes, cpu, encoder, encoder_of_one_layer_s_weights};
use turbo_graph::{Executor, LayoutKind, PlannerConfig, Program, WeightSource, passes};

/// Counts the values that are read of each weight.
#[derive(Default)]
struct Counting(Mutex<BTreeMap<String, Vec<usize>>>);

impl WeightSource for Counting {
    fn weight(&self, name: &str, shape: &[usize]) -> Result<Cow<'_, [f32]>, Box<dyn Error + Send + Sync>> {
        self.0.lock().unwrap().entry(name.to_owned()).or_default().push(shape.iter().product());
        NamedNoise.weight(name, shape)
    }
}

/// What loading a graph read.
#[derive(Debug, PartialEq)]
struct Loaded {
    values: usize,
    /// How often the most frequently loaded weight was loaded.
    times: usize,
}

fn loaded(program: Program) -> Loaded {
    let source = Counting::default();
    Executor::new(cpu(), program, &source, PlannerConfig::default()).unwrap();
    let counts = source.0.into_inner().unwrap();
    Loaded { values: counts.values().flatten().sum(), times: counts.values().map(Vec::len).max().unwrap() }
}

#[test]
fn layers_that_share_weights_load_those_of_one() {
    let deep = Sizes { num_layers: 5, ..SMALL };
    for (layout, passes) in [(LayoutKind::Packed, passes::ALL), (LayoutKind::Padded, &[])] {
        let compile = |graph| Program::compile(&graph, layout, passes).unwrap();
        let one = loaded(compile(encoder(Sizes { num_layers: 1, ..SMALL })));
        let shared = compile(encoder_of_one_layer_s_weights(deep));
        assert!(shared.slots().folded_periods() > 3, "{layout:?}");
        assert_eq!(loaded(shared), one, "{layout:?}");
        assert_eq!(one.times, 1, "{layout:?}");
        assert!(loaded(compile(encoder(deep))).values > 3 * one.values / 2, "{layout:?}");
    }
}
