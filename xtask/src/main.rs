//! The build tool of turbo.

fn main() {}
