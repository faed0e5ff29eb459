//! An observer sees every node once, in order, and changes nothing.

mod common;

use common::{NamedNoise, SMALL, encoder, sequences};
use turbo_graph::{Executor, LayoutKind, PlannerConfig, Program, Staging, passes};
use turbo_kernels::{Cpu, CpuOptions};

#[test]
fn an_observer_sees_each_node_before_it_runs() {
    let program = Program::compile(&encoder(SMALL), LayoutKind::Packed, passes::ALL).expect("it compiles");
    let expected = program.nodes().to_vec();
    let device = Cpu::new(CpuOptions::default()).expect("there is a processor");
    let mut executor =
        Executor::new(device, program, &NamedNoise, PlannerConfig::default()).expect("it loads");
    let mut batch = Staging::new();
    sequences(&[3, 8], SMALL.vocab_size).iter().for_each(|ids| batch.push(ids, &[]).expect("it has tokens"));

    let hidden = executor.output("last_hidden_state").expect("it is drawn");
    let (mut seen, mut observed, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    executor.run_observed(&batch, |node| seen.push(node.clone())).expect("it runs");
    executor.read(hidden, 1, &mut observed).expect("there are two sequences");
    executor.run(&batch).expect("it runs");
    executor.read(hidden, 1, &mut alone).expect("there are two sequences");
    assert_eq!(seen, expected);
    assert_eq!(observed, alone);
}
