//! The figures and tables of the papers, as data
