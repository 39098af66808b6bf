//! A web server under SPECweb99's mix of requests.
//!
//! | file | contents |
//! |---|---|
//! | `mix.rs` | files, and which of them clients ask for |
//! | `client.rs` | clients |
//! | `backend.rs` | dynamic answers |
//! | `site.rs` | the files on disk, and nginx's configuration |

pub mod backend;
pub mod client;
pub mod mix;
pub(super) mod site;
