//! What an operator does while a scenario runs.

use fairlead_datapath::{Admin, Change, Departure, ServerId};

/// Something an operator does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Drain,
    AbortAll,
    /// The server with this number changes.
    Server(u16, ServerChange),
    /// This many packets of attackers arrive at once.
    Mischief(u32),
}

/// What an operator orders of a server, or a health check says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerChange {
    Admin(Admin),
    Weight(u16),
    Check(bool),
}

impl ServerChange {
    /// It, of a server.
    pub(crate) fn of(self, server: ServerId) -> Change {
        match self {
            Self::Admin(admin) => Change::Admin {
                server,
                admin,
                departure: Departure::default(),
            },
            Self::Weight(weight) => Change::Weight { server, weight },
            Self::Check(is_up) => Change::Check { server, is_up },
        }
    }
}
