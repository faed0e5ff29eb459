//! An observer sees every node once, in order, and changes nothing.

mod common;

use common::{SMALL, batch, encoder, on_cpu, sequences};
use turbo_graph::{LayoutKind, Program, passes};

#[test]
fn an_observer_sees_each_node_before_it_runs() {
    let program = Program::compile(&encoder(SMALL), LayoutKind::Packed, passes::ALL).expect("it compiles");
    let expected = program.nodes().to_vec();
    let mut executor = on_cpu(program);
    let batch = batch(&sequences(&[3, 8], SMALL.vocab_size));

    let hidden = executor.output("last_hidden_state").expect("it is drawn");
    let (mut seen, mut observed, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    executor.run_observed(&batch, |node| seen.push(node.clone())).expect("it runs");
    executor.read(hidden, 1, &mut observed).expect("there are two sequences");
    executor.run(&batch).expect("it runs");
    executor.read(hidden, 1, &mut alone).expect("there are two sequences");
    assert_eq!(seen, expected);
    assert_eq!(observed, alone);
}
