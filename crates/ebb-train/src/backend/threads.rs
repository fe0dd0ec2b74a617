//! Trains on the processor, one client a thread.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};

use ebb_round::{FleetError, LocalRule};
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::{Backend, TrainedUpdate, TrainingJob, train_one};
use crate::Task;

/// Trains as many clients at once as there are threads. The threads are kept, because a round of small models
/// takes less time than starting them.
#[derive(Debug)]
pub struct Threads {
    count: NonZeroUsize,
    /// All threads but the calling one, which trains too.
    others: Option<ThreadPool>,
}

impl Threads {
    /// A backend of `count` threads, the calling one included.
    ///
    /// # Panics
    ///
    /// When the system gives no more threads.
    pub fn new(count: NonZeroUsize) -> Self {
        let others = NonZeroUsize::new(count.get() - 1).map(|others| {
            let pool = ThreadPoolBuilder::new().num_threads(others.get());
            pool.thread_name(|at| format!("train-{}", at + 1)).build().expect("the system gives threads")
        });
        Threads { count, others }
    }
}

/// How far ahead of the slowest client the others may run, per thread; finished updates wait in memory.
const WINDOW_PER_THREAD: usize = 8;

impl Backend for Threads {
    fn train(
        &self,
        task: &dyn Task,
        rule: &dyn LocalRule,
        seed: u64,
        jobs: &[TrainingJob],
        deliver: &mut dyn FnMut(usize, Option<TrainedUpdate>) -> Result<(), FleetError>,
    ) -> Result<(), FleetError> {
        let threads = self.count.get().min(jobs.len());
        let Some(pool) = self.others.as_ref().filter(|_| threads > 1) else {
            return jobs
                .iter()
                .enumerate()
                .try_for_each(|(at, one)| deliver(at, train_one(task, rule, seed, one)));
        };
        let next = AtomicUsize::new(0);
        let gate = Gate::new(threads * WINDOW_PER_THREAD);
        let (results, inbox) = mpsc::channel();
        pool.in_place_scope(|scope| {
            for _ in 1..threads {
                let (results, next, gate) = (results.clone(), &next, &gate);
                scope.spawn(move |_| {
                    let _open = OpenOnPanic(gate);
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(one) = jobs.get(at) else { break };
                        if !gate.wait_for(at) || results.send((at, train_one(task, rule, seed, one))).is_err()
                        {
                            break;
                        }
                    }
                });
            }
            drop(results);
            let _open = OpenOnPanic(&gate);
            let mut early = BTreeMap::new();
            let mut next_due = 0;
            while next_due < jobs.len() {
                early.extend(inbox.try_iter());
                while let Some(trained) = early.remove(&next_due) {
                    if let Err(error) = deliver(next_due, trained) {
                        gate.close();
                        return Err(error);
                    }
                    next_due += 1;
                    gate.advance(next_due);
                }
                let near = next.load(Ordering::Relaxed) < jobs.len().min(next_due + gate.window);
                let own = near.then(|| next.fetch_add(1, Ordering::Relaxed));
                if let Some((at, one)) = own.and_then(|at| Some((at, jobs.get(at)?))) {
                    early.insert(at, train_one(task, rule, seed, one));
                } else if next_due < jobs.len() {
                    // A thread that panicked sends nothing more; the scope then panics as well.
                    let Ok((at, trained)) = inbox.recv() else { break };
                    early.insert(at, trained);
                }
            }
            Ok(())
        })
    }

    fn map_clients(&self, count: usize, compute: &(dyn Fn(usize) -> f32 + Sync)) -> Vec<f32> {
        let threads = self.count.get().min(count);
        let Some(pool) = self.others.as_ref().filter(|_| threads > 1) else {
            return (0..count).map(compute).collect();
        };
        let next = AtomicUsize::new(0);
        let slots: Vec<_> = (0..count).map(|_| AtomicU32::new(0)).collect();
        let work = || {
            while let at = next.fetch_add(1, Ordering::Relaxed)
                && let Some(slot) = slots.get(at)
            {
                slot.store(compute(at).to_bits(), Ordering::Relaxed);
            }
        };
        pool.in_place_scope(|scope| {
            (1..threads).for_each(|_| scope.spawn(|_| work()));
            work();
        });
        slots.into_iter().map(|slot| f32::from_bits(slot.into_inner())).collect()
    }
}

/// Lets clients be trained only a bounded distance ahead of what was delivered.
struct Gate {
    window: usize,
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    delivered: usize,
    waiting: usize,
    /// The work was cancelled; nothing opens the gate again.
    closed: bool,
}

impl Gate {
    fn new(window: usize) -> Self {
        Gate { window, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits until `at` is within the window; false if the work was cancelled.
    fn wait_for(&self, at: usize) -> bool {
        let mut state = self.lock();
        while !state.closed && at >= state.delivered + self.window {
            state.waiting += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        !state.closed
    }

    fn advance(&self, count: usize) {
        let mut state = self.lock();
        state.delivered = count;
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that panics, even the delivering one, must not leave the others waiting.
struct OpenOnPanic<'g>(&'g Gate);

impl Drop for OpenOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_that_was_closed_stays_closed() {
        let gate = Gate::new(2);
        assert!(gate.wait_for(1));
        gate.close();
        // A result that was in flight when the work was cancelled.
        gate.advance(1);
        assert!(!gate.wait_for(2) && !gate.wait_for(100));
    }

    #[test]
    fn results_come_in_order_whatever_the_number_of_threads() {
        for threads in [1, 2, 5] {
            let threads = Threads::new(NonZeroUsize::new(threads).unwrap());
            for count in [0, 1, 3, 1000] {
                let expected: Vec<_> = (0..count).map(|at| at as f32 - 0.5).collect();
                assert_eq!(threads.map_clients(count, &|at| at as f32 - 0.5), expected);
            }
        }
    }

    #[test]
    #[should_panic(expected = "delivery failed")]
    fn a_delivery_that_panics_ends_the_work() {
        let tree =
            ebb_settings::Tree::parse("[data]\nkind = \"quadratic\"\ncentres = [[0.0]]", "test").unwrap();
        let task = crate::data::build(&tree.table("data", ebb_settings::BuildContext::default())).unwrap();
        let one = std::num::NonZeroU32::MIN;
        let work = ebb_round::Work { amount: ebb_round::Amount::Steps(one), batch_size: None };
        let global = std::sync::Arc::new(ebb_round::Parcel::of(vec![0.0]));
        let job = std::sync::Arc::new(ebb_round::Job { round: 0, global, learning_rate: 0.1, work });
        let client = ebb_round::ClientId::new(0);
        let assignment = TrainingJob { client, job, memory: std::sync::Arc::default(), limit: one };
        // More jobs than the window holds, so that threads wait at the gate when the delivery panics.
        let many = vec![assignment; 1000];
        let two = NonZeroUsize::new(2).unwrap();
        let _ =
            Threads::new(two).train(task.as_ref(), &OneStep, 1, &many, &mut |_, _| panic!("delivery failed"));
    }

    struct OneStep;

    impl LocalRule for OneStep {
        fn plan(&self, _tick: u32) -> (f32, ebb_round::Work) {
            unreachable!("the job is made already")
        }
        fn run(
            &self,
            _job: &ebb_round::Job,
            _memory: &ebb_round::Parcel,
            run: &mut dyn ebb_round::LocalRun,
        ) -> Option<ebb_round::Parcel> {
            run.steps(1, &ebb_round::StepRule::default());
            None
        }
    }

    #[test]
    fn the_gate_lets_only_a_window_through() {
        let gate = Gate::new(2);
        std::thread::scope(|scope| {
            let far = scope.spawn(|| gate.wait_for(3));
            gate.advance(1);
            assert!(gate.wait_for(2));
            gate.advance(2);
            assert!(far.join().expect("waiting does not panic"));
        });
    }
}
