//! The configuration file: what it means, what is wrong with it, and what the documents say of it.

mod documents;
mod errors;
mod hostile;
mod sample;
mod warnings;
