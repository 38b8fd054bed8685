//! How results look to a person.

pub(crate) mod check;
pub(crate) mod table;
