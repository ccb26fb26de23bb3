//! Configuration values and messages that cross the process's border.

pub mod virtual_file;
