//! Kernels that refuse, simulated by system call filters on single threads.

mod common;

use std::time::{Duration, Instant};

use common::{TempDir, block_on, multi_thread, poll_once, within};
use tokio_epoll_uring::{SystemHandle, is_available, thread_local_system};

/// Makes a system call fail on this thread from now on.
fn refuse(system_call: libc::c_long, errno: i32) {
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        step(LOAD_NUMBER, 0, 0, 0),
        step(JUMP_EQUAL, 0, 1, system_call as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is valid and outlives the calls; both affect only this thread.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &filter), 0);
    }
}

fn on_a_thread<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(f).join().unwrap())
}

#[test]
fn a_forbidden_setup_says_what_to_do() {
    on_a_thread(|| {
        refuse(libc::SYS_io_uring_setup, libc::EPERM);
        let error = is_available().unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("kernel.io_uring_disabled"), "{error}");
        let error = multi_thread(1).block_on(async { thread_local_system().err().expect("refused") });
        assert!(error.to_string().contains("seccomp"), "{error}");
    });
}

#[test]
fn a_shortage_in_the_kernel_passes() {
    let dir = TempDir::new();
    for errno in [libc::EAGAIN, libc::EBUSY, libc::ENOMEM] {
        let file = dir.file(&errno.to_string());
        let runtime = multi_thread(1);
        let system = runtime.block_on(async { SystemHandle::with_entries(2).unwrap() });
        let make = || {
            let _entered = runtime.enter();
            refuse(libc::SYS_io_uring_enter, errno);
            let mut ops: Vec<_> = (0..5).map(|i| system.write(file.clone(), i, vec![b'0' + i as u8])).collect();
            // The poller's thread can help only after a completion, and nothing is in the kernel yet.
            let start = Instant::now();
            assert!(poll_once(&mut ops[4]).is_pending());
            assert!(start.elapsed() >= Duration::from_millis(1), "it pauses instead of spinning");
            assert_eq!(system.load().in_flight, 2);
            ops
        };
        for op in on_a_thread(make).into_iter().rev() {
            assert_eq!(runtime.block_on(within(10, op)).1.unwrap(), 1);
        }
        assert_eq!(std::fs::read(dir.path(&errno.to_string())).unwrap(), b"01234");
    }
}

#[test]
fn a_forbidden_submission_fails_the_operation() {
    let dir = TempDir::new();
    let file = dir.file("file");
    let runtime = multi_thread(1);
    let system = runtime.block_on(async { SystemHandle::with_entries(2).unwrap() });
    let first = system.write(file.clone(), 0, b"a".to_vec());
    let ops = on_a_thread(|| {
        refuse(libc::SYS_io_uring_enter, libc::EPERM);
        (0..5).map(|i| system.write(file.clone(), 1 + i, b"b".to_vec())).collect::<Vec<_>>()
    });
    for op in ops {
        let ((_, buf), result) = block_on(op);
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EPERM));
        assert_eq!(buf, b"b");
    }
    assert_eq!(block_on(first).1.unwrap(), 1, "what the kernel had is not affected");
    assert_eq!(std::fs::read(dir.path("file")).unwrap(), b"a");
}
