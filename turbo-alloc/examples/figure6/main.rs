//! Draws what a longer request does to the plan, as Figure 6 of PPoPP'21. SVG on stdout:
//!
//! `cargo run -p turbo-alloc --example figure6 > turbo-alloc/docs/figure6.svg`

mod picture;

use turbo_alloc::AllocError;

fn main() -> Result<(), AllocError> {
    print!("{}", picture::before_and_after()?);
    Ok(())
}
