//! Memory, copies, the order of kernels, and recordings of them.

use std::{fmt::Write, sync::mpsc, thread, time::Duration};

use super::{add, bytes_of, download, free, on_a_gpu, upload};
use crate::{
    cuda::{
        Address, Driver,
        real::{
            Gpu,
            context::{Context, RawStream, describe},
            fake::{Fakes, apart, live, waits},
            recording::Captured,
        },
    },
    device::DeviceError,
};

#[test]
fn memory_is_zero_and_limited() {
    on_a_gpu(memory_is_zero_and_limited, &[("FAKE_MEMORY", "100000")], |gpu| {
        let mut stream = gpu.stream().unwrap();
        let block = gpu.allocate(4000).unwrap();
        assert_eq!(block.0 % 256, 0);
        assert_eq!(download(&mut *stream, block, 1000), [0; 1000]);
        assert_eq!(gpu.free_bytes().unwrap(), 96_000);
        assert!(matches!(gpu.allocate(96_001), Err(DeviceError::OutOfMemory { bytes: 96_001 })));
        // and everything works as before
        add(&mut *stream, block, 5, 1000).unwrap();
        assert_eq!(download(&mut *stream, block, 1000), [5; 1000]);
        free(gpu, block, 4000);
        let nothing = gpu.allocate(0).unwrap();
        assert_ne!(nothing, Address::NULL);
        assert_eq!(download(&mut *stream, nothing, 0), []);
        free(gpu, nothing, 0);
        assert_eq!(gpu.free_bytes().unwrap(), 100_000);
    });
}

#[test]
fn a_stream_keeps_its_order_and_what_it_was_given() {
    on_a_gpu(a_stream_keeps_its_order_and_what_it_was_given, &[], |gpu| {
        const COUNT: usize = 3_000_000; // 12 MB: both buffers, and the first one again
        let block = gpu.allocate(4 * COUNT).unwrap();
        let mut stream = gpu.stream().unwrap();
        let numbers: Vec<u32> = (0..COUNT as u32).collect();
        // pieces of any length; the host's copies are freed before the GPU reads any
        for (piece, from) in numbers.chunks(70_001).zip((0..).step_by(70_001)) {
            upload(&mut *stream, piece, block.offset(4 * from));
        }
        add(&mut *stream, block, 7, COUNT as u32).unwrap();
        upload(&mut *stream, &[1, 2, 3], block);
        let mut expected: Vec<u32> = numbers.iter().map(|number| number + 7).collect();
        expected[..3].copy_from_slice(&[1, 2, 3]);
        assert!(download(&mut *stream, block, COUNT) == expected);
        stream.synchronize().unwrap();
        free(gpu, block, 4 * COUNT);
    });
}

#[test]
fn copies_land_while_the_host_goes_on() {
    on_a_gpu(copies_land_while_the_host_goes_on, &[], |gpu| {
        let block = gpu.allocate(400).unwrap();
        let mut stream = gpu.stream().unwrap();
        let mut landings = [stream.landing().unwrap(), stream.landing().unwrap()];
        for bytes in [0, 400] {
            landings[1].reserve(bytes).unwrap();
        }
        assert!(landings[0].has_landed().unwrap() && landings[0].bytes().unwrap().is_empty());
        for landing in &mut landings {
            add(&mut *stream, block, 1, 100).unwrap();
            // SAFETY: the block has that many bytes, and is freed after both copies.
            unsafe { landing.fetch(block, 400) }.unwrap();
        }
        let [first, second] = &mut landings;
        // one look each for the addition, the copy, and the mark behind it
        let looks: Vec<bool> = (0..4).map(|_| first.has_landed().unwrap()).collect();
        assert_eq!(looks, [false, false, false, true]);
        assert_eq!(first.bytes().unwrap(), bytes_of(&[1; 100]));
        assert!(!second.has_landed().unwrap(), "nobody has waited for it");
        assert_eq!(second.bytes().unwrap(), bytes_of(&[2; 100]));
        // a landing that has to grow, beyond the next power of two, waits for copies under way; its values are lost
        // SAFETY: as above.
        unsafe { second.fetch(block, 100) }.unwrap();
        second.reserve(512).unwrap();
        assert_eq!(second.bytes().unwrap(), bytes_of(&[2; 25]), "there was room for more than 400");
        second.reserve(1000).unwrap();
        assert!(second.bytes().unwrap().is_empty());
        // dropping a landing waits, too, as does dropping the stream
        // SAFETY: as above.
        unsafe { second.fetch(block, 400) }.unwrap();
        drop(stream);
        drop(landings);
        free(gpu, block, 400);
    });
}

#[test]
fn a_recording_takes_no_copy() {
    on_a_gpu(a_recording_takes_no_copy, &[], |gpu| {
        let block = gpu.allocate(400).unwrap();
        let mut stream = gpu.stream().unwrap();
        let mut landing = stream.landing().unwrap();
        assert!(stream.begin_recording().unwrap());
        // SAFETY: the block has that many bytes.
        let error = unsafe { landing.fetch(block, 400) }.unwrap_err();
        assert_eq!(error.to_string(), "copy from the GPU: this cannot be recorded");
        drop(stream.end_recording().unwrap());
        free(gpu, block, 400);
    });
}

/// The thread that copies to a landing, or replays, may be another than the one that records.
#[test]
fn a_recording_begins_behind_what_it_cannot_hold() {
    on_a_gpu(a_recording_begins_behind_what_it_cannot_hold, &[], |_| {
        let (gpu, _) = describe(0).unwrap();
        let stream = &RawStream::new(&Context::of(gpu).unwrap()).unwrap();
        let outside = stream.outside_recordings("copy from the GPU").unwrap();
        let (begins, begun) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                stream.begin_recording().unwrap();
                begins.send(()).unwrap();
            });
            assert!(begun.recv_timeout(Duration::from_millis(20)).is_err(), "a copy is being enqueued");
            drop(outside);
            begun.recv().unwrap();
        });
        assert!(stream.outside_recordings("copy from the GPU").is_err());
        drop(Captured::of(stream).unwrap());
        stream.recording_ended();
        assert!(stream.outside_recordings("copy from the GPU").is_ok());
    });
}

#[test]
fn a_gpu_that_is_opened_twice_is_one() {
    on_a_gpu(a_gpu_that_is_opened_twice_is_one, &[], |gpu| {
        let again = Gpu::new(0).unwrap();
        let [block, other] = [gpu.allocate(400).unwrap(), again.allocate(400).unwrap()];
        let mut stream = gpu.stream().unwrap();
        assert!(stream.begin_recording().unwrap());
        add(&mut *stream, block, 1, 100).unwrap();
        let before = again.free_bytes().unwrap();
        // waiting for the whole GPU would end the recording
        free(&again, other, 400);
        assert_eq!(again.free_bytes().unwrap(), before);
        drop(stream.end_recording().unwrap());
        assert_eq!(again.free_bytes().unwrap(), before + 400);
        free(&again, block, 400);
    });
}

#[test]
fn memory_is_freed_behind_what_uses_it() {
    on_a_gpu(memory_is_freed_behind_what_uses_it, &[], |gpu| {
        let mut streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
        let block = gpu.allocate(400).unwrap();
        for stream in &mut streams {
            add(&mut **stream, block, 1, 100).unwrap();
        }
        // until then, an access to the freed memory would lose the GPU
        free(gpu, block, 400);
        gpu.free_bytes().unwrap();
        for stream in &mut streams {
            stream.synchronize().unwrap();
        }
        // a stream is also dropped only after its operations
        let block = gpu.allocate(400).unwrap();
        let mut stream = gpu.stream().unwrap();
        upload(&mut *stream, &[3; 100], block);
        add(&mut *stream, block, 1, 100).unwrap();
        drop(stream);
        assert_eq!(download(&mut *streams[0], block, 100), [4; 100]);
        free(gpu, block, 400);
    });
}

#[test]
fn a_model_is_given_back_by_one_wait() {
    on_a_gpu(a_model_is_given_back_by_one_wait, &[], |gpu| {
        let weights: Vec<_> = (0..200).map(|_| gpu.allocate(400).unwrap()).collect();
        let (before, taken) = (waits(), gpu.free_bytes().unwrap());
        weights.into_iter().for_each(|block| free(gpu, block, 400));
        assert_eq!(waits(), before);
        assert_eq!(gpu.free_bytes().unwrap(), taken + 200 * 400);
        assert_eq!(waits(), before + 1);
        // the next allocation finds the memory; without one, other processes lack little
        let block = gpu.allocate(400).unwrap();
        free(gpu, block, 400);
        let large = gpu.allocate(64 << 20).unwrap();
        assert_eq!(waits(), before + 2);
        let with_it = live();
        free(gpu, large, 64 << 20);
        assert_eq!((live(), waits()), (with_it - 1, before + 3));
        // dropping the GPU gives the rest back
        let last = gpu.allocate(400).unwrap();
        free(gpu, last, 400);
    });
}

#[test]
fn memory_that_cannot_go_yet_goes_later() {
    on_a_gpu(memory_that_cannot_go_yet_goes_later, &[("FAKE_REFUSED", "1")], |gpu| {
        let before = gpu.free_bytes().unwrap();
        let block = gpu.allocate(400).unwrap();
        let mut stream = gpu.stream().unwrap();
        add(&mut *stream, block, 1, 100).unwrap();
        free(gpu, block, 400);
        assert_eq!(gpu.free_bytes().unwrap(), before - 400, "what uses it may be under way");
        assert_eq!(gpu.free_bytes().unwrap(), before);
        stream.synchronize().unwrap();
    });
}

#[test]
fn a_lost_gpu_is_an_error() {
    let test = a_lost_gpu_is_an_error;
    let Some(fakes) = Fakes::all() else { return };
    let lose = || {
        let gpu = Gpu::new(0).unwrap();
        let block = gpu.allocate(400).unwrap();
        let mut stream = gpu.stream().unwrap();
        upload(&mut *stream, &[1; 100], block);
        add(&mut *stream, Address(0x1000), 1, 100).unwrap();
        let mut errors = String::new();
        for error in [
            stream.synchronize().unwrap_err(),
            add(&mut *stream, block, 1, 100).unwrap_err(),
            gpu.allocate(100).unwrap_err(),
            gpu.stream().err().unwrap(),
            gpu.free_bytes().unwrap_err(),
        ] {
            assert!(matches!(error, DeviceError::Lost { .. }), "{error:?}");
            writeln!(errors, "{error}").unwrap();
        }
        free(&gpu, block, 400);
        errors
    };
    let Some(answer) = apart(test, fakes.path(), &[], lose) else { return };
    let why = "an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS); this process can use the GPU no more";
    let what = ["wait for the GPU", "choose the GPU", "choose the GPU", "choose the GPU", "choose the GPU"];
    assert_eq!(answer, what.map(|what| format!("{what}: {why}")).join("\n"));
}

#[test]
fn recordings_are_replayed() {
    on_a_gpu(recordings_are_replayed, &[], |gpu| {
        let [block, other] = [gpu.allocate(400).unwrap(), gpu.allocate(400).unwrap()];
        let mut stream = gpu.stream().unwrap();
        assert!(stream.end_recording().is_err());
        add(&mut *stream, block, 1, 100).unwrap();
        assert!(stream.begin_recording().unwrap());
        add(&mut *stream, block, 10, 100).unwrap();
        add(&mut *stream, block, 10, 100).unwrap();
        // operations that a recording cannot hold are refused, and do not end it
        for refused in [
            // SAFETY: the block holds as much; nothing is copied.
            unsafe { stream.upload(&[0; 4], block) },
            // SAFETY: as above.
            unsafe { stream.download(block, &mut [0; 4]) },
            stream.synchronize(),
            stream.begin_recording().map(drop),
        ] {
            assert!(refused.unwrap_err().to_string().ends_with(": this cannot be recorded"));
        }
        // memory is allocated and freed as usual, but freed memory waits for the end
        free(gpu, other, 400);
        let before = gpu.free_bytes().unwrap();
        let recording = stream.end_recording().unwrap();
        assert_eq!(gpu.free_bytes().unwrap(), before + 400);

        assert_eq!(download(&mut *stream, block, 100), [1; 100]);
        for _ in 0..2 {
            // SAFETY: the block lives.
            unsafe { recording.replay() }.unwrap();
        }
        assert_eq!(download(&mut *stream, block, 100), [41; 100]);
        // a recording cannot hold another
        assert!(stream.begin_recording().unwrap());
        // SAFETY: as above.
        let refused = unsafe { recording.replay() }.unwrap_err();
        assert_eq!(refused.to_string(), "replay a recording: this cannot be recorded");
        drop(stream.end_recording().unwrap());
        // a recording keeps its stream, and none of the stream's operations are lost
        upload(&mut *stream, &[43; 100], block);
        drop(stream);
        // SAFETY: as above.
        unsafe { recording.replay() }.unwrap();
        drop(recording);

        // a recording that is never ended
        let mut stream = gpu.stream().unwrap();
        stream.begin_recording().unwrap();
        add(&mut *stream, block, 1000, 100).unwrap();
        drop(stream);
        assert_eq!(download(&mut *gpu.stream().unwrap(), block, 100), [63; 100]);
        free(gpu, block, 400);
    });
}

#[test]
fn a_recording_that_cannot_be_prepared_has_ended() {
    on_a_gpu(a_recording_that_cannot_be_prepared_has_ended, &[("FAKE_RUNNABLE", "0")], |gpu| {
        let block = gpu.allocate(400).unwrap();
        let mut stream = gpu.stream().unwrap();
        for _ in 0..2 {
            let other = gpu.allocate(400).unwrap();
            assert!(stream.begin_recording().unwrap());
            add(&mut *stream, block, 1000, 100).unwrap();
            free(gpu, other, 400);
            let before = gpu.free_bytes().unwrap();
            let error = stream.end_recording().unwrap_err();
            assert_eq!(error.to_string(), "prepare a recording: CUDA_ERROR_OUT_OF_MEMORY");
            assert_eq!(gpu.free_bytes().unwrap(), before + 400);
        }
        add(&mut *stream, block, 1, 100).unwrap();
        assert_eq!(download(&mut *stream, block, 100), [1; 100]);
        free(gpu, block, 400);
    });
}
