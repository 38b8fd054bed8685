//! The program `chronovisor`.
fn main() {}
