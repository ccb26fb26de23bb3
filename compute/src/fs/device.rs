//! The connection to the kernel: one open file, shared by all threads and by the supervisor.
//!
//! It must not be opened twice (a clone of the device): requests that a clone has not answered die with it.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};

use rustix::io::Errno;

const NOTIFY_RESEND: i32 = 7;

pub(crate) struct Device {
    file: File,
}

impl Device {
    pub(crate) fn new(file: File) -> Self {
        Self { file }
    }

    /// Reads a request into `buffer`; returns its length, or 0 when the connection has ended.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match (&self.file).read(buffer) {
                Ok(n) => return Ok(n),
                Err(error) => match Errno::from_io_error(&error) {
                    // The request was interrupted before we read it, or there is none yet.
                    Some(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                    Some(Errno::NODEV) => return Ok(0),
                    _ => return Err(error),
                },
            }
        }
    }

    /// Answers request `unique`.
    pub(crate) fn answer(&self, unique: u64, answer: &Result<Vec<u8>, Errno>) {
        let (error, body) = match answer {
            Ok(body) => (0, body.as_slice()),
            Err(error) => (-error.raw_os_error(), [].as_slice()),
        };
        if let Err(error) = self.send(unique, error, body)
            && Errno::from_io_error(&error) != Some(Errno::NOENT)
        {
            tracing::debug!("an answer was not taken: {error}");
        }
    }

    /// Makes the kernel resend the requests that the former daemon did not answer.
    pub(crate) fn ask_for_unanswered(&self) -> io::Result<()> {
        self.send(0, NOTIFY_RESEND, &[])
    }

    fn send(&self, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(16 + body.len()).map_err(io::Error::other)?;
        let mut header = [0; 16];
        header[..4].copy_from_slice(&length.to_ne_bytes());
        header[4..8].copy_from_slice(&error.to_ne_bytes());
        header[8..].copy_from_slice(&unique.to_ne_bytes());
        (&self.file).write_vectored(&[IoSlice::new(&header), IoSlice::new(body)]).map(drop)
    }
}
