//! A task without data, for playing whom to ask against a world: a round of it costs next to nothing.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering};

use ebb_round::{ClientId, Job, Layout, LocalRun, Piece, StepRule};

use crate::task::{Done, Tally, Task, Trainee};

/// A model of one number, which no training moves. Every client has one sample, and every loss is 1.
#[derive(Debug)]
pub struct Stub {
    n_clients: usize,
    layout: Layout,
    asked_for_losses: AtomicBool,
}

impl Stub {
    /// For so many clients.
    pub fn new(n_clients: usize) -> Self {
        let piece = Piece { name: "nothing".into(), shape: vec![1], trained: true };
        Stub { n_clients, layout: Layout::new(vec![piece]), asked_for_losses: AtomicBool::new(false) }
    }

    /// Whether anybody asked for a client's loss, which means nothing here.
    pub fn was_asked_for_losses(&self) -> bool {
        self.asked_for_losses.load(Ordering::Relaxed)
    }
}

impl Task for Stub {
    fn n_clients(&self) -> usize {
        self.n_clients
    }

    fn samples(&self, _client: ClientId) -> u32 {
        1
    }

    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn initial(&self) -> Vec<f32> {
        vec![0.0]
    }

    fn begin<'t>(
        &'t self,
        client: ClientId,
        job: &'t Job,
        _seed: u64,
        limit: NonZeroU32,
    ) -> Box<dyn Trainee + 't> {
        Box::new(Idle { asked: job.work.steps(self.samples(client)).get(), limit: limit.get(), done: 0 })
    }

    fn loss(&self, _client: ClientId, _model: &[f32]) -> f32 {
        self.asked_for_losses.store(true, Ordering::Relaxed);
        1.0
    }

    fn has_accuracy(&self) -> bool {
        false
    }

    fn n_test_pieces(&self) -> usize {
        1
    }

    fn test_piece(&self, _piece: usize, _model: &[f32]) -> Tally {
        Tally { weight: 1.0, loss: 1.0, hits: None }
    }

    fn test_client(&self, _client: ClientId, _model: &[f32]) -> Option<Tally> {
        None
    }
}

/// A client that counts its steps and takes none.
struct Idle {
    asked: u32,
    limit: u32,
    done: u32,
}

impl LocalRun for Idle {
    fn steps_asked(&self) -> u32 {
        self.asked
    }

    fn steps(&mut self, count: u32, _rule: &StepRule<'_>) -> u32 {
        let count = count.min(self.limit - self.done);
        self.done += count;
        count
    }

    fn gradient(&mut self) -> Vec<f32> {
        vec![0.0]
    }

    fn moved(&self) -> Vec<f32> {
        vec![0.0]
    }
}

impl Trainee for Idle {
    fn finish(self: Box<Self>) -> Option<Done> {
        let steps = NonZeroU32::new(self.done)?;
        Some(Done { delta: vec![0.0], steps, loss: 1.0, accuracy: None })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ebb_round::{Amount, Parcel, Work};

    use super::*;

    #[test]
    fn steps_are_counted_up_to_the_limit_and_move_nothing() {
        let stub = Stub::new(3);
        let two = NonZeroU32::new(2).unwrap();
        let work = Work { amount: Amount::Steps(NonZeroU32::new(5).unwrap()), batch: None };
        let job = Job { round: 0, global: Arc::new(Parcel::of(stub.initial())), rate: 0.1, work };
        let mut client = stub.begin(ClientId::new(1), &job, 1, two);
        assert_eq!((client.steps_asked(), client.steps(5, &StepRule::default())), (5, 2));
        let done = client.finish().unwrap();
        assert_eq!((done.delta, done.steps), (vec![0.0], two));
        assert!(stub.begin(ClientId::new(1), &job, 1, two).finish().is_none());
        assert!(!stub.was_asked_for_losses());
        assert_eq!((stub.loss(ClientId::new(1), &[0.0]), stub.was_asked_for_losses()), (1.0, true));
    }
}
