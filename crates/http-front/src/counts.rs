//! Counters of a front.

use fairlead_base::ReasonCounts;

use crate::event::RequestEnd;
use crate::orders::CacheView;

fairlead_base::counters! {
    /// What a front has counted.
    pub struct FrontCounters {
        Counter front_accepted: "front_accepted",
            "Connections of clients that the front has accepted (`treatment = \"per-request\"`)";
        Counter front_turned_away: "front_turned_away",
            "Connections of clients that the front has closed at once, because it had too many, in \
             all or of one client, or was draining";
        Gauge front_clients: "front_connections" { side = "client" },
            "Connections of the front, by side";
        Gauge front_servers: "front_connections" { side = "server" }, "To servers";
        Gauge front_idle: "front_idle_connections",
            "Connections of the front to servers that wait for a request";
        Gauge front_buffer_bytes: "front_buffer_bytes", "Bytes of the front's buffers in use";
        Counter front_served: "front_requests" { end = "served" },
            "Requests that the front has handled, by how they ended";
        Counter front_refused: "front_requests" { end = "refused" }, "Refused";
        Counter front_no_server: "front_requests" { end = "no_server" }, "Without a server";
        Counter front_bad_response: "front_requests" { end = "bad_response" },
            "With a response that breaks a rule";
        Counter front_server_lost: "front_requests" { end = "server_lost" },
            "Whose server's connection ended";
        Counter front_client_lost: "front_requests" { end = "client_lost" },
            "Whose client's connection ended";
        Counter front_stalled: "front_requests" { end = "stalled" }, "That stalled";
        Counter front_upgraded: "front_requests" { end = "upgraded" },
            "That became connections of another protocol, and are over";
        Counter front_handed_off: "front_requests" { end = "handed_off" },
            "That became connections of another protocol, and were handed off";
        Counter front_aborted: "front_requests" { end = "aborted" }, "Ended by the operator";
        Counter front_1xx: "front_responses" { status = "1xx" },
            "Responses to clients of the front, by status; interim ones are not counted";
        Counter front_2xx: "front_responses" { status = "2xx" }, "Successes";
        Counter front_3xx: "front_responses" { status = "3xx" }, "Redirections";
        Counter front_4xx: "front_responses" { status = "4xx" }, "Errors of clients";
        Counter front_5xx: "front_responses" { status = "5xx" }, "Errors of servers";
        Counter front_connects: "front_connects",
            "Connections to servers that the front has begun";
        Counter front_reuses: "front_reuses",
            "Requests over a connection to a server that had carried others before";
        Counter front_retries: "front_retries",
            "Requests that the front has sent once more, to another server or over another \
             connection";
        Counter front_bytes_in: "front_bytes" { direction = "in" },
            "Bytes that the front has received of clients (`in`) and sent to them (`out`)";
        Counter front_bytes_out: "front_bytes" { direction = "out" }, "Sent";
        Counter front_handoffs_refused: "front_handoffs_refused",
            "Upgraded connections that could not be handed off, so that the front goes on copying, \
             each attempt";
        Counter front_handed_back: "front_handed_back",
            "Connections that had been handed off and came back to the front";
        Counter front_failures: "front_failures",
            "Times that the front has failed: its connections were reset, and it began anew";
        Counter front_events_lost: "front_events_lost",
            "Requests without a line in the access log, because they came too fast for it";
    }
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// The plain numbers.
    pub numbers: FrontCounters,
    /// Requests that were refused, by reason.
    pub refused: ReasonCounts,
    /// Requests by service and route.
    pub routes: Vec<Vec<u64>>,
    /// The caches of routes.
    pub caches: Vec<CacheView>,
}

impl Counts {
    /// These, as another front goes on from them after a failure: nothing is open.
    pub(crate) fn carried_on(mut self) -> Self {
        let numbers = &mut self.numbers;
        for open in [
            &mut numbers.front_clients,
            &mut numbers.front_servers,
            &mut numbers.front_idle,
            &mut numbers.front_buffer_bytes,
        ] {
            *open = 0;
        }
        numbers.front_failures += 1;
        self.caches = Vec::new();
        self
    }
}

impl FrontCounters {
    pub(crate) fn add_end(&mut self, end: RequestEnd) {
        *match end {
            RequestEnd::Served => &mut self.front_served,
            RequestEnd::Refused => &mut self.front_refused,
            RequestEnd::NoServer => &mut self.front_no_server,
            RequestEnd::BadResponse => &mut self.front_bad_response,
            RequestEnd::ServerLost => &mut self.front_server_lost,
            RequestEnd::ClientLost => &mut self.front_client_lost,
            RequestEnd::Stalled => &mut self.front_stalled,
            RequestEnd::Upgraded => &mut self.front_upgraded,
            RequestEnd::HandedOff => &mut self.front_handed_off,
            RequestEnd::Aborted => &mut self.front_aborted,
        } += 1;
    }

    pub(crate) fn add_status(&mut self, status: u16) {
        self.add_statuses(status, 1);
    }

    pub(crate) fn add_statuses(&mut self, status: u16, responses: u64) {
        *match status / 100 {
            0 | 1 => &mut self.front_1xx,
            2 => &mut self.front_2xx,
            3 => &mut self.front_3xx,
            4 => &mut self.front_4xx,
            _ => &mut self.front_5xx,
        } += responses;
    }
}
