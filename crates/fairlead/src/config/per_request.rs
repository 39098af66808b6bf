//! Routes whose requests are routed one by one (`treatment = "per-request"`).

use fairlead_splice::config::{Source, Treatment};

use super::diagnostic::{Diagnostic, Problems};
use super::service::{RouteDraft, ServiceDraft};

/// What such a route needs besides its own keys.
pub(super) fn check(service: &ServiceDraft, route: &RouteDraft, problems: &mut Problems) {
    let key = match (route.route.treatment, &route.route.cache) {
        (Treatment::PerRequest, _) => "treatment = \"per-request\"",
        (Treatment::Splice, Some(_)) => "`cache`",
        (_, Some(_)) => {
            let message = "a cache needs treatment = \"splice\" or \"per-request\"";
            problems.push(
                Diagnostic::error(&route.span, message)
                    .help("leave `cache` out, or write one of these treatments"),
            );
            return;
        }
        (_, None) => return,
    };
    let other = |one: &&RouteDraft| one.route.is_to_host();
    if let Some(other) = service.routes.iter().find(other) {
        let message = format!(
            "a service with {key} and treatment = \"host\": a later request for the process on \
             this machine could not reach it"
        );
        problems.push(
            Diagnostic::error(&route.span, message)
                .related(&other.span, "the route to the process")
                .help(
                    "write the process as a server of a pool, or give it a service with another \
                     address",
                ),
        );
    }
    if service.service.source == Source::Transparent {
        let message = "servers see the address of this machine, not that of the client, in \
                       requests of this route";
        problems.push(
            Diagnostic::warning(&route.span, message)
                .related(&service.source_span, "`source`")
                .help(
                    "they learn the client's address by `forwarded`, or by `proxy_protocol` of \
                     the pool",
                ),
        );
    }
}
