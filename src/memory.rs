//! How much memory there is to use.

use std::path::Path;

/// Memory that this process may still use, by the system and by the limits of its control groups; `None` where neither says.
#[must_use]
pub fn available_bytes() -> Option<u64> {
    let system = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().filter_map(group_available_bytes);
    system.into_iter().chain(limits).min()
}

/// What a line of `/proc/self/cgroup` leaves, taking the narrowest of its parents.
fn group_available_bytes(line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, group) = (fields.next()?, fields.next()?);
    let unified = controllers.is_empty();
    if !unified && !controllers.split(',').any(|controller| controller == "memory") {
        return None;
    }
    let (root, limit, usage) = if unified {
        ("/sys/fs/cgroup", "memory.max", "memory.current")
    } else {
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes")
    };
    let number =
        |folder: &Path, name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    let folder = Path::new(root).join(group.trim_start_matches('/'));
    let left = folder
        .ancestors()
        .take_while(|folder| folder.starts_with(root))
        .filter_map(|folder| Some(number(folder, limit)?.saturating_sub(number(folder, usage).unwrap_or(0))));
    left.min()
}
