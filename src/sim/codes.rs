//! Result codes that only a driver gives.

use vgmem_abi::CUresult;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal,)*) => {
        $($(#[$doc])* pub const $name: CUresult = $value;)*

        /// Name of one of these codes.
        pub fn extra_code_name(code: CUresult) -> Option<&'static str> {
            match code {
                $($value => Some(stringify!($name)),)*
                _ => None,
            }
        }
    };
}

codes! {
    /// The limit does not exist on this GPU.
    CUDA_ERROR_UNSUPPORTED_LIMIT = 215,
    /// A kernel touched memory at an address that its type cannot have; the context is lost.
    CUDA_ERROR_MISALIGNED_ADDRESS = 716,
    /// Two captures would become one.
    CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
    /// A stream of the capture was not joined again.
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
    /// A captured stream would wait for work outside of the capture.
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
    /// The event was recorded in a captured stream.
    CUDA_ERROR_CAPTURED_EVENT = 907,
    /// The graph does not fit the executable graph.
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
}
