//! What every Prometheus client library tells of its process, from `/proc`.

use super::Metrics;

#[cfg(target_os = "linux")]
pub(super) fn observe(metrics: &Metrics) {
    use procfs::process::{LimitValue, Process};

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

#[cfg(not(target_os = "linux"))]
pub(super) fn observe(_: &Metrics) {}
