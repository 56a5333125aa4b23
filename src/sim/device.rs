//! Facts about the GPUs.

use crate::machine::Machine;
use crate::settings::Link;
use crate::util::{Answer, lock};
use vgmem_abi::*;

/// Clock of a GPU's memory in kHz, bits of the bus to it, bytes of the cache.
const MEMORY_CLOCK: i32 = 36;
const BUS: i32 = 5120;
const L2_CACHE: i32 = 38;

/// Attributes whose value is the same for every simulated GPU.
const ATTRIBUTES: &[(i32, i32)] = &[
    (1, 1024), // threads of a block
    (2, 1024), // block dimensions
    (3, 1024),
    (4, 64),
    (5, i32::MAX), // grid dimensions
    (6, 65535),
    (7, 65535),
    (8, 48 << 10),   // shared memory of a block
    (9, 64 << 10),   // constant memory
    (10, 32),        // warp
    (11, i32::MAX),  // pitch of copies
    (12, 64 << 10),  // registers of a block
    (13, 1_500_000), // clock, kHz
    (14, 512),       // texture alignment
    (15, 1),         // copies beside kernels
    (16, 132),       // multiprocessors
    (19, 1),         // host memory can be mapped
    (31, 1),         // concurrent kernels
    (21, 131_072),   // texture width
    (37, BUS),       // memory bus, bits
    (39, 2048),      // threads of a multiprocessor
    (40, 3),         // copy engines
    (41, 1),         // unified addressing
    (51, 32),        // texture pitch alignment
    (75, 9),         // compute capability
    (76, 0),
    (78, 1),         // stream priorities
    (81, 228 << 10), // shared memory of a multiprocessor
    (82, 64 << 10),  // registers of a multiprocessor
    (83, 1),         // managed memory
    (87, 2),         // single to double precision
    (89, 1),         // managed memory beside kernels
    (90, 1),         // preemption
    (91, 1),         // addresses of registered memory as they are
    (95, 1),         // cooperative launch
    (97, 227 << 10), // shared memory of a block, on request
    (99, 1),         // host registration
    (102, 1),        // virtual memory management
    (103, 1),        // POSIX file descriptors as handles
    (106, 32),       // blocks of a multiprocessor
    (110, 1),        // GPUDirect RDMA of mapped memory
    (111, 1),        // shared memory that the system takes
    (115, 1),        // pools of memory
    (116, 1),        // GPUDirect RDMA
    (117, 1),
    (118, 100),
    (119, 9), // handles of pools: descriptors, and fabric, which no pool here can have
    (120, 1), // clusters
    (121, 1), // deferred mapping
    (122, 1), // streams wait for and write values
    (123, 1), // of 64 bits too
    (124, 1), // and wait for bits that are not set
    (129, 1),
    (134, 0), // host NUMA node
    (142, 1),
];

/// No attribute has a greater number.
const LAST: i32 = 160;

/// Attribute numbers that depend on the machine.
const HOST_NUMA_VMM: i32 = 141;
const HOST_VMM: i32 = 145;

/// Facts that need no machine: the driver and the management library agree on them.
pub mod facts {
    use crate::util::mix;

    /// Name of every GPU.
    pub const NAME: &str = "Simulated GPU";
    /// Version of the driver's package.
    pub const DRIVER: &str = "580.0";

    /// Number of a GPU that no other has.
    pub fn uuid(gpu: u32) -> [u8; 16] {
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&mix(u64::from(gpu) + 1).to_be_bytes());
        uuid[8..].copy_from_slice(&mix(u64::from(gpu) + 1001).to_be_bytes());
        uuid
    }

    /// The GPU at `domain:bus:device.function`, the domain and the function optional.
    pub fn by_pci(text: &str) -> Option<u32> {
        let text = text.split('.').next().unwrap_or(text);
        let parts: Vec<_> = text.split(':').map(|part| u32::from_str_radix(part, 16)).collect();
        match parts.as_slice() {
            [Ok(0), Ok(bus), Ok(0)] | [Ok(bus), Ok(0)] => Some(bus.wrapping_sub(1)),
            _ => None,
        }
    }
}

impl Machine {
    /// `cuDeviceGetAttribute`; an attribute that is not known here is 0.
    pub fn device_attribute(&self, attribute: i32, device: u32) -> Answer<i32> {
        self.check_device(device)?;
        if !(1..=LAST).contains(&attribute) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Ok(match attribute {
            CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => device as i32 + 1,
            CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID | CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID => 0,
            HOST_NUMA_VMM => (self.settings.driver >= 12020) as i32,
            // Two transfers in a tick.
            MEMORY_CLOCK => (self.settings.speed.0 * 4_000 / BUS as u64) as i32,
            L2_CACHE => self.settings.speed.1 as i32,
            HOST_VMM => (self.settings.driver >= 13000) as i32,
            _ => ATTRIBUTES.iter().find(|(known, _)| *known == attribute).map_or(0, |(_, value)| *value),
        })
    }

    /// `cuDeviceGetName`.
    pub fn device_name(&self, device: u32) -> Answer<String> {
        self.check_device(device)?;
        Ok(facts::NAME.to_string())
    }

    /// `cuDeviceGetUuid`.
    pub fn device_uuid(&self, device: u32) -> Answer<[u8; 16]> {
        self.check_device(device)?;
        Ok(facts::uuid(device))
    }

    /// `cuDeviceGetPCIBusId`.
    pub fn device_pci(&self, device: u32) -> Answer<String> {
        self.check_device(device)?;
        Ok(format!("0000:{:02X}:00.0", device + 1))
    }

    /// `cuDeviceGetByPCIBusId`: `domain:bus:device.function`, the domain and the function optional.
    pub fn device_by_pci(&self, text: &str) -> Answer<u32> {
        let device = facts::by_pci(text).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.check_device(device).map(|()| device)
    }

    /// Bytes of memory of a GPU: free and total.
    pub fn memory_info(&self, device: u32) -> Answer<(u64, u64)> {
        lock(&self.memory).info(device)
    }

    /// `cuDeviceCanAccessPeer`: a GPU is no peer of its own.
    pub fn can_access_peer(&self, device: u32, peer: u32) -> Answer<bool> {
        self.check_device(device)?;
        self.check_device(peer)?;
        Ok(device != peer && lock(&self.memory).can_reach(device, peer))
    }

    /// `cuDeviceGetP2PAttribute`: rank, access, native atomics, arrays.
    pub fn peer_attribute(&self, attribute: i32, from: u32, to: u32) -> Answer<i32> {
        let reach = self.can_access_peer(from, to)?;
        if from == to {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        let nvlink = self.settings.link == Link::Nvlink4;
        match attribute {
            CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK => Ok(if nvlink { 0 } else { 1 }),
            2 | 4 => Ok(reach as i32),
            3 => Ok((reach && nvlink) as i32),
            _ => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }
}
