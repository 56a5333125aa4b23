//! Sharing physical memory with other processes by file descriptor.

use super::{Memory, Physical, bank};
use crate::util::Answer;
use std::os::fd::IntoRawFd;
use vgmem_abi::*;

impl Memory {
    /// `cuMemExportToShareableHandle`: a new descriptor that the program owns.
    pub fn export(&mut self, handle: u64, kind: i32) -> Answer<i32> {
        let physical = self.physical.get_mut(&handle).filter(|p| p.references > 0);
        let physical = physical.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || physical.handle_types & kind == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        if physical.foreign.is_some() {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        physical.exported = true;
        let (offset, size, place) = (physical.offset, physical.size, physical.place);
        let fd = self.bank(place)?.export(offset, size, place).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(fd.into_raw_fd())
    }

    /// `cuMemImportFromShareableHandle`: our own memory gets a further reference.
    pub fn import(&mut self, fd: i32, kind: i32) -> Answer<u64> {
        if kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let imported = bank::import(fd).ok_or(CUDA_ERROR_UNKNOWN)?;
        if self.bank(imported.place)?.is(imported.inode) {
            let same = |p: &Physical| {
                p.offset == imported.offset && p.place == imported.place && p.foreign.is_none()
            };
            if let Some((handle, physical)) = self.physical.iter_mut().find(|(_, p)| same(p)) {
                physical.references += 1;
                return Ok(*handle);
            }
        }
        let handle = crate::handle::fresh(crate::handle::Kind::Physical);
        let physical = Physical {
            place: imported.place,
            offset: imported.offset,
            size: imported.size,
            handle_types: kind,
            rdma: 0,
            foreign: Some(imported.file),
            references: 1,
            mappings: 0,
            exported: true,
        };
        self.physical.insert(handle, physical);
        Ok(handle)
    }
}
