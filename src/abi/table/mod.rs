//! The rows, grouped by what they are about, and the macros that hand them on.

mod context;
mod copy;
mod execution;
mod graph;
mod memory;
mod nvml;
mod object;
mod runtime;

use crate::{Action, Function};

/// Hands every group of driver rows to the macro `$then`.
///
/// `$then` receives the group's name, `;`, and the rows; `src/abi/table/mod.rs` shows the pattern.
#[macro_export]
macro_rules! for_each_driver_group {
    ($then:ident) => {
        $crate::rows_context! { $then }
        $crate::rows_copy! { $then }
        $crate::rows_execution! { $then }
        $crate::rows_graph! { $then }
        $crate::rows_memory! { $then }
        $crate::rows_object! { $then }
    };
}

macro_rules! action {
    (hook) => {
        Action::Hook
    };
    (observe) => {
        Action::Observe
    };
    (submit) => {
        Action::Submit
    };
    (retry) => {
        Action::Retry
    };
    (wait) => {
        Action::Wait
    };
    (look) => {
        Action::Look
    };
    (forward) => {
        Action::Forward
    };
}

macro_rules! simulated {
    (sim) => {
        true
    };
    (none) => {
        false
    };
}

macro_rules! twin {
    () => {
        None
    };
    ($twin:ident $version:literal) => {
        Some((stringify!($twin), $version))
    };
}

macro_rules! data {
    ($group:ident; $($action:ident $sim:ident $base:ident: $symbol:ident @ $version:literal
        $(/ $twin:ident @ $twin_version:literal)? ($($args:tt)*);)*) => {
        pub(crate) mod $group {
            use super::*;
            pub(crate) const ROWS: &[Function] = &[$(Function {
                base: stringify!($base),
                symbol: stringify!($symbol),
                version: $version,
                twin: twin!($($twin $twin_version)?),
                action: action!($action),
                simulated: simulated!($sim),
            }),*];
        }
    };
}

macro_rules! pointers {
    ($group:ident; $($action:ident $sim:ident $base:ident: $symbol:ident @ $version:literal
        $(/ $twin:ident @ $twin_version:literal)? ($($args:tt)*);)*) => { $(
            #[doc = concat!("Type of `", stringify!($symbol), "` and of its per-thread twin.")]
            pub type $symbol = unsafe extern "C" fn($($args)*) -> CUresult;
    )* };
}

/// The type of every driver function, under the name of its symbol.
#[allow(non_camel_case_types)]
pub mod pointers {
    use crate::*;
    for_each_driver_group! { pointers }
}

mod rows {
    use super::*;
    for_each_driver_group! { data }
}

pub(crate) const DRIVER: [&[Function]; 6] = [
    rows::context::ROWS,
    rows::copy::ROWS,
    rows::execution::ROWS,
    rows::graph::ROWS,
    rows::memory::ROWS,
    rows::object::ROWS,
];

macro_rules! names {
    (runtime; $($name:ident)*) => { &[$(stringify!($name)),*] };
}

pub(crate) const RUNTIME: &[&str] = crate::rows_runtime! { names };

macro_rules! rows_of_names {
    (nvml; $($name:ident ($($args:tt)*);)*) => { &[$(stringify!($name)),*] };
}

pub(crate) const NVML: &[&str] = crate::rows_nvml! { rows_of_names };
