//! Process metrics from `/proc`, as in every Prometheus client library.

#[cfg(target_os = "linux")]
use std::{fs, path::Path};

#[cfg(target_os = "linux")]
use procfs::{
    Current as _, Meminfo, ProcResult,
    process::{LimitValue, Process},
};

use super::table::Metric;
#[cfg(target_os = "linux")]
use super::{table, timer::number};

/// Reads a value on each scrape and export.
type Read = fn() -> Option<f64>;

/// Returns each process metric with the function that reads it.
#[cfg(target_os = "linux")]
pub(super) fn readings() -> Vec<(&'static Metric, Read)> {
    fn seconds(ticks: u64) -> f64 {
        number(ticks) / number(procfs::ticks_per_second())
    }
    fn of<T>(read: impl FnOnce(&Process) -> ProcResult<T>) -> Option<T> {
        Process::myself().and_then(|process| read(&process)).ok()
    }
    vec![
        (&table::PROCESS_CPU, || {
            of(Process::stat).map(|stat| seconds(stat.utime + stat.stime))
        }),
        (&table::PROCESS_RESIDENT, || {
            of(Process::stat).map(|stat| number(stat.rss * procfs::page_size()))
        }),
        (&table::MEMORY_LIMIT, || {
            let machine = || Some(Meminfo::current().ok()?.mem_total);
            memory_limit(Path::new("/sys/fs/cgroup"))
                .or_else(machine)
                .map(number)
        }),
        (&table::PROCESS_VIRTUAL, || {
            of(Process::stat).map(|stat| number(stat.vsize))
        }),
        (&table::PROCESS_FDS, || {
            of(Process::fd_count).map(|count| number(count as u64))
        }),
        (&table::PROCESS_MAX_FDS, || {
            of(Process::limits).map(|limits| match limits.max_open_files.soft_limit {
                LimitValue::Value(limit) => number(limit),
                LimitValue::Unlimited => f64::INFINITY,
            })
        }),
        (&table::PROCESS_THREADS, || {
            of(Process::tasks).map(|tasks| number(tasks.count() as u64))
        }),
        (&table::PROCESS_START, || {
            let since_boot = seconds(of(Process::stat)?.starttime);
            Some(number(procfs::boot_time_secs().ok()?) + since_boot)
        }),
    ]
}

/// Returns the memory limit from the files of this cgroup, of version 2 or 1. In a container it is the container's limit.
#[cfg(target_os = "linux")]
fn memory_limit(cgroup: &Path) -> Option<u64> {
    /// Values from here on mean "no limit" in version 1. It reports the largest multiple of the page size in an i64, and page
    /// sizes differ.
    const NONE: u64 = 1 << 62;
    ["memory.max", "memory/memory.limit_in_bytes"]
        .iter()
        .find_map(|file| fs::read_to_string(cgroup.join(file)).ok())
        // Version 2 reports "no limit" as `max`.
        .and_then(|limit| limit.trim().parse().ok())
        .filter(|limit| *limit < NONE)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn readings() -> Vec<(&'static Metric, Read)> {
    Vec::new()
}

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
