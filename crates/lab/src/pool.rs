//! Jobs on several threads, monitored by the calling thread.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use crate::control::Control;
use crate::error::LabError;

/// How long the asking thread waits before it looks at its [`Control`] again.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Shared by a job and its caller: progress, and whether to continue.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    steps: AtomicU64,
    stop: AtomicBool,
}

impl Meter {
    /// Notes steps done. False when the job should end, its result lost.
    pub(crate) fn step(&self, steps: u64) -> bool {
        self.steps.fetch_add(steps, Ordering::Relaxed);
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Number of threads; by default the number of cores.
pub(crate) fn threads(asked: usize, jobs: usize) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if asked == 0 { cores() } else { asked };
    threads.clamp(1, jobs.max(1))
}

/// Does `jobs`, in their order, on `count` threads. `work` gives nothing when its [`Meter`] said
/// stop. `done` is called on this thread, as jobs finish.
pub(crate) fn spread<J: Sync, R: Send>(
    jobs: &[J],
    count: usize,
    control: &dyn Control,
    work: &(dyn Fn(&J, &Meter) -> Option<R> + Sync),
    done: &mut dyn FnMut(usize, R),
) -> Result<(), LabError> {
    let meter = Meter::default();
    let next = AtomicUsize::new(0);
    let mut finished = 0;
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..threads(count, jobs.len()) {
            let sender = sender.clone();
            let (meter, next) = (&meter, &next);
            scope.spawn(move || {
                while let Some((index, job)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    jobs.get(index).map(|job| (index, job))
                } {
                    let Some(result) = work(job, meter) else {
                        break;
                    };
                    if sender.send((index, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        loop {
            let message = receiver.recv_timeout(LOOK_EVERY);
            if control.stopped() {
                meter.stop.store(true, Ordering::Relaxed);
            }
            control.reached(meter.steps.load(Ordering::Relaxed));
            match message {
                Ok((index, result)) => {
                    finished += 1;
                    done(index, result);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                // Every worker has ended: all jobs are done, or it was stopped.
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    if finished == jobs.len() {
        Ok(())
    } else {
        Err(LabError::Stopped)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::control::Silent;

    #[test]
    fn every_job_is_done_once() {
        let jobs: Vec<u64> = (0..100).collect();
        let mut sums = vec![0; 100];
        let work = |job: &u64, meter: &Meter| meter.step(1).then_some(job * 2);
        spread(&jobs, 3, &Silent, &work, &mut |index, result| {
            sums[index] += result
        })
        .unwrap();
        assert!(
            sums.iter()
                .enumerate()
                .all(|(index, sum)| *sum == 2 * index as u64)
        );
        spread(&[] as &[u64], 0, &Silent, &work, &mut |_, _| unreachable!()).unwrap();
    }

    #[test]
    fn a_stop_ends_long_jobs_and_keeps_short_ones() {
        struct After(Cell<u32>);
        impl Control for After {
            fn stopped(&self) -> bool {
                self.0.set(self.0.get() + 1);
                self.0.get() > 3
            }
        }
        let jobs = [false, true, true];
        let work = |endless: &bool, meter: &Meter| {
            if !*endless {
                return Some(());
            }
            while meter.step(1) {
                std::thread::sleep(Duration::from_millis(1));
            }
            None
        };
        let mut kept = Vec::new();
        let ended = spread(&jobs, 2, &After(Cell::new(0)), &work, &mut |index, ()| {
            kept.push(index);
        });
        assert!(matches!(ended, Err(LabError::Stopped)));
        assert_eq!(kept, [0]);
    }
}
