//! Functions of the management library that the library answers.
//!
//! It is another library (`libnvidia-ml.so.1`), looked up by name everywhere. Its memory numbers must agree with
//! the driver's, or programs that read both plan wrongly.

/// Hands the rows to the macro `$then`, after the word `nvml`.
#[macro_export]
macro_rules! rows_nvml {
    ($then:ident) => {
        $then! { nvml;
            nvmlDeviceGetMemoryInfo (a: nvmlDevice_t, b: *mut nvmlMemory_t);
            nvmlDeviceGetMemoryInfo_v2 (a: nvmlDevice_t, b: *mut nvmlMemory_v2_t);
        }
    };
}
