//! Converts status codes of CUDA's libraries to errors of the device.

use std::ffi::CStr;

use cudarc::driver::DriverError;

use super::{cu, lt};
use crate::device::DeviceError;

/// Converts a status of the driver to an error of the device.
pub(super) fn check(what: &'static str, result: cu::CUresult) -> Result<(), DeviceError> {
    result.result().map_err(|error| {
        let why = driver_says(error);
        match is_lost(error.0) {
            true => DeviceError::Lost { what, why },
            false => DeviceError::Failed { what, why },
        }
    })
}

/// Converts a status of cuBLASLt to an error of the device.
pub(super) fn check_lt(what: &'static str, status: lt::cublasStatus_t) -> Result<(), DeviceError> {
    status.result().map_err(|error| DeviceError::Failed { what, why: format!("{:?}", error.0) })
}

/// The driver's text for an error, and the error's name.
pub(super) fn driver_says(error: DriverError) -> String {
    let mut text = std::ptr::null();
    // SAFETY: the function writes one pointer, which is null or points to a string that lives as long as the driver.
    let has_text = unsafe { cu::cuGetErrorString(error.0, &mut text) }.result().is_ok() && !text.is_null();
    // SAFETY: as above: the string ends with a zero.
    let text = has_text.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy());
    match text {
        Some(text) => format!("{text} ({:?})", error.0),
        None => format!("{:?}", error.0),
    }
}

/// Whether every later call in this process will fail with the same error.
fn is_lost(error: cu::CUresult) -> bool {
    use cu::CUresult as E;
    matches!(
        error,
        E::CUDA_ERROR_ILLEGAL_ADDRESS
            | E::CUDA_ERROR_LAUNCH_TIMEOUT
            | E::CUDA_ERROR_ASSERT
            | E::CUDA_ERROR_HARDWARE_STACK_ERROR
            | E::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | E::CUDA_ERROR_MISALIGNED_ADDRESS
            | E::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | E::CUDA_ERROR_INVALID_PC
            | E::CUDA_ERROR_LAUNCH_FAILED
            | E::CUDA_ERROR_ECC_UNCORRECTABLE
            | E::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | E::CUDA_ERROR_CONTAINED
            | E::CUDA_ERROR_TENSOR_MEMORY_LEAK
            | E::CUDA_ERROR_MPS_RPC_FAILURE
            | E::CUDA_ERROR_MPS_CLIENT_TERMINATED
            | E::CUDA_ERROR_EXTERNAL_DEVICE
            | E::CUDA_ERROR_CONTEXT_IS_DESTROYED
            // returned by a GPU that fell off the bus
            | E::CUDA_ERROR_UNKNOWN
    )
}

#[cfg(test)]
mod tests {
    use super::{super::nvrtc, *};

    /// CUDA must never return a code that the bindings do not know: those of the newest CUDA include all older codes.
    #[test]
    fn the_newest_answers_have_names() {
        assert_eq!(cu::CUresult::CUDA_ERROR_FABRIC_NOT_READY as u32, 919, "of driver 13.4");
        assert_eq!(nvrtc::nvrtcResult::NVRTC_ERROR_BUSY as u32, 18, "of NVRTC 13.3");
    }

    #[test]
    fn what_lasts_is_told_from_what_passes() {
        use cu::CUresult as E;
        // a hardware fault that the GPU contained, a shared GPU whose server is gone or has ended this client, and a
        // GPU that has vanished all last
        for lasts in [
            E::CUDA_ERROR_ILLEGAL_ADDRESS,
            E::CUDA_ERROR_CONTAINED,
            E::CUDA_ERROR_TENSOR_MEMORY_LEAK,
            E::CUDA_ERROR_MPS_RPC_FAILURE,
            E::CUDA_ERROR_MPS_CLIENT_TERMINATED,
            E::CUDA_ERROR_EXTERNAL_DEVICE,
            E::CUDA_ERROR_UNKNOWN,
        ] {
            assert!(is_lost(lasts), "{lasts:?}");
        }
        let capture = E::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        for passes in [E::CUDA_ERROR_OUT_OF_MEMORY, E::CUDA_ERROR_NOT_READY, capture] {
            assert!(!is_lost(passes), "{passes:?}");
        }
    }
}
