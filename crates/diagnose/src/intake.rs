//! From texts, folders and bundles to evidence.

pub(crate) mod complaint;
pub mod log;
