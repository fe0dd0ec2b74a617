//! Runs cells in parallel, as many at once as there are threads.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::CliError;

/// Does the work for each of `todo` in parallel and passes on the results one at a time. Each call learns how
/// many threads it may use. `None` means interrupted. The first error stops all.
pub(crate) fn run_parallel<T>(
    todo: &[usize],
    threads: NonZeroUsize,
    stop: &AtomicBool,
    work: impl Fn(usize, NonZeroUsize) -> Result<Option<T>, CliError> + Sync,
    take: impl FnMut(usize, T) -> Result<(), CliError> + Send,
) -> Result<(), CliError> {
    // Whole runs in parallel keep all cores busy, where the clients of one small run would not.
    let workers = threads.get().min(todo.len()).max(1);
    let threads_each = NonZeroUsize::new(threads.get() / workers).unwrap_or(NonZeroUsize::MIN);
    let next = AtomicUsize::new(0);
    let take = Mutex::new(take);
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let Some(&at) = todo.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                    let outcome = work(at, threads_each);
                    let mut take = take.lock().expect("what came of it is taken without panic");
                    let taken = outcome.and_then(|done| done.map_or(Ok(()), |done| take(at, done)));
                    if let Err(error) = taken {
                        failure.lock().expect("no panic").get_or_insert(error);
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    failure.into_inner().expect("all workers have ended").map_or(Ok(()), Err)
}
