//! A page that shows live what the server is doing.
//!
//! It is one file of HTML, style and script, which requests [`Data`] from this server and nothing else, so it works
//! without internet access; its content security policy has browsers enforce that. It polls, because buffering proxies
//! delay an event stream and browsers send no key with one.
//!
//! ```text
//! Infer::observed ──▶ Data ──▶ JSON, once a second and only while the page is looked at ──▶ page.html
//! ```

mod data;
mod page;

pub use data::{Data, data};
pub use page::{PAGE, POLICY};
