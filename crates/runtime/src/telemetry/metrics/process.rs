//! What every Prometheus client library tells of its process, from `/proc`.

#[cfg(target_os = "linux")]
use std::{fs, path::Path};

use super::Metrics;

#[cfg(target_os = "linux")]
pub(super) fn observe(metrics: &Metrics) {
    use procfs::{
        Current as _, Meminfo,
        process::{LimitValue, Process},
    };

    use super::{number, table};

    fn seconds(ticks: u64) -> f64 {
        number(ticks) / number(procfs::ticks_per_second())
    }

    let look = |metric, read: fn(&Process) -> procfs::ProcResult<f64>| {
        metrics.observe(metric, move |see| {
            // What cannot be read is left out.
            if let Ok(value) = Process::myself().and_then(|process| read(&process)) {
                see(value, &[]);
            }
        });
    };
    look(&table::PROCESS_CPU, |process| {
        let stat = process.stat()?;
        Ok(seconds(stat.utime + stat.stime))
    });
    look(&table::PROCESS_RESIDENT, |process| {
        Ok(number(process.stat()?.rss * procfs::page_size()))
    });
    metrics.observe(&table::MEMORY_LIMIT, |see| {
        let machine = || Some(Meminfo::current().ok()?.mem_total);
        if let Some(limit) = memory_limit(Path::new("/sys/fs/cgroup")).or_else(machine) {
            see(number(limit), &[]);
        }
    });
    look(&table::PROCESS_VIRTUAL, |process| {
        Ok(number(process.stat()?.vsize))
    });
    look(&table::PROCESS_FDS, |process| {
        Ok(number(process.fd_count()? as u64))
    });
    look(&table::PROCESS_MAX_FDS, |process| {
        let limits = process.limits()?;
        Ok(match limits.max_open_files.soft_limit {
            LimitValue::Value(limit) => number(limit),
            LimitValue::Unlimited => f64::INFINITY,
        })
    });
    look(&table::PROCESS_THREADS, |process| {
        Ok(number(process.tasks()?.count() as u64))
    });
    look(&table::PROCESS_START, |process| {
        let since_boot = seconds(process.stat()?.starttime);
        Ok(number(procfs::boot_time_secs()?) + since_boot)
    });
}

/// The memory limit of the cgroup whose files are there, by version 2 or 1; inside a container that is its own.
#[cfg(target_os = "linux")]
fn memory_limit(cgroup: &Path) -> Option<u64> {
    /// What version 1 says without a limit: as many whole pages as an i64 holds, and pages differ in size.
    const NONE: u64 = 1 << 62;
    ["memory.max", "memory/memory.limit_in_bytes"]
        .iter()
        .find_map(|file| fs::read_to_string(cgroup.join(file)).ok())
        // Version 2 says `max` without a limit.
        .and_then(|limit| limit.trim().parse().ok())
        .filter(|limit| *limit < NONE)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn observe(_: &Metrics) {}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn the_memory_limit_is_the_cgroups() {
        for (file, content, limit) in [
            ("memory.max", "402653184\n", Some(402_653_184)),
            ("memory.max", "max\n", None),
            (
                "memory/memory.limit_in_bytes",
                "402653184\n",
                Some(402_653_184),
            ),
            (
                "memory/memory.limit_in_bytes",
                "9223372036854771712\n",
                None,
            ),
            ("memory/another", "1\n", None),
        ] {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("memory")).unwrap();
            fs::write(folder.path().join(file), content).unwrap();
            assert_eq!(memory_limit(folder.path()), limit, "{file}: {content}");
        }
    }
}
