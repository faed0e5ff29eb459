//! Plain functions beside the device, in the instruction set that the environment names.

use std::{env, process::Command};

use turbo_kernels::{Cpu, CpuOptions, Device, Isa, KernelError, Pool, slices};

/// As wide as rows of MiniLM: a sum along them depends on the number of lanes.
const WIDTH: usize = 384;
const ROWS: usize = 40;

#[test]
fn rows_have_the_bits_of_the_device() -> Result<(), KernelError> {
    let x: Vec<f32> = (0..ROWS * WIDTH).map(|i| (i as f32 * 0.7).sin()).collect();
    let (cpu, mut want) = (Cpu::new(CpuOptions::default())?, vec![0.0; x.len()]);
    cpu.l2_normalize(&mut cpu.queue()?, WIDTH, &x, &mut want)?;
    let mut got = x;
    slices::l2_normalize_rows(&mut got, WIDTH)?;
    let differ = got.iter().zip(&want).filter(|(got, want)| got.to_bits() != want.to_bits()).count();
    assert_eq!(differ, 0, "values that differ from those of {}", cpu.name());
    Ok(())
}

/// [`rows_have_the_bits_of_the_device`] in processes of their own, since the variable is read once.
#[test]
fn rows_have_them_in_sets_that_were_not_detected_too() {
    for isa in Isa::available().filter(|isa| *isa != Isa::detect()) {
        let mut test = Command::new(env::current_exe().unwrap());
        test.args(["--exact", "rows_have_the_bits_of_the_device"]).env(Isa::VARIABLE, isa.to_string());
        let output = test.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success() && said.contains("1 passed"), "{isa}: {said}");
    }
}
