//! tickr
