//! Everything here, on libraries that pretend to be CUDA's: what is missing, and what a GPU is told.

use std::{ffi::c_void, fmt::Write, fs, path::Path, ptr};

use half::{bf16, f16};

use super::{
    Gpu, available,
    fake::{Fakes, apart, compiled, live, said, twice_apart},
    remainder,
};
use crate::{
    Activation,
    cuda::{
        Address, Driver, FloatType, Kernel, LaunchShape, Matrices, Module, Product, Stream,
        emulator::{Emulator, Order},
    },
    device::DeviceError,
    matmul::Rhs,
};

/// What opening the GPU answers.
fn report() -> String {
    match Gpu::new(0) {
        Ok(gpu) => gpu.info().name.clone(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn without_a_driver_there_is_one_line() {
    let nothing = tempfile::tempdir().unwrap();
    let test = without_a_driver_there_is_one_line;
    let Some(answer) = apart(test, nothing.path(), &[], || format!("{}, {}", report(), available().is_err()))
    else {
        return;
    };
    if Path::new("/dev/nvidiactl").exists() {
        return println!("skipped: this machine has a driver");
    }
    let expected =
        "no NVIDIA driver found (libcuda.so.1); install one for CUDA 12.0 or newer, from 525 on, true";
    assert_eq!(answer, expected);
}

#[test]
fn what_is_missing_is_said() {
    let test = what_is_missing_is_said;
    const CUDA: (&str, &str) = ("libcuda.so", "cuda");
    const NVRTC: (&str, &str) = ("libnvrtc.so", "nvrtc");
    let ask = |libraries: &[(&str, &str)], variables: &[(&str, &str)]| {
        apart(test, Fakes::named(libraries)?.path(), variables, report)
    };
    if ask(&[CUDA], &[]).is_none() {
        return;
    }
    for (libraries, expected) in [
        (
            &[("libcuda.so", "cuda-without-graphs")][..],
            "libcuda.so.1 has no function cuGraphLaunch: install it anew",
        ),
        (
            &[CUDA],
            "NVRTC not found; pip install 'nvidia-cuda-nvrtc==13.*' into the active environment, or name its folder in \
             TURBO_CUDA_LIB_DIR",
        ),
        (
            &[CUDA, NVRTC],
            "cuBLASLt not found; pip install 'nvidia-cublas==13.*' into the active environment, or name its folder in \
             TURBO_CUDA_LIB_DIR",
        ),
    ] {
        assert_eq!(ask(libraries, &[]).unwrap(), expected);
    }
    let all = [CUDA, NVRTC, ("libcublasLt.so", "cublasLt")];
    for (variable, value, expected) in [
        (
            "FAKE_DRIVER",
            "11040",
            "the NVIDIA driver is for CUDA 11.4, needed is 12.0 or newer: install driver 525 or newer",
        ),
        (
            "FAKE_GPUS",
            "-1",
            "the NVIDIA driver gives no GPU (no CUDA-capable device is detected (CUDA_ERROR_NO_DEVICE)); see what \
             nvidia-smi says, and CUDA_VISIBLE_DEVICES",
        ),
        (
            "FAKE_GPUS",
            "0",
            "the NVIDIA driver gives no GPU (it counts none); see what nvidia-smi says, and CUDA_VISIBLE_DEVICES",
        ),
        (
            "FAKE_NVRTC",
            "14010",
            "NVRTC is of CUDA 14.1, needed is one of 12.0 to 13: pip install 'nvidia-cuda-nvrtc==13.*'",
        ),
        (
            "FAKE_NVRTC",
            "11080",
            "NVRTC is of CUDA 11.8, needed is one of 12.0 to 13: pip install 'nvidia-cuda-nvrtc==13.*'",
        ),
        (
            "FAKE_DRIVER",
            "12080",
            "NVRTC is of CUDA 13.0, needed is one of 12.0 to 12: pip install 'nvidia-cuda-nvrtc-cu12'",
        ),
        (
            "FAKE_CUBLAS",
            "110905",
            "cuBLASLt is of CUDA 11.9, needed is one of 12.0 to 13: pip install 'nvidia-cublas==13.*'",
        ),
        ("FAKE_CAPABILITY", "75", "Pretended GPU 0 has compute capability 7.5, needed is 8.0 or more"),
        ("FAKE_CAPABILITY", "120", "NVRTC 13.0 cannot compile for Pretended GPU 0: install a newer one"),
        ("FAKE_GPUS", "2", "Pretended GPU 0"),
    ] {
        assert_eq!(ask(&all, &[(variable, value)]).unwrap(), expected);
    }
}

#[test]
fn gpus_are_listed_and_counted() {
    let Some(fakes) = Fakes::all() else { return };
    let list = || {
        let gpus = available().unwrap();
        format!("{gpus:?}, {}", Gpu::new(2).unwrap_err())
    };
    let Some(answer) = apart(gpus_are_listed_and_counted, fakes.path(), &[("FAKE_GPUS", "2")], list) else {
        return;
    };
    let gpu = |number| {
        format!(
            "DeviceInfo {{ name: \"Pretended GPU {number}\", compute_capability: (9, 0), multiprocessors: 132, \
             memory_bytes: 1073741824, shared_bytes: 232448 }}"
        )
    };
    assert_eq!(answer, format!("[{}, {}], no GPU 2, there are 2 from 0 on", gpu(0), gpu(1)));
}

#[test]
fn libraries_are_found_where_no_loader_looks() {
    let test = libraries_are_found_where_no_loader_looks;
    let Some(loader) = Fakes::named(&[("libcuda.so", "cuda")]) else { return };
    let places = Fakes::named(&[
        ("here/libnvrtc.so.13", "nvrtc"),
        ("here/libnvrtc-builtins.so.13.0", "nvrtc"),
        ("here/libcublasLt.so.13", "cublasLt"),
        ("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13", "nvrtc"),
        ("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc-builtins.so.13.0", "nvrtc"),
        ("venv/lib/python3.12/site-packages/nvidia/cublas/lib/libcublasLt.so.13", "cublasLt"),
    ]);
    let places = places.expect("there is a compiler");
    let [here, venv] = ["here", "venv"].map(|place| places.path().join(place).to_str().unwrap().to_owned());
    for variables in
        [[("TURBO_CUDA_LIB_DIR", here.as_str())], [("VIRTUAL_ENV", &venv)], [("CONDA_PREFIX", &venv)]]
    {
        match apart(test, loader.path(), &variables, report) {
            Some(answer) => assert_eq!(answer, "Pretended GPU 0", "{variables:?}"),
            None => return,
        }
    }
}

static KERNELS: Module =
    Module { name: "kernels", source: "add_u32(unsigned* to, unsigned amount, unsigned count) large_u32()" };

fn kernel(name: &'static str) -> Kernel {
    Kernel { module: &KERNELS, name }
}

const SHAPE: LaunchShape = LaunchShape { grid: [2, 3, 1], block: 64, shared_bytes: 0 };

/// Adds `amount` to `count` numbers.
fn add(stream: &mut dyn Stream, to: Address, amount: u32, count: u32) -> Result<(), DeviceError> {
    let (mut to, mut amount, mut count) = (to, amount, count);
    let mut arguments: [*mut c_void; 3] =
        [ptr::from_mut(&mut to).cast(), ptr::from_mut(&mut amount).cast(), ptr::from_mut(&mut count).cast()];
    // SAFETY: these are what the pretended kernel reads; it looks itself whether `to` is memory.
    unsafe { stream.launch(kernel("add_u32"), SHAPE, &mut arguments) }
}

fn bytes_of(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn upload(stream: &mut dyn Stream, numbers: &[u32], to: Address) {
    // SAFETY: every test here makes blocks as long as what it copies.
    unsafe { stream.upload(&bytes_of(numbers), to) }.unwrap();
}

fn download(stream: &mut dyn Stream, from: Address, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; 4 * count];
    // SAFETY: as above.
    unsafe { stream.download(from, &mut bytes) }.unwrap();
    bytes.chunks_exact(4).map(|number| u32::from_le_bytes(number.try_into().unwrap())).collect()
}

/// Gives back what `allocate` gave for `bytes` bytes.
fn free(gpu: &Gpu, address: Address, bytes: usize) {
    // SAFETY: each test frees its blocks once, and enqueues nothing with them after.
    unsafe { gpu.free(address, bytes) };
}

/// `body` in a process with all pretended libraries. There it must hold, and leave no handle and no memory behind.
fn on_a_gpu<F: Fn()>(test: F, variables: &[(&str, &str)], body: impl FnOnce(&Gpu)) {
    let Some(fakes) = Fakes::all() else { return };
    let whole = || {
        let gpu = Gpu::new(0).unwrap();
        body(&gpu);
        drop(gpu);
        format!("{} live", live())
    };
    if let Some(answer) = apart(test, fakes.path(), variables, whole) {
        assert_eq!(answer, "0 live");
    }
}

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
        // pieces of any length; the host's copies are gone before the GPU reads any
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
fn memory_is_freed_behind_what_uses_it() {
    on_a_gpu(memory_is_freed_behind_what_uses_it, &[], |gpu| {
        let mut streams = [gpu.stream().unwrap(), gpu.stream().unwrap()];
        let block = gpu.allocate(400).unwrap();
        for stream in &mut streams {
            add(&mut **stream, block, 1, 100).unwrap();
        }
        // before that, an access to what is freed would lose the GPU
        free(gpu, block, 400);
        for stream in &mut streams {
            stream.synchronize().unwrap();
        }
        // a stream is dropped behind what it was given, too
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
fn kernels_are_compiled_and_found_once() {
    on_a_gpu(kernels_are_compiled_and_found_once, &[], |gpu| {
        static WRONG: Module = Module { name: "wrong", source: "mistake" };
        let block = gpu.allocate(400).unwrap();
        for _ in 0..2 {
            let mut stream = gpu.stream().unwrap();
            for _ in 0..2 {
                add(&mut *stream, block, 1, 100).unwrap();
            }
        }
        assert_eq!(compiled(), 1);
        let launched = "launched add_u32 2 3 1 by 64 with 0\n".repeat(4);
        assert_eq!(said(), format!("found add_u32\n{launched}"));

        let mut stream = gpu.stream().unwrap();
        let mut launch = |kernel, shared_bytes| {
            // SAFETY: these kernels take nothing.
            unsafe { stream.launch(kernel, LaunchShape { shared_bytes, ..SHAPE }, &mut []) }
        };
        let error = launch(kernel("none_u32"), 0).unwrap_err().to_string();
        assert_eq!(error, "find a kernel: there is no none_u32");
        let error = launch(Kernel { module: &WRONG, name: "wrong_u32" }, 0).unwrap_err().to_string();
        assert_eq!(error, "compile kernels: NVRTC_ERROR_COMPILATION\nkernels.cu(1): error: a mistake");

        let before = said().len();
        for shared_bytes in [48 << 10, 100 << 10, 60 << 10, 227 << 10] {
            launch(kernel("large_u32"), shared_bytes).unwrap();
        }
        let launched = |shared_bytes: u32| format!("launched large_u32 2 3 1 by 64 with {shared_bytes}\n");
        let expected = [
            "found large_u32\n".to_owned(),
            launched(48 << 10),
            "allowed large_u32 102400\n".to_owned(),
            launched(100 << 10),
            launched(60 << 10),
            "allowed large_u32 232448\n".to_owned(),
            launched(227 << 10),
        ];
        assert_eq!(said()[before..], expected.concat());
        let error = launch(kernel("large_u32"), 228 << 10).unwrap_err().to_string();
        assert_eq!(error, "raise a kernel's shared memory: CUDA_ERROR_INVALID_VALUE");
        drop(stream);
        free(gpu, block, 400);
    });
}

#[test]
fn compiled_kernels_outlive_the_process() {
    let test = compiled_kernels_outlive_the_process;
    let Some(fakes) = Fakes::all() else { return };
    let cache = tempfile::tempdir().unwrap();
    let variables = [("TURBO_CUDA_CACHE", cache.path().to_str().unwrap())];
    let launch = || {
        let gpu = Gpu::new(0).unwrap();
        let block = gpu.allocate(400).unwrap();
        let mut stream = gpu.stream().unwrap();
        add(&mut *stream, block, 1, 100).unwrap();
        assert_eq!(download(&mut *stream, block, 100), [1; 100]);
        free(&gpu, block, 400);
        format!("compiled {}", compiled())
    };
    // at once, each for itself or the later one after the first
    let Some(answers) = twice_apart(test, fakes.path(), &variables, launch) else { return };
    assert!(
        answers.iter().all(|answer| ["compiled 0", "compiled 1"].contains(&answer.as_str())),
        "{answers:?}"
    );
    let entries: Vec<_> = fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    assert!(entry.file_name().unwrap().to_str().unwrap().starts_with("kernels-sm_90-"), "{entry:?}");
    assert_eq!(apart(test, fakes.path(), &variables, launch).unwrap(), "compiled 0");
    // another GPU, another NVRTC
    for other in [("FAKE_CAPABILITY", "80"), ("FAKE_NVRTC", "12090")] {
        assert_eq!(apart(test, fakes.path(), &[variables[0], other], launch).unwrap(), "compiled 1");
    }
    fs::write(entry, "damaged").unwrap();
    assert_eq!(apart(test, fakes.path(), &variables, launch).unwrap(), "compiled 1");
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
        // what a recording cannot hold is refused, and ends nothing
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
        // memory comes and goes as ever, but what goes waits for the end
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
        // it keeps its stream
        drop(stream);
        // SAFETY: as above.
        unsafe { recording.replay() }.unwrap();
        drop(recording);

        // one that nobody ends
        let mut stream = gpu.stream().unwrap();
        stream.begin_recording().unwrap();
        add(&mut *stream, block, 1000, 100).unwrap();
        drop(stream);
        assert_eq!(download(&mut *gpu.stream().unwrap(), block, 100), [61; 100]);
        free(gpu, block, 400);
    });
}

/// A product of small whole numbers, of which every sum is exact in all types.
#[derive(Clone, Copy, Debug)]
struct Case {
    types: (FloatType, FloatType),
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    w_order: Rhs,
    has_bias: bool,
    has_add: bool,
    activation: Option<Activation>,
    /// Elements that lie before and between rows and matrices, where nothing is read or written.
    gap: usize,
}

const PLAIN: Case = Case {
    types: (FloatType::F32, FloatType::F32),
    batch: 1,
    m: 3,
    n: 4,
    k: 5,
    w_order: Rhs::Transposed,
    has_bias: false,
    has_add: false,
    activation: None,
    gap: 0,
};

fn encode(float: FloatType, values: &[f32]) -> Vec<u8> {
    match float {
        FloatType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        FloatType::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        FloatType::Bf16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
    }
}

fn decode(float: FloatType, bytes: &[u8]) -> Vec<f32> {
    let two = |bytes: &[u8]| [bytes[0], bytes[1]];
    match float {
        FloatType::F32 => {
            bytes.chunks(4).map(|value| f32::from_le_bytes(value.try_into().unwrap())).collect()
        }
        FloatType::F16 => bytes.chunks(2).map(|value| f16::from_le_bytes(two(value)).to_f32()).collect(),
        FloatType::Bf16 => bytes.chunks(2).map(|value| bf16::from_le_bytes(two(value)).to_f32()).collect(),
    }
}

/// `batch` matrices in a block of their own.
struct Held {
    float: FloatType,
    values: Vec<f32>,
    /// Elements before the first matrix.
    gap: usize,
    place: Matrices,
}

impl Held {
    /// Values from -2 to 2, other ones for another `seed`; what lies between them is 77.
    fn new(
        driver: &dyn Driver,
        stream: &mut dyn Stream,
        float: FloatType,
        [batch, rows, columns]: [usize; 3],
        gap: usize,
        seed: usize,
    ) -> Self {
        let row_stride = columns + gap;
        let batch_stride = rows * row_stride + gap;
        let mut values = vec![77.0; gap + batch * batch_stride];
        for (b, i, j) in each(batch, rows, columns) {
            let number = (b * 31 + i * 7 + j * 3 + seed) * 2_654_435_761 % (1 << 32);
            values[gap + b * batch_stride + i * row_stride + j] = (number >> 13) as f32 % 5.0 - 2.0;
        }
        let block = driver.allocate(values.len() * float.bytes()).unwrap();
        // SAFETY: the block holds as many.
        unsafe { stream.upload(&encode(float, &values), block) }.unwrap();
        let place = Matrices { first: block.offset(gap * float.bytes()), row_stride, batch_stride };
        Self { float, values, gap, place }
    }

    fn block(&self) -> Address {
        Address(self.place.first.0 - (self.gap * self.float.bytes()) as u64)
    }

    fn index(&self, b: usize, i: usize, j: usize) -> usize {
        self.gap + b * self.place.batch_stride + i * self.place.row_stride + j
    }

    fn get(&self, b: usize, i: usize, j: usize) -> f32 {
        self.values[self.index(b, i, j)]
    }

    fn free(self, driver: &dyn Driver) {
        // SAFETY: it was allocated with as many bytes; nothing is enqueued later.
        unsafe { driver.free(self.block(), self.values.len() * self.float.bytes()) };
    }
}

fn each(batch: usize, rows: usize, columns: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..batch).flat_map(move |b| (0..rows).flat_map(move |i| (0..columns).map(move |j| (b, i, j))))
}

/// Does the product by `multiply` and compares every value of `y`, and what lies between them, with a loop in f64.
fn check(driver: &dyn Driver, stream: &mut dyn Stream, case: Case, multiply: fn(&mut dyn Stream, &Product)) {
    let Case { types: (input, output), batch, m, n, k, w_order, gap, .. } = case;
    let mut hold = |float, sizes, seed| Held::new(driver, stream, float, sizes, gap, seed);
    let x = hold(input, [batch, m, k], 1);
    let w = hold(input, if w_order == Rhs::Normal { [batch, k, n] } else { [batch, n, k] }, 2);
    let bias = hold(input, [1, 1, n], 3);
    let add = hold(output, [batch, m, n], 4);
    let mut y = hold(output, [batch, m, n], 5);
    let product = Product {
        input,
        output,
        batch,
        m,
        n,
        k,
        x: x.place,
        w: w.place,
        w_order,
        y: y.place,
        bias: if case.has_bias { bias.place.first } else { Address::NULL },
        activation: case.activation,
        add: case.has_add.then_some(add.place),
        tf32: false,
    };
    multiply(stream, &product);
    let mut bytes = vec![0; y.values.len() * output.bytes()];
    // SAFETY: the block holds as many.
    unsafe { stream.download(y.block(), &mut bytes) }.unwrap();
    for (b, i, j) in each(batch, m, n) {
        let mut sum: f64 = (0..k)
            .map(|at| {
                let w = if w_order == Rhs::Normal { w.get(b, at, j) } else { w.get(b, j, at) };
                f64::from(x.get(b, i, at) * w)
            })
            .sum();
        sum += if case.has_bias { f64::from(bias.get(0, 0, j)) } else { 0.0 };
        sum += if case.has_add { f64::from(add.get(b, i, j)) } else { 0.0 };
        let at = y.index(b, i, j);
        y.values[at] = case.activation.map_or(sum, |activation| activated(activation, sum)) as f32;
    }
    for (at, (got, want)) in decode(output, &bytes).into_iter().zip(&y.values).enumerate() {
        // sums are exact; an activation is off by some 1e-6 of values up to 100, and then rounded once
        let tolerance = if case.activation.is_none() { 0.0 } else { 1e-4 + want.abs() * 2f32.powi(-8) };
        assert!((got - want).abs() <= tolerance, "{case:?}: value {at} is {got}, not {want}");
    }
    [x, w, bias, add, y].into_iter().for_each(|held| held.free(driver));
}

fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Relu => x.max(0.0),
        Activation::GeluTanh => {
            x / 2.0 * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x.powi(3))).tanh())
        }
        Activation::Silu => x / (1.0 + (-x).exp()),
        other => unimplemented!("{other:?}"),
    }
}

fn multiply(stream: &mut dyn Stream, product: &Product) {
    // SAFETY: `check` made blocks that hold all of it.
    unsafe { stream.product(product) }.unwrap();
}

#[test]
fn products_are_described_to_cublas_lt() {
    use Activation::{GeluTanh, Relu};
    use FloatType::{Bf16, F32};
    on_a_gpu(products_are_described_to_cublas_lt, &[], |gpu| {
        let mut stream = gpu.stream().unwrap();
        for types in [(F32, F32), (Bf16, Bf16), (Bf16, F32)] {
            for w_order in [Rhs::Normal, Rhs::Transposed] {
                let plain = Case { types, w_order, ..PLAIN };
                for case in [
                    plain,
                    Case { batch: 3, gap: 2, ..plain },
                    Case { m: 1, n: 1, k: 1, ..plain },
                    Case { has_add: true, gap: 1, ..plain },
                    Case { has_add: true, batch: 2, activation: Some(Relu), ..plain },
                    Case { m: 0, ..plain },
                    Case { batch: 0, ..plain },
                ] {
                    check(gpu, &mut *stream, case, multiply);
                }
            }
        }
        // what the pretended GPU does without kernels of ours
        for types in [(F32, F32), (Bf16, Bf16)] {
            let biased = Case { types, has_bias: true, gap: 3, ..PLAIN };
            check(gpu, &mut *stream, biased, multiply);
            check(gpu, &mut *stream, Case { has_add: true, activation: Some(Relu), ..biased }, multiply);
        }
        let gelu = Case { types: (Bf16, Bf16), activation: Some(GeluTanh), ..PLAIN };
        check(gpu, &mut *stream, gelu, multiply);
        check(gpu, &mut *stream, Case { has_bias: true, batch: 2, ..gelu }, multiply);
    });
}

#[test]
fn algorithms_are_chosen_by_time_once_for_nearly_as_many_rows() {
    on_a_gpu(algorithms_are_chosen_by_time_once_for_nearly_as_many_rows, &[], |gpu| {
        let mut stream = gpu.stream().unwrap();
        let mut news = |stream: &mut dyn Stream, case| {
            let before = said().len();
            check(gpu, stream, case, multiply);
            said()[before..].to_owned()
        };
        let by = |algorithm: u32| format!("multiplied by algorithm {algorithm}\n");
        let eighteen = Case { m: 18, ..PLAIN };
        let first = news(&mut *stream, eighteen);
        // one run to load it and five to measure, of each that does anything; then the faster one
        let timed = by(0).repeat(6) + &by(1).repeat(6);
        assert_eq!(first, format!("proposed 8 to w 256 x 256 add 256 y 256\n{timed}{}", by(1)));
        assert_eq!(news(&mut *stream, eighteen), by(1));
        assert_eq!(news(&mut *stream, Case { m: 20, ..PLAIN }), by(1));
        // for 19 rows it does nothing: what cuBLASLt proposes first
        let once = format!("proposed 1 to w 256 x 256 add 256 y 256\n{}", by(0));
        assert_eq!(news(&mut *stream, Case { m: 19, ..PLAIN }), once);
        // another stream knows it, too
        assert_eq!(news(&mut *gpu.stream().unwrap(), eighteen), by(1));
        // another form is another choice
        let odd = news(&mut *stream, Case { m: 18, gap: 1, ..PLAIN });
        assert!(odd.starts_with("proposed 8 to w 4 x 4 add 4 y 4\n"), "{odd}");
        assert!(news(&mut *stream, Case { m: 21, ..PLAIN }).starts_with("proposed 8"));
    });
}

#[test]
fn a_recording_takes_what_is_proposed_first() {
    on_a_gpu(a_recording_takes_what_is_proposed_first, &[], |gpu| {
        let mut stream = gpu.stream().unwrap();
        let recorded = |stream: &mut dyn Stream, product: &Product| {
            let before = said().len();
            stream.begin_recording().unwrap();
            multiply(stream, product);
            let recording = stream.end_recording().unwrap();
            assert_eq!(
                said()[before..],
                *"proposed 1 to w 256 x 256 add 256 y 256\nmultiplied by algorithm 0\n"
            );
            // SAFETY: the blocks live.
            unsafe { recording.replay() }.unwrap();
        };
        check(gpu, &mut *stream, PLAIN, recorded);
        check(gpu, &mut *stream, PLAIN, recorded);
        let before = said().len();
        check(gpu, &mut *stream, PLAIN, multiply);
        assert!(said()[before..].starts_with("proposed 8"), "what was not timed is timed later");
    });
}

#[test]
fn what_cublas_lt_has_not_is_ours() {
    use Activation::{GeluErf, GeluTanh};
    use FloatType::{Bf16, F16, F32};
    on_a_gpu(what_cublas_lt_has_not_is_ours, &[], |gpu| {
        let mut stream = gpu.stream().unwrap();
        let mut launched = |change: fn(&mut Product)| {
            let matrices = |row_stride| {
                let first = gpu.allocate(1 << 16).unwrap();
                Matrices { first, row_stride, batch_stride: 1000 }
            };
            let mut product = Product {
                input: F32,
                output: F32,
                batch: 2,
                m: 17,
                n: 33,
                k: 5,
                x: matrices(5),
                w: matrices(5),
                w_order: Rhs::Transposed,
                y: matrices(33),
                bias: Address::NULL,
                activation: None,
                add: None,
                tf32: true,
            };
            change(&mut product);
            let before = said().len();
            // SAFETY: the blocks hold all of it.
            let result = unsafe { stream.product(&product) };
            stream.synchronize().unwrap();
            for matrices in [product.x, product.w, product.y] {
                free(gpu, matrices.first, 1 << 16);
            }
            match result {
                Ok(()) => {
                    let news = &said()[before..];
                    let line = news.lines().filter(|line| line.starts_with("launched")).collect::<String>();
                    assert!(line.is_empty() || news.ends_with(&format!("{line}\n")), "it comes last: {news}");
                    line
                }
                Err(error) => error.to_string(),
            }
        };
        // tiles of 16 × 16, and blocks of 256 values
        for (change, expected) in [
            ((|_| ()) as fn(&mut Product), ""),
            (|it| (it.input, it.output) = (F16, F16), "launched product_f16 12 1 1 by 256 with 0"),
            (|it| it.input = F16, "launched product_f16_to_f32 12 1 1 by 256 with 0"),
            (|it| it.k = 0, "launched product_f32 12 1 1 by 256 with 0"),
            (|it| it.x.row_stride = 4, "launched product_f32 12 1 1 by 256 with 0"),
            (|it| it.activation = Some(GeluErf), "launched finish_f32 5 1 1 by 256 with 0"),
            (|it| (it.input, it.bias) = (Bf16, it.w.first), "launched finish_bf16 5 1 1 by 256 with 0"),
            (
                |it| (it.input, it.activation) = (Bf16, Some(GeluTanh)),
                "launched finish_bf16 5 1 1 by 256 with 0",
            ),
            (
                |it| (it.input, it.output, it.activation) = (Bf16, Bf16, Some(GeluErf)),
                "multiply: GeluErf is not done with a product of Bf16",
            ),
        ] {
            assert_eq!(launched(change), expected);
        }
    });
}

/// Our kernels compute, on the emulated GPU, what cuBLASLt leaves to them.
#[test]
fn the_remainder_is_computed() {
    use Activation::{GeluTanh, Relu, Silu};
    use FloatType::{Bf16, F16, F32};
    fn whole(stream: &mut dyn Stream, product: &Product) {
        // SAFETY: `check` made blocks that hold all of it.
        unsafe { remainder::multiply(stream, product) }.unwrap();
    }
    fn in_two_steps(stream: &mut dyn Stream, product: &Product) {
        let first = Product { bias: Address::NULL, activation: None, ..*product };
        whole(stream, &first);
        // SAFETY: as above.
        unsafe { remainder::finish(stream, product) }.unwrap();
    }
    let Some(emulator) = Emulator::or_skip(Order::Seeded(3)) else { return };
    let mut stream = emulator.stream().unwrap();
    for types in [(F32, F32), (F16, F16), (Bf16, Bf16), (F16, F32), (Bf16, F32)] {
        let plain = Case { types, ..PLAIN };
        for case in [
            plain,
            Case { k: 0, has_bias: true, ..plain },
            Case { m: 17, n: 33, k: 18, batch: 2, gap: 3, ..plain },
            Case {
                m: 16,
                n: 16,
                k: 16,
                w_order: Rhs::Normal,
                has_bias: true,
                has_add: true,
                gap: 1,
                ..plain
            },
            Case { has_bias: true, has_add: true, batch: 3, activation: Some(GeluTanh), ..plain },
            Case { activation: Some(Silu), ..plain },
        ] {
            check(&emulator, &mut *stream, case, whole);
        }
        if types.1 == F32 {
            check(&emulator, &mut *stream, Case { has_bias: true, gap: 1, ..plain }, in_two_steps);
            let case = Case { m: 40, n: 9, batch: 2, has_add: true, activation: Some(Relu), ..plain };
            check(&emulator, &mut *stream, case, in_two_steps);
        }
    }
}
