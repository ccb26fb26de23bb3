//! (see docs/architecture.md)
fn main() {}
