//! Wrong kernels, and the emulator's messages about them.

use super::{Order, Program, Rig, in_every_order};
use crate::cuda::Module;

static MODULE: Module = Module { name: "errors", source: include_str!("errors.cu") };

/// Runs a wrong kernel, and checks the message about it.
fn finds(rig: &mut Rig, order: Order, program: Program, says: &[&str]) {
    let name = program.name;
    let error = rig.run(program, &[0; 8], 8).expect_err(name);
    assert!(says.iter().any(|says| error.contains(says)), "{name}, {order:?}: {error}");
    assert!(error.starts_with(name), "{error}");
}

/// The order decides which thread is found waiting, but not whether one is found.
#[test]
fn wrong_kernels_are_found_in_every_order() {
    in_every_order(|rig, order| {
        let mut finds = |name, threads, says: &[&str]| {
            finds(rig, order, Program::new(&MODULE, name, threads), says);
        };
        finds(
            "names_a_lane_that_has_returned",
            32,
            &["the mask ffffffff names a lane that has returned", "waits for it in __syncwarp"],
        );
        finds("does_not_name_itself", 32, &["does not name the calling lane"]);
        finds(
            "names_all",
            40,
            &["the mask ffffffff names a lane that does not exist; block (0,0,0), thread (3"],
        );
        finds("in_different_collectives", 32, &["is in __syncwarp", "is in __shfl_xor_sync"]);
        finds("with_different_masks", 32, &["is in __syncwarp, mask 0000000"]);
        finds(
            "not_all_at_the_barrier",
            64,
            &[
                "returned while 63 of 64 threads wait at __syncthreads",
                "1 of 64 threads have returned",
                "returned while",
            ],
        );
        finds(
            "barrier_and_collective",
            32,
            &["in __syncwarp for lane 7, which waits at __syncthreads as 1 of 32 threads do"],
        );
        finds("matrix_outside_shared", 32, &["ldmatrix_x4: the row lies outside shared memory"]);
        finds("copy_outside_shared", 32, &["cp_async_16: `shared` lies outside shared memory"]);
    });
}

#[test]
fn addresses_off_their_alignment_are_found() {
    in_every_order(|rig, order| {
        for (name, says) in [
            ("matrix_off_its_alignment", "ldmatrix_x4: the address is no multiple of 16"),
            ("copy_off_its_alignment", "cp_async_16: `global` is no multiple of 16"),
        ] {
            finds(rig, order, Program::new(&MODULE, name, 32).shared_bytes(64), &[says]);
        }
    });
}

#[test]
fn writing_behind_shared_memory_is_found() {
    let Some(mut rig) = Rig::new(Order::Forward) else { return };
    let program = || Program::new(&MODULE, "writes_behind_shared", 32).grid([2, 1, 1]);
    assert!(rig.run(program().shared_bytes(128), &[0], 1).is_ok());
    finds(
        &mut rig,
        Order::Forward,
        program().shared_bytes(124),
        &["a thread wrote behind the dynamic shared memory; block (0,0,0)"],
    );
}

#[test]
fn more_than_a_gpu_has_is_refused() {
    let Some(mut rig) = Rig::new(Order::Forward) else { return };
    let mut says = |program: Program, says| finds(&mut rig, Order::Forward, program, &[says]);
    let program = |threads| Program::new(&MODULE, "names_all", threads);
    says(program(0), "a block has 1 to 1024 threads");
    says(program(1025), "a block has 1 to 1024 threads");
    says(program(32).shared_bytes((227 << 10) + 1), "at most 227 KiB of shared memory");
    says(program(32).grid([1, 65536, 1]), "a grid has 1 to 2147483647, 65535, 65535 blocks");
    says(program(32).grid([1, 1, 65536]), "a grid has 1 to 2147483647, 65535, 65535 blocks");
    assert!(rig.run(program(1024).shared_bytes(227 << 10), &[0], 1).is_ok());
    assert!(rig.run(program(32).grid([1, 1, 65535]), &[0], 1).is_ok());
}

#[test]
fn what_cannot_be_launched_is_named() {
    let Some(mut rig) = Rig::new(Order::Forward) else { return };
    finds(&mut rig, Order::Forward, Program::new(&MODULE, "nothing", 32), &["there is no kernel nothing"]);
    static BROKEN: Module =
        Module { name: "broken", source: "extern \"C\" __global__ void broken() { undeclared(); }" };
    let error = rig.run(Program::new(&BROKEN, "broken", 32), &[0], 1).unwrap_err();
    assert!(error.contains("broken.cu") && error.contains("undeclared"), "{error}");
    static THREE: Module =
        Module { name: "three", source: "extern \"C\" __global__ void three(int, int, int) {}" };
    let error = rig.run(Program::new(&THREE, "three", 32), &[0], 1).unwrap_err();
    assert_eq!(error, "three: 2 arguments for 3 parameters");
}

/// After an error the stacks are used again.
#[test]
fn an_error_harms_no_later_launch() {
    in_every_order(|rig, _| {
        for _ in 0..3 {
            let wrong = Program::new(&MODULE, "not_all_at_the_barrier", 1024);
            assert!(rig.run(wrong, &[0], 1).is_err());
            assert!(rig.run(Program::new(&MODULE, "names_all", 1024), &[0], 1).is_ok());
        }
    });
}
