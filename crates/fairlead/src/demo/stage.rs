//! Interface of the demonstration to its environment, real or simulated.

use std::net::SocketAddr;

use anyhow::Result;
use serde_json::Value;

use super::client::Answer;
use super::journal::Entry;
use super::scene::Request;

/// A place with a client, a switch and servers.
pub(super) trait Stage {
    /// Who plays, as pairs of part and player, for the top of the screen.
    fn cast(&self) -> Vec<(&'static str, String)>;

    /// Why this request cannot be shown here, if it cannot.
    fn missing(&self, request: &Request) -> Option<String>;

    /// Makes the request on its own connection. Returns one answer per path.
    fn ask(&mut self, request: &Request) -> Result<Vec<Answer>>;

    /// What the switch itself recorded about the connection from `client`.
    fn recorded(&mut self, client: SocketAddr) -> Result<Vec<Entry>>;

    /// Ends a server process of the scene.
    fn end_process(&mut self, name: &str) -> Result<()>;

    /// The switch's status page.
    fn status(&mut self) -> Result<Value>;
}
