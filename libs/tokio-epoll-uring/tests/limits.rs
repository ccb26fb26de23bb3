//! Running out of open files. In a separate process, because the limit applies to the whole process.

mod common;

use std::fs::File;
use std::os::fd::AsRawFd;

use common::multi_thread;
use tokio_epoll_uring::{is_available, thread_local_system};

#[test]
fn too_many_open_files_says_what_to_do() {
    let runtime = multi_thread(1);
    // The lowest free descriptor: all below it are in use.
    let free = File::open("/dev/null").unwrap().as_raw_fd();
    let limit = libc::rlimit { rlim_cur: free as u64, rlim_max: 1 << 10 };
    // SAFETY: a valid structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    let refused =
        [is_available().unwrap_err(), runtime.block_on(async { thread_local_system().err().expect("refused") })];
    for error in refused {
        assert!(error.to_string().contains("LimitNOFILE"), "{error}");
    }
    let limit = libc::rlimit { rlim_cur: 1 << 10, ..limit };
    // SAFETY: a valid structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    is_available().unwrap();
}
