//! Rules that a crashed instance left behind.

use super::NetError;
use super::kernel::with_kernel;

/// Removes the rules of instances that are gone, and says which. Rules of instances that live are
/// left alone.
pub fn remove_leftovers() -> Result<Vec<String>, NetError> {
    with_kernel(async |kernel| {
        let mut removed = Vec::new();
        for v4 in [true, false] {
            let rules = kernel.our_rules(v4).await?;
            if rules.is_empty() {
                continue;
            }
            // The rules were read before the routes: an instance that starts in between has
            // filled its table by then.
            let routes = kernel.routes(v4).await?;
            for rule in rules {
                if routes.iter().all(|route| route.table != rule.table) {
                    kernel.remove_rule(&rule).await?;
                    removed.push(format!(
                        "rule from {} tcp port {} to table {}",
                        rule.server.ip(),
                        rule.server.port(),
                        rule.table
                    ));
                }
            }
        }
        Ok(removed)
    })
}
