//! Which of the program's maps outlive a process, as `bpf/` declares where each is defined.

/// What a map is to the next process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinning {
    /// Pinned; nothing is taken over without it.
    Required,
    /// Pinned; made anew where it is missing or has another shape.
    Optional,
    /// Made anew by each process.
    Private,
}

/// How the map of this name is declared.
pub(crate) fn pinning(name: &str) -> Option<Pinning> {
    let declared = DECLARED.iter().find(|(declared, _)| *declared == name);
    declared.map(|(_, pinning)| *pinning)
}

/// `DECLARED: &[(&str, Pinning)]`, which the build script reads from `bpf/`.
mod declared {
    use super::Pinning::{self, Optional, Private, Required};

    include!(concat!(env!("OUT_DIR"), "/maps.rs"));
}

use declared::DECLARED;

#[cfg(test)]
mod tests {
    use aya::EbpfLoader;

    use super::*;
    use crate::attach::Mode;
    use crate::flow_table::{FlowTableKind, TcbGeometry};
    use crate::kernel::object;

    #[test]
    fn every_map_of_every_program_is_declared() {
        let cache = FlowTableKind::TcbCache(TcbGeometry::of_lines(1 << 10));
        let evicting = FlowTableKind::LruHash { keys: 0 };
        for kind in [FlowTableKind::Hash, evicting, cache] {
            for mode in [Mode::Tc, Mode::XdpNative] {
                let object = object(mode, &kind);
                if object.is_empty() {
                    return;
                }
                // Without the right to make maps there is nothing to look at.
                let Ok(ebpf) = EbpfLoader::new().load(object) else {
                    return;
                };
                let names = ebpf.maps().map(|(name, _)| name);
                for name in names.filter(|name| !name.starts_with('.')) {
                    assert!(pinning(name).is_some(), "{name}");
                }
            }
        }
    }

    #[test]
    fn what_connections_need_is_required_and_what_begins_empty_is_private() {
        assert_eq!(pinning("fl_records"), Some(Pinning::Required));
        assert_eq!(pinning("fl_settings"), Some(Pinning::Required));
        assert_eq!(pinning("fl_counters"), Some(Pinning::Optional));
        assert_eq!(pinning("fl_joins"), Some(Pinning::Private));
        assert_eq!(pinning("fl_joinsx"), None);
    }
}
