//! The exported functions, expanded from the driver table.

use crate::calls;
use crate::entry::enter;
use std::sync::atomic::AtomicU64;
use vgmem_abi::*;

/// Address of an exported function.
#[derive(Clone, Copy)]
pub(crate) struct Address(pub *const ());

// SAFETY: the address of code, which is only handed on.
unsafe impl Sync for Address {}

/// An exported function: name, address, how often it was called.
pub(crate) struct Variant {
    pub symbol: &'static str,
    pub address: Address,
    pub calls: &'static AtomicU64,
}

/// One exported function.
macro_rules! one {
    ($symbol:ident ($($arg:ident: $type:ty),*) $call:expr) => {
        // The types say how to read what the program points to; the contract is the driver's.
        #[unsafe(no_mangle)]
        #[allow(clippy::missing_safety_doc, unused_variables, clippy::too_many_arguments)]
        #[doc(hidden)]
        pub unsafe extern "C" fn $symbol($($arg: $type),*) -> CUresult {
            enter(stringify!($symbol), &counters::$symbol, || $call)
        }
    };
}

/// The plain function of a row and its twin for per-thread default streams.
macro_rules! export {
    (none $symbol:ident [$($twin:ident)?] $args:tt) => {
        one! { $symbol $args Err(CUDA_ERROR_NOT_SUPPORTED) }
        $(one! { $twin $args Err(CUDA_ERROR_NOT_SUPPORTED) })?
    };
    (sim $symbol:ident [] ($($arg:ident: $type:ty),*)) => {
        // SAFETY: the program's promise to the driver, which `calls` builds on.
        one! { $symbol ($($arg: $type),*) unsafe { calls::$symbol($($arg),*) } }
    };
    (sim $symbol:ident [$twin:ident] ($($arg:ident: $type:ty),*)) => {
        // SAFETY: the program's promise to the driver, which `calls` builds on.
        one! { $symbol ($($arg: $type),*) unsafe { calls::$symbol(false, $($arg),*) } }
        // SAFETY: as above.
        one! { $twin ($($arg: $type),*) unsafe { calls::$symbol(true, $($arg),*) } }
    };
}

macro_rules! variant {
    ($symbol:ident) => {
        Variant {
            symbol: stringify!($symbol),
            address: Address($symbol as *const ()),
            calls: &counters::$symbol,
        }
    };
}

macro_rules! group {
    ($group:ident; $($action:ident $sim:ident $base:ident: $symbol:ident @ $version:literal
        $(/ $twin:ident @ $twin_version:literal)? ($($arg:ident: $type:ty),*);)*) => {
        $(export! { $sim $symbol [$($twin)?] ($($arg: $type),*) })*

        /// Exports of one group of the table.
        mod $group {
            use super::*;
            pub(super) static ALL: &[Variant] = &[$(variant!($symbol), $(variant!($twin),)?)*];
        }
    };
}

macro_rules! count {
    ($group:ident; $($action:ident $sim:ident $base:ident: $symbol:ident @ $version:literal
        $(/ $twin:ident @ $twin_version:literal)? ($($arg:ident: $type:ty),*);)*) => {
        $(
            pub(crate) static $symbol: AtomicU64 = AtomicU64::new(0);
            $(pub(crate) static $twin: AtomicU64 = AtomicU64::new(0);)?
        )*
    };
}

/// How often each symbol was called, under its name.
#[allow(non_upper_case_globals)]
mod counters {
    use super::*;
    for_each_driver_group! { count }
}

for_each_driver_group! { group }

/// All exported functions.
pub(crate) fn variants() -> impl Iterator<Item = &'static Variant> {
    [context::ALL, copy::ALL, execution::ALL, graph::ALL, memory::ALL, object::ALL].into_iter().flatten()
}
