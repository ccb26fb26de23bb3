//! Configuration values and messages that cross the process boundary.

pub mod virtual_file;
