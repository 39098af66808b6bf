//! The targets. To add one: a file with a `Target` in it, and a line in [`all`].

mod announce;
mod cache_control;
mod capture;
mod config;
mod datapath;
mod descriptors;
mod fragments;
mod handoff;
mod hello;
mod http_cache;
mod http_front;
mod http_head;
mod options;
mod packet;
mod pairing;
mod proxy_protocol;
mod range;
mod reassembly;
mod references;
mod repair;
mod rings;
mod sums;
mod translate;

/// One thing to be fuzzed.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: of its corpus, of its artifacts, on the command line.
    pub name: &'static str,
    /// What is fed and what must hold, in one line.
    pub about: &'static str,
    /// Runs it. Panics when a promise is broken.
    pub run: fn(&[u8]),
    /// Inputs are not made longer than this.
    pub bytes_max: usize,
    /// Byte strings that mean something to it.
    pub tokens: &'static [&'static [u8]],
}

/// All targets.
pub fn all() -> &'static [Target] {
    &[
        packet::TARGET,
        options::TARGET,
        http_head::TARGET,
        hello::TARGET,
        proxy_protocol::TARGET,
        reassembly::TARGET,
        fragments::TARGET,
        translate::TARGET,
        datapath::TARGET,
        capture::TARGET,
        config::TARGET,
        descriptors::TARGET,
        references::TARGET,
        handoff::TARGET,
        pairing::TARGET,
        rings::TARGET,
        announce::TARGET,
        cache_control::TARGET,
        range::TARGET,
        http_cache::TARGET,
        http_front::TARGET,
    ]
}

/// The target of this name.
pub fn named(name: &str) -> Option<&'static Target> {
    all().iter().find(|target| target.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn names_are_distinct() {
        let names: BTreeSet<_> = super::all().iter().map(|target| target.name).collect();
        assert_eq!(names.len(), super::all().len());
    }
}
