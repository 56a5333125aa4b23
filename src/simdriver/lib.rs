//! The CUDA driver interface over simulated GPUs.
//!
//! Installed as `libcuda.so.1`, it exports every symbol of the driver table. A row marked `sim`
//! calls the function of its symbol's name in `calls`; a row marked `none` answers that it is not
//! supported.
#![allow(non_snake_case)]

mod calls;
mod decode;
mod entry;
mod exports;
mod lookup;
mod testing;
