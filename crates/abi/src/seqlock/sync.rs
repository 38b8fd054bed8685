//! The atomics that pages are made of: the machine's, or the model checker's under `--cfg loom`.

#[cfg(not(loom))]
pub use core::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(loom)]
pub use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
};
