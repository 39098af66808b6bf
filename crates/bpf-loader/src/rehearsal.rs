//! Whether this kernel takes the program from this process, found by giving it the program.

use fairlead_tcp::Endpoints;

use crate::attach::Mode;
use crate::flow_table::FlowTableKind;
use crate::kernel::{Kernel, LoadError};

/// Loads the program for `mode` and this kind of flow table with records of one line and drops it
/// again. It is never attached.
///
/// # Errors
/// What [`Kernel::load_pinned`] would say.
pub fn rehearse(mode: Mode, kind: FlowTableKind) -> Result<(), LoadError> {
    let nobody = Endpoints::default();
    Kernel::load_pinned(mode, kind, 1, &nobody, (0, 0), 0, None).map(drop)
}
