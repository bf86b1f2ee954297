//! tickr binary
fn main() {}
