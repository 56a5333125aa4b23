//! Which function `cuGetProcAddress` finds, by the rules that real drivers follow.

use crate::util::Answer;
use vgmem_abi::{CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUDA_ERROR_INVALID_VALUE, functions};

/// Flags that exist: legacy streams, per-thread streams.
const FLAGS: u64 = 3;

/// What a lookup found, or why it found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The exported symbol that is meant.
    Symbol(&'static str),
    /// No function of that name, or the driver is too old to have it.
    NoSuchName,
    /// The function is newer than the version asked for.
    TooOld,
}

/// Finds the newest ABI of `name` that `version` knows, in a driver of version `driver`.
pub fn find(name: &str, version: i32, flags: u64, driver: u32) -> Answer<Found> {
    if flags & !FLAGS != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let version = u32::try_from(version).unwrap_or(0);
    let named = || functions().filter(move |f| f.base == name && f.version <= driver);
    if named().next().is_none() {
        return Ok(Found::NoSuchName);
    }
    let per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM != 0;
    // A function that has twins is never answered with the legacy variant when twins are wanted.
    let twins = per_thread && named().any(|f| f.twin.is_some());
    let newest = named()
        .filter_map(|f| {
            let (symbol, since) = if twins { f.twin? } else { (f.symbol, f.version) };
            (since <= version && since <= driver).then_some((since, f.version, symbol))
        })
        .max_by_key(|(since, plain, _)| (*since, *plain));
    Ok(newest.map_or(Found::TooOld, |(_, _, symbol)| Found::Symbol(symbol)))
}

#[cfg(test)]
mod tests {
    use super::Found::{NoSuchName, Symbol, TooOld};
    use super::*;

    fn ask(name: &str, version: i32, flags: u64) -> Found {
        find(name, version, flags, 13000).unwrap()
    }

    #[test]
    fn the_version_chooses_the_abi() {
        for version in [2000, 3010] {
            assert_eq!(ask("cuMemAlloc", version, 0), Symbol("cuMemAlloc"));
        }
        for version in [3020, 11040, 13000, 99999] {
            assert_eq!(ask("cuMemAlloc", version, 0), Symbol("cuMemAlloc_v2"));
        }
        assert_eq!(ask("cuMemAlloc", 0, 0), TooOld);
        assert_eq!(ask("cuMemAlloc", -1, 0), TooOld);
        assert_eq!(ask("cuGetProcAddress", 11030, 0), Symbol("cuGetProcAddress"));
        assert_eq!(ask("cuGetProcAddress", 12000, 0), Symbol("cuGetProcAddress_v2"));
        assert_eq!(ask("cuDeviceGetUuid", 11030, 0), Symbol("cuDeviceGetUuid"));
        assert_eq!(ask("cuDeviceGetUuid", 11040, 0), Symbol("cuDeviceGetUuid_v2"));
        assert_eq!(ask("cuStreamBeginCapture", 10000, 0), Symbol("cuStreamBeginCapture"));
        assert_eq!(ask("cuStreamBeginCapture", 10010, 0), Symbol("cuStreamBeginCapture_v2"));
        assert_eq!(ask("cuCtxCreate", 3020, 0), Symbol("cuCtxCreate_v2"));
        assert_eq!(ask("cuCtxCreate", 11040, 0), Symbol("cuCtxCreate_v3"));
    }

    #[test]
    fn only_base_names_are_known() {
        for name in ["cuMemAlloc_v2", "cuMemcpyHtoD_v2_ptds", "cuGetProcAddress_v2", "cuNothing", ""] {
            assert_eq!(ask(name, 13000, 0), NoSuchName, "{name}");
        }
        for name in ["cudbgApiInit", "cuMemGetAttribute", "cudnnCreate"] {
            assert_eq!(ask(name, 13000, 0), NoSuchName, "{name}");
        }
    }

    #[test]
    fn per_thread_streams_never_fall_back() {
        for flags in [0, 1] {
            assert_eq!(ask("cuMemcpyHtoD", 12040, flags), Symbol("cuMemcpyHtoD_v2"));
        }
        for flags in [2, 3] {
            assert_eq!(ask("cuMemcpyHtoD", 7000, flags), Symbol("cuMemcpyHtoD_v2_ptds"));
            assert_eq!(ask("cuMemcpyHtoD", 3020, flags), TooOld);
            assert_eq!(ask("cuMemAlloc", 3020, flags), Symbol("cuMemAlloc_v2"));
            assert_eq!(ask("cuStreamBeginCapture", 10010, flags), Symbol("cuStreamBeginCapture_v2_ptsz"));
        }
        assert_eq!(find("cuMemAlloc", 13000, 4, 13000), Err(CUDA_ERROR_INVALID_VALUE));
    }

    #[test]
    fn an_older_driver_lacks_newer_functions() {
        assert_eq!(find("cuFuncGetParamInfo", 13000, 0, 12000), Ok(NoSuchName));
        assert_eq!(find("cuFuncGetParamInfo", 13000, 0, 12040), Ok(Symbol("cuFuncGetParamInfo")));
        assert_eq!(find("cuCtxGetDevice", 13000, 0, 12090), Ok(Symbol("cuCtxGetDevice")));
        assert_eq!(find("cuCtxGetDevice", 13000, 0, 13000), Ok(Symbol("cuCtxGetDevice_v2")));
    }
}
