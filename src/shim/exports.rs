//! The exported driver functions, expanded from the table.
#![allow(missing_docs, non_snake_case, non_upper_case_globals, clippy::missing_safety_doc)]

use std::ffi::c_void;

use crate::slot::Slot;

/// One exported function and its slot. `$hook` is the function in `hooks` that answers or looks on.
macro_rules! export {
    (forward $($rest:tt)*) => {};
    (hook $base:ident $symbol:ident $hook:ident $version:literal $threaded:literal
        ($($arg:ident: $type:ty),*)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol($($arg: $type),*) -> CUresult {
            let Some(real) = slots::$symbol.real() else { return slots::$symbol.missing() };
            // SAFETY: the slot holds the driver's function of this symbol, whose type the table states.
            let real = unsafe { std::mem::transmute::<*mut c_void, pointers::$hook>(real) };
            let _pass = crate::gate::pass();
            // SAFETY: the arguments are the program's, for a function of this type.
            unsafe { crate::hooks::$hook(real, $($arg),*) }
        }
    };
    (submit $base:ident $symbol:ident $hook:ident $version:literal $threaded:literal $args:tt) => {
        pass_on! { $base $symbol $hook $args
            {
                if stringify!($base) == "cuLaunchCooperativeKernelMultiDevice" {
                    crate::pager::unmarked(); // its streams are in a list
                }
                (crate::gate::pass(), crate::pager::Use::of_anything(false))
            }
            |(_pass, made), rc| {
                made.done(rc, crate::pager::default_stream(stream_of!($args), $threaded));
            }
        }
    };
    (retry $base:ident $symbol:ident $hook:ident $version:literal $threaded:literal
        ($($arg:ident: $type:ty),*)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol($($arg: $type),*) -> CUresult {
            let Some(real) = slots::$symbol.real() else { return slots::$symbol.missing() };
            // SAFETY: as for a hook.
            let real = unsafe { std::mem::transmute::<*mut c_void, pointers::$hook>(real) };
            let _pass = crate::gate::pass();
            // SAFETY: as for a hook. A call that failed for want of memory has done nothing.
            crate::start::with_room(|| unsafe { real($($arg),*) })
        }
    };
    (look $base:ident $symbol:ident $hook:ident $version:literal $threaded:literal $args:tt) => {
        pass_on! { $base $symbol $hook $args
            { (crate::gate::pass(), crate::pager::Held::of_everything()) }
            |_held, rc| {}
        }
    };
    (wait $base:ident $symbol:ident $hook:ident $version:literal $threaded:literal $args:tt) => {
        pass_on! { $base $symbol $hook $args
            { crate::quiet::before_wait(stringify!($base), handle_of!($args)) }
            |wait, rc| {
                drop(wait);
                crate::loud::noticed(rc);
                if rc == CUDA_SUCCESS {
                    crate::gate::idle_point();
                }
            }
        }
    };
    (observe $base:ident $symbol:ident $hook:ident $version:literal $threaded:literal
        ($($arg:ident: $type:ty),*)) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol($($arg: $type),*) -> CUresult {
            let Some(real) = slots::$symbol.real() else { return slots::$symbol.missing() };
            // SAFETY: as for a hook.
            let real = unsafe { std::mem::transmute::<*mut c_void, pointers::$hook>(real) };
            // SAFETY: as for a hook.
            let rc = unsafe { real($($arg),*) };
            crate::hooks::$hook(rc, $($arg),*);
            rc
        }
    };
}

/// Exports without a hook: the driver answers.
macro_rules! pass_on {
    ($base:ident $symbol:ident $hook:ident ($($arg:ident: $type:ty),*) $before:block
        |$held:pat_param, $rc:ident| $after:block) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol($($arg: $type),*) -> CUresult {
            let Some(real) = slots::$symbol.real() else { return slots::$symbol.missing() };
            // SAFETY: as for a hook.
            let real = unsafe { std::mem::transmute::<*mut c_void, pointers::$hook>(real) };
            let $held = $before;
            // SAFETY: as for a hook.
            let $rc = unsafe { real($($arg),*) };
            $after
            $rc
        }
    };
}

/// The argument that is a stream; NULL where there is none.
macro_rules! stream_of {
    () => { std::ptr::null_mut() };
    (($($args:tt)*)) => { stream_of!($($args)*) };
    ($arg:ident: CUstream $($rest:tt)*) => { $arg };
    ($skipped:tt $($rest:tt)*) => { stream_of!($($rest)*) };
}

/// The first argument as a number.
macro_rules! handle_of {
    (()) => {
        None
    };
    (($arg:ident: $($rest:tt)*)) => {
        Some($arg as usize)
    };
}

macro_rules! slot {
    (forward $($rest:tt)*) => {};
    ($action:ident $base:ident $symbol:ident $version:literal $threaded:literal) => {
        pub static $symbol: Slot = Slot::new(
            concat!(stringify!($symbol), "\0"),
            stringify!($base),
            $version,
            $threaded,
            super::$symbol as *const c_void,
        );
    };
}

macro_rules! listed {
    (forward $symbol:ident) => {
        None
    };
    ($action:ident $symbol:ident) => {
        Some(&slots::$symbol)
    };
}

/// The exports of one row: the plain function and its per-thread twin.
macro_rules! export_row {
    ($action:ident $base:ident $symbol:ident $version:literal [$($twin:ident $twin_version:literal)?]
        $args:tt) => {
        export! { $action $base $symbol $symbol $version false $args }
        $(export! { $action $base $twin $symbol $twin_version true $args })?
    };
}

macro_rules! expand {
    ($group:ident; $($action:ident $sim:ident $base:ident: $symbol:ident @ $version:literal
        $(/ $twin:ident @ $twin_version:literal)? ($($args:tt)*);)*) => {
        pub mod $group {
            use super::{Slot, c_void};
            #[allow(unused_imports)]
            use vgmem_abi::*;
            $(export_row! { $action $base $symbol $version [$($twin $twin_version)?] ($($args)*) })*
            pub mod slots {
                #[allow(unused_imports)]
                use super::{Slot, c_void};
                $(
                    slot! { $action $base $symbol $version false }
                    $(slot! { $action $base $twin $twin_version true })?
                )*
            }
            pub static ALL: &[Option<&Slot>] = &[
                $(listed!($action $symbol), $(listed!($action $twin),)?)*
            ];
        }
    };
}

vgmem_abi::for_each_driver_group! { expand }

/// The slots of all exported driver functions.
pub fn slots() -> impl Iterator<Item = &'static Slot> {
    [context::ALL, copy::ALL, execution::ALL, graph::ALL, memory::ALL, object::ALL]
        .into_iter()
        .flatten()
        .filter_map(|slot| *slot)
}
