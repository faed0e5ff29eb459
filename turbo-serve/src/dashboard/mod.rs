//! A page that shows what the server does while it does it.
//!
//! One file of HTML, style and script that requests [`Data`] from this server and nothing else from anywhere, so it
//! works without a network; its own policy forbids browsers everything beyond. It polls: an event stream is held back
//! by proxies that buffer, and browsers send no key with it.
//!
//! ```text
//! Infer::observed ──▶ Data ──▶ JSON, once a second and only while the page is looked at ──▶ page.html
//! ```

mod data;
mod page;

pub use data::{Data, data};
pub use page::{PAGE, POLICY};
