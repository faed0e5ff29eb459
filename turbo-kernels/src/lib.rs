//! One operation on device memory, with a CPU twin: the kernels of transformer inference
