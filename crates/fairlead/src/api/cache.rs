//! `/v1/cache`: the caches of routes.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use fairlead_http_cache::{Fit, Purge};
use serde::{Deserialize, Serialize};

use super::Api;
use super::answers::Problem;
use crate::front::FrontDesk;

type Answer<T> = Result<Json<T>, Problem>;

/// A route's cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CacheRow {
    pub(crate) service: String,
    pub(crate) route: String,
    /// What it may take, and takes.
    pub(crate) bytes: u64,
    pub(crate) bytes_used: u64,
    pub(crate) objects: u64,
    pub(crate) requests: u64,
    pub(crate) hits: u64,
    pub(crate) kernel_hits: u64,
    pub(crate) misses: u64,
    pub(crate) validations: u64,
    pub(crate) collapsed: u64,
    pub(crate) passed: u64,
    pub(crate) stored: u64,
    pub(crate) evicted: u64,
    pub(crate) purged: u64,
    pub(crate) invalidated: u64,
    /// Of the process before, taken over and dropped.
    pub(crate) restored: u64,
    pub(crate) not_restored: u64,
    pub(crate) bytes_served: u64,
    pub(crate) bytes_fetched: u64,
}

/// What a cache knows of a URL.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ExplainRow {
    pub(crate) service: String,
    pub(crate) route: String,
    /// Requests are not held back for each other: the last response could not be shared.
    pub(crate) uncacheable: bool,
    /// Requests to servers that are under way.
    pub(crate) fetches: usize,
    pub(crate) variants: Vec<VariantRow>,
}

/// A stored response.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct VariantRow {
    pub(crate) status: u16,
    /// What a request without directives gets: `fresh`, `stale`, …
    pub(crate) fit: String,
    /// Seconds.
    pub(crate) age: u32,
    pub(crate) lifetime: u32,
    pub(crate) purged: bool,
    pub(crate) complete: bool,
    pub(crate) body_bytes: u64,
    pub(crate) vary: Vec<String>,
    pub(crate) etag: Option<String>,
}

fn desk(api: &Api) -> Result<Arc<FrontDesk>, Problem> {
    let none = "no route of this instance has a cache, or the front does not run";
    let desk = api.front.get();
    desk.cloned()
        .ok_or_else(|| Problem::not_found(none.to_owned()))
}

/// Has the front's thread do something, and waits for it on a thread of its own.
async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> Option<T> + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|error| Problem::unavailable(error.to_string()))?;
    done.ok_or_else(|| Problem::unavailable("the front does not respond".to_owned()))
}

pub(super) async fn list(State(api): State<Arc<Api>>) -> Answer<Vec<CacheRow>> {
    let desk = desk(&api)?;
    let all = apart(move || desk.call(|front, _| front.caches())).await?;
    let row = |one: &fairlead_http_front::CacheView| {
        let (service, route) = api.names.of_route(one.service, one.route);
        let stats = &one.stats;
        CacheRow {
            service,
            route,
            bytes: one.bytes,
            bytes_used: stats.bytes_used,
            objects: stats.objects,
            requests: stats.requests,
            hits: stats.hits,
            kernel_hits: stats.kernel_hits,
            misses: stats.misses,
            validations: stats.validations,
            collapsed: stats.collapsed,
            passed: stats.passed,
            stored: stats.stored,
            evicted: stats.evicted,
            purged: stats.purged,
            invalidated: stats.invalidated,
            restored: stats.restored,
            not_restored: stats.not_restored,
            bytes_served: stats.bytes_served,
            bytes_fetched: stats.bytes_fetched,
        }
    };
    Ok(Json(all.iter().map(row).collect()))
}

/// What a cache was asked for in the last hour.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SampleRow {
    pub(crate) service: String,
    pub(crate) route: String,
    /// What it may take, and its policy.
    pub(crate) bytes: u64,
    pub(crate) policy: String,
    /// One URL in this many is in the sample.
    pub(crate) one_in: u64,
    pub(crate) span_s: u32,
    /// Of each request a number for its URL, and the bytes of the body.
    pub(crate) requests: Vec<(u32, u64)>,
}

pub(super) async fn sample(State(api): State<Arc<Api>>) -> Answer<Vec<SampleRow>> {
    let desk = desk(&api)?;
    let all = apart(move || desk.call(|front, _| front.samples())).await?;
    let rows = all.into_iter().map(|(view, policy, sample)| {
        let (service, route) = api.names.of_route(view.service, view.route);
        SampleRow {
            service,
            route,
            bytes: view.bytes,
            policy: policy.name().to_owned(),
            one_in: sample.one_in,
            span_s: sample.span_s,
            requests: sample.requests,
        }
    });
    Ok(Json(rows.collect()))
}

/// A URL in a query.
#[derive(Debug, Deserialize)]
pub(super) struct Which {
    url: String,
}

pub(super) async fn explain(
    State(api): State<Arc<Api>>,
    Query(which): Query<Which>,
) -> Answer<Vec<ExplainRow>> {
    let (host, target) = parts(&which.url)?;
    let desk = desk(&api)?;
    let all =
        apart(move || desk.call(move |front, now| front.explain(now, &host, target.as_bytes())));
    let all = all.await?;
    let rows = all.iter().map(|(service, route, known)| {
        let (service, route) = api.names.of_route(*service, *route);
        ExplainRow {
            service,
            route,
            uncacheable: known.is_uncacheable,
            fetches: known.fetches,
            variants: known.variants.iter().map(variant).collect(),
        }
    });
    Ok(Json(rows.collect()))
}

fn variant(one: &fairlead_http_cache::Variant) -> VariantRow {
    let fit = match one.judgement.fit {
        Fit::Fresh => "fresh",
        _ if one.is_softly_purged => "stale by a soft purge",
        _ => "stale",
    };
    VariantRow {
        status: one.status,
        fit: fit.to_owned(),
        age: one.judgement.age,
        lifetime: one.lifetime,
        purged: one.is_purged,
        complete: one.is_complete,
        body_bytes: one.body_bytes,
        vary: one.vary.clone(),
        etag: one.etag.clone(),
    }
}

/// What to purge: one of the four.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PurgeOrder {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tag: Option<String>,
    pub(crate) all: bool,
    /// What is purged may be sent while it is validated.
    pub(crate) soft: bool,
}

/// It is done.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Purged {
    /// The caches that it was done in.
    pub(crate) caches: usize,
}

pub(super) async fn purge(
    State(api): State<Arc<Api>>,
    Json(order): Json<PurgeOrder>,
) -> Answer<Purged> {
    let wanted = [
        order.url.is_some(),
        order.prefix.is_some(),
        order.tag.is_some(),
        order.all,
    ];
    if wanted.iter().filter(|one| **one).count() != 1 {
        let why = "write one of `url`, `prefix`, `tag` and `all`";
        return Err(Problem::bad_request(why.to_owned()));
    }
    let place = order.url.as_deref().or(order.prefix.as_deref());
    let (host, target) = place.map(parts).transpose()?.unwrap_or_default();
    let desk = desk(&api)?;
    let done = apart(move || {
        desk.call(move |front, now| {
            let purge = match &order {
                PurgeOrder { url: Some(_), .. } => Purge::Url {
                    host: &host,
                    target: target.as_bytes(),
                },
                PurgeOrder {
                    prefix: Some(_), ..
                } if target == "/" => Purge::Host(&host),
                PurgeOrder {
                    prefix: Some(_), ..
                } => Purge::Prefix {
                    host: &host,
                    path: target.as_bytes(),
                },
                PurgeOrder { tag: Some(tag), .. } => Purge::Tag(tag.as_bytes()),
                PurgeOrder { .. } => Purge::All,
            };
            let caches = front.caches().len();
            front
                .purge(now, purge, order.soft)
                .map(|()| Purged { caches })
        })
    });
    let done = done.await?;
    let done = done.map_err(|error| Problem::bad_request(error.to_string()))?;
    Ok(Json(done))
}

/// Host, and path with query, of `http://host/path` or `host/path`.
fn parts(url: &str) -> Result<(String, String), Problem> {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, target) = rest.split_at(at);
    let bracketed = authority
        .strip_prefix('[')
        .and_then(|one| one.split_once(']'));
    let host = match bracketed {
        Some((host, _)) => host,
        None => authority.split(':').next().unwrap_or_default(),
    };
    if host.is_empty() || url.starts_with("https://") {
        let why = format!("{url:?}: write http://host/path, as a client asks for it");
        return Err(Problem::bad_request(why));
    }
    let slash = if target.starts_with('/') { "" } else { "/" };
    Ok((host.to_ascii_lowercase(), format!("{slash}{target}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart_as_the_cache_keys_them() {
        for (url, host, target) in [
            ("http://Example.com:8080/a?b", "example.com", "/a?b"),
            ("example.com", "example.com", "/"),
            ("example.com?x", "example.com", "/?x"),
            ("http://[2001:db8::1]:80/p", "2001:db8::1", "/p"),
        ] {
            let got = parts(url).unwrap_or_else(|problem| panic!("{problem:?}"));
            assert_eq!(got, (host.to_owned(), target.to_owned()));
        }
        for url in ["", "/path", "https://x/", "http:///p"] {
            assert!(parts(url).is_err(), "{url}");
        }
    }
}
