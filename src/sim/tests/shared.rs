//! Several processes: capacity of one machine, memory and events of another process.
#![allow(clippy::unwrap_used)] // helpers of tests are tests too

mod common;

use common::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use vgmem_abi::*;
use vgmem_sim::{Machine, Settings};

const INVALID: u32 = CUDA_ERROR_INVALID_VALUE;

/// A forked process that runs `act`, and the parent's end of a line to it.
struct Child {
    pid: i32,
    line: UnixStream,
}

impl Child {
    fn start(act: impl FnOnce(&mut UnixStream)) -> Child {
        let (line, mut theirs) = UnixStream::pair().unwrap();
        // SAFETY: the child only runs the closure and leaves without cleaning up.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            drop(line);
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| act(&mut theirs)));
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(done.is_err() as i32) };
        }
        Child { pid, line }
    }

    fn hear(&mut self) -> u8 {
        let mut byte = [0];
        self.line.read_exact(&mut byte).unwrap();
        byte[0]
    }

    fn tell(&mut self, bytes: &[u8]) {
        self.line.write_all(bytes).unwrap();
    }

    fn kill(self) {
        // SAFETY: a process that this test has started and not waited for yet.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        self.end();
    }

    /// Waits for the end; gives the status.
    fn end(self) -> i32 {
        let mut status = 0;
        // SAFETY: waits for the child.
        unsafe { libc::waitpid(self.pid, &mut status, 0) };
        if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 }
    }
}

/// A machine that processes share, with a context.
fn shared(name: &str) -> &'static Machine {
    let mut settings = Settings::parse("gpus=2,mem=32M,host=16M").unwrap();
    settings.machine = Some(name.to_string());
    let m = Machine::new(settings).unwrap();
    m.create_context(0, 0).unwrap();
    m
}

/// A name that no other run has, whose file is removed in the end.
struct Name(String);

impl Name {
    fn new(test: &str) -> Name {
        Name(format!("test-{test}-{}", std::process::id()))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(format!("/dev/shm/vgmem-sim-{}", self.0));
    }
}

#[test]
fn processes_share_the_capacity_and_the_dead_use_nothing() {
    let name = Name::new("capacity");
    let m = shared(&name.0);
    let other = |size: u64| {
        let name = name.0.clone();
        Child::start(move |line| {
            let answer = shared(&name).allocate(size).err().unwrap_or(0);
            line.write_all(&[answer as u8]).unwrap();
            let _ = line.read(&mut [0]);
        })
    };
    let left = || m.memory_info(0).unwrap();
    let own = m.allocate(8 * MIB).unwrap();
    let mut first = other(20 * MIB);
    assert_eq!(first.hear(), 0);
    assert_eq!(left(), (4 * MIB, 32 * MIB));
    assert_eq!(m.memory_info(1), Ok((32 * MIB, 32 * MIB)));
    assert_eq!(vgmem_sim::shared_use(&name.0, 0), Some(28 * MIB));
    assert_eq!(m.allocate(6 * MIB), Err(CUDA_ERROR_OUT_OF_MEMORY));
    let mut second = other(6 * MIB);
    assert_eq!(second.hear(), CUDA_ERROR_OUT_OF_MEMORY as u8);
    first.kill();
    assert_eq!(left(), (24 * MIB, 32 * MIB));
    m.allocate(24 * MIB).unwrap();
    m.free(own).unwrap();
    assert_eq!(left(), (8 * MIB, 32 * MIB));
    drop(second.line);
    // The slot of a dead process is taken again, empty.
    let mut third = other(8 * MIB);
    assert_eq!(third.hear(), 0);
    assert_eq!(left().0, 0);
    third.kill();
    assert_eq!(left().0, 8 * MIB);
    // Pages of the host are shared as well.
    let page = at(CU_MEM_LOCATION_TYPE_HOST, 0, 0);
    m.create(16 * MIB, &page).unwrap();
    assert_eq!(m.create(PAGE, &page), Err(CUDA_ERROR_OUT_OF_MEMORY));
}

#[test]
fn many_processes_never_take_more_than_there_is() {
    let name = Name::new("race");
    let m = shared(&name.0);
    let mut children: Vec<Child> = (0..12)
        .map(|_| {
            let name = name.0.clone();
            Child::start(move |line| {
                let m = shared(&name);
                let taken = (0..8).filter(|_| m.allocate(PAGE).is_ok()).count();
                line.write_all(&[taken as u8]).unwrap();
                let _ = line.read(&mut [0]);
            })
        })
        .collect();
    let taken: u32 = children.iter_mut().map(|child| u32::from(child.hear())).sum();
    assert_eq!(taken, 16, "32 MiB are 16 pages");
    assert_eq!(m.memory_info(0).unwrap().0, 0);
    children.into_iter().for_each(Child::kill);
    assert_eq!(m.memory_info(0).unwrap().0, 32 * MIB);
}

#[test]
fn a_name_that_is_none_is_refused_in_one_line() {
    assert!(Settings::from_environment().unwrap().machine.is_none());
    let child = Child::start(|_| {
        // SAFETY: the child has one thread.
        unsafe { std::env::set_var("VGMEM_SIM_MACHINE", "../x") };
        let line = Settings::from_environment().unwrap_err();
        assert!(line.starts_with("VGMEM_SIM_MACHINE: ../x cannot be used") && !line.contains('\n'));
    });
    assert_eq!(child.end(), 0);
}

/// Starts a process that waits for bytes and then acts on a machine of its own.
fn importer<const N: usize>(act: impl FnOnce(&'static Machine, [u8; N], &mut UnixStream)) -> Child {
    Child::start(move |line| {
        let mut bytes = [0; N];
        line.read_exact(&mut bytes).unwrap();
        act(machine("gpus=2"), bytes, line);
    })
}

fn reply(line: &mut UnixStream) {
    line.write_all(&[1]).unwrap();
}

#[test]
fn memory_is_opened_by_another_process() {
    let mut child = importer::<128>(|m, both, line| {
        let [large, small] = [0, 64].map(|from| <[u8; 64]>::try_from(&both[from..from + 64]).unwrap());
        assert_eq!(m.open_ipc(&large, 0), Err(INVALID));
        assert_eq!(m.open_ipc(&[7; 64], 1), Err(INVALID));
        let at = m.open_ipc(&large, 1).unwrap();
        assert_eq!(m.open_ipc(&large, 1), Ok(at), "counted");
        let near = m.open_ipc(&small, 1).unwrap();
        assert_eq!(words(m, at, 4), Ok(vec![77; 4]));
        assert_eq!(words(m, near, 4), Ok(vec![78; 4]));
        assert_eq!(m.address_range(at + 5), Ok((at, 3_000_000)));
        let capable = CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
        assert_eq!(m.attribute(capable, at), Ok(vgmem_sim::Attribute::Word(0)));
        assert_eq!(m.ipc_handle(at), Err(INVALID));
        assert_eq!(m.free(at), Err(INVALID));
        fill(m, at, 99, 1).unwrap();
        assert_eq!(m.close_ipc(at + 8), Err(INVALID));
        assert_eq!([m.close_ipc(at), m.close_ipc(at), m.close_ipc(at)], [Ok(()), Ok(()), Err(INVALID)]);
        assert_eq!(fill(m, near, 98, 1), Ok(()));
        reply(line);
        line.read_exact(&mut [0]).unwrap();
        assert_eq!(m.open_ipc(&large, 1), Err(INVALID), "freed meanwhile");
        m.destroy_context(m.current_handle()).unwrap();
        assert_eq!(m.memory_info(0).unwrap().0, 24 << 30, "nothing of it was ours");
    });
    let m = machine("gpus=2");
    let large = m.allocate(3_000_000).unwrap();
    let small = [m.allocate(1000).unwrap(), m.allocate(1000).unwrap()][1];
    fill(m, large, 77, 4).unwrap();
    fill(m, small, 78, 4).unwrap();
    let handle = m.ipc_handle(large).unwrap();
    assert_eq!(m.ipc_handle(large + 4096), Ok(handle));
    assert_eq!([m.open_ipc(&handle, 1), m.open_ipc(&handle, 0)], [Err(201), Err(INVALID)]);
    let start = reserve(m, 1);
    page(m, start, &gpu(0));
    assert_eq!(m.ipc_handle(start).err(), Some(INVALID), "not for mapped pages");
    assert_eq!(m.close_ipc(large), Err(INVALID));
    child.tell(&handle);
    child.tell(&m.ipc_handle(small).unwrap());
    child.hear();
    assert_eq!(words(m, large, 2), Ok(vec![99, 77]));
    assert_eq!(words(m, small, 2), Ok(vec![98, 78]));
    m.free(large).unwrap();
    child.tell(&[1]);
    assert_eq!(child.end(), 0);
}

#[test]
fn an_event_is_seen_by_another_process() {
    let mut child = importer::<64>(|m, handle, line| {
        let event = m.open_event(&handle).unwrap();
        assert_eq!(m.open_event(&[1; 64]), Err(INVALID));
        assert_eq!(m.query_event(event), Err(CUDA_ERROR_NOT_READY));
        let on = stream(m.create_stream(1, 0).unwrap());
        m.wait_event(on, event, false).unwrap();
        assert_eq!(m.query_stream(on), Err(CUDA_ERROR_NOT_READY));
        reply(line);
        m.synchronize_event(event).unwrap();
        m.synchronize_stream(on).unwrap();
        // And the other way round.
        m.record_event(event, on, false).unwrap();
        m.synchronize_stream(on).unwrap();
        reply(line);
    });
    let m = machine("gpus=2");
    let plain = m.create_event(0).unwrap();
    assert_eq!(m.event_handle(plain), Err(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(m.create_event(4), Err(INVALID));
    let event = m.create_event(6).unwrap();
    let handle = m.event_handle(event).unwrap();
    assert_eq!(m.open_event(&handle), Err(201));
    m.query_event(event).unwrap();
    let gate = m.host_allocate(4096, 0).unwrap();
    let wait = vgmem_sim::ValueOp::wait(gate, 1, false, 0).unwrap();
    m.value_ops(vec![wait], stream(0)).unwrap();
    m.record_event(event, stream(0), false).unwrap();
    child.tell(&handle);
    child.hear();
    // SAFETY: pinned memory, which the waiting stream reads atomically.
    let flag: &std::sync::atomic::AtomicU32 = unsafe { &*std::ptr::with_exposed_provenance(gate as usize) };
    flag.store(1, std::sync::atomic::Ordering::SeqCst);
    m.synchronize_event(event).unwrap();
    child.hear();
    m.query_event(event).unwrap();
    assert_eq!(child.end(), 0);
}

/// Sends a descriptor to the child: by number, since it inherited the parent's.
#[test]
fn a_page_is_imported_by_another_process() {
    let m = machine("gpus=2");
    let fd_type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let start = reserve(m, 1);
    let handle = page(m, start, &at(CU_MEM_LOCATION_TYPE_DEVICE, 0, fd_type));
    fill(m, start, 5, 4).unwrap();
    let fd = m.export(handle, fd_type).unwrap();
    let child = Child::start(move |_| {
        let m = machine("gpus=2");
        let imported = m.import(fd, fd_type).unwrap();
        let there = reserve(m, 1);
        m.map(there, PAGE, 0, imported).unwrap();
        m.set_access(there, PAGE, &[grant(0, WRITE)]).unwrap();
        assert_eq!(words(m, there, 4), Ok(vec![5; 4]));
        fill(m, there, 6, 2).unwrap();
        m.unmap(there, PAGE).unwrap();
        m.release(imported).unwrap();
    });
    assert_eq!(child.end(), 0);
    assert_eq!(words(m, start, 4), Ok(vec![6, 6, 5, 5]));
}
