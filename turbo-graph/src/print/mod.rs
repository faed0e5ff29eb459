//! A graph as text and as a picture.

mod svg;
mod text;

pub use svg::svg;
