//! The kernels that every machine has.

mod elementwise;
mod matrix;
mod pointers;

use crate::exec::Exec;
use crate::registry::Args;
use crate::util::Answer;

/// A kernel's body.
pub(crate) type Body = Box<dyn Fn(&Exec, &Args) -> Answer + Send + Sync>;

/// Takes a name, the parameters' sizes and a body.
pub(crate) type Add<'a> = &'a mut dyn FnMut(&str, &[u32], Body);

/// Size of an address, of a 64-bit number.
const PTR: u32 = 8;
const U64: u32 = 8;
/// Size of a 32-bit number.
const U32: u32 = 4;
const F32: u32 = 4;

/// Names all kernels.
pub(crate) fn each(add: Add) {
    elementwise::each(add);
    matrix::each(add);
    pointers::each(add);
}
