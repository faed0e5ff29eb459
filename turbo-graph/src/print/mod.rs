//! A graph as text and as a picture.

mod brief;
mod svg;
mod text;

pub use brief::brief;
pub use svg::svg;
