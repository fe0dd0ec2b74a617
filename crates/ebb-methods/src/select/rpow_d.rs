//! `pow-d` without probes: the last reported losses rank the candidates, and unknown losses come first.
//!
//! Cho, Wang and Joshi, "Towards Understanding Biased Client Selection in Federated Learning" (2022). An
//! absent client reports nothing, so a candidate without a loss stays first until its first update on time.

use ebb_round::{Cohort, Loader, Probes, Report, Round, Saver, Selector, State, StateError};
use ebb_settings::Entry;

use super::candidates::Candidates;
use super::last_losses::LastLosses;

/// The registry entry.
pub const ENTRY: Entry<dyn Selector> = Entry {
    name: "rpow-d",
    about: "as pow-d with the losses that candidates reported last, without probes; unknown losses come first",
    example: "cohort = 10                # required
# candidates = 20          # at least the cohort; without it 50, or all clients if there are fewer
among = \"enrolled\"         # or up
sampler = \"multinomial-nr\" # how candidates are drawn; or dep-round, systematic, poisson",
    build: |settings| {
        let candidates = Candidates::build(settings, settings.parse()?)?;
        Ok(Box::new(RpowD { candidates, losses: LastLosses::default() }))
    },
};

#[derive(Debug)]
struct RpowD {
    candidates: Candidates,
    losses: LastLosses,
}

impl Selector for RpowD {
    fn needs_losses(&self) -> bool {
        true
    }

    fn select(&mut self, round: &Round<'_>, _probes: &Probes) -> Cohort {
        let candidates = self.candidates.draw(round).into_iter();
        let losses = candidates.map(|client| (client, self.losses.of(client).unwrap_or(f32::INFINITY)));
        self.candidates.with_largest(round, losses)
    }

    fn observe(&mut self, round: &Round<'_>, report: &Report<'_>) {
        self.losses.observe(round, report);
    }
}

impl State for RpowD {
    fn save(&self, to: &mut Saver) {
        self.losses.save(to);
    }

    fn load(&mut self, from: &mut Loader<'_>) -> Result<(), StateError> {
        self.losses.load(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{World, reloaded, report_losses, selected_indices, selector};

    fn ask(rpow_d: &mut dyn Selector, world: &World, number: u32) -> Vec<usize> {
        selected_indices(&rpow_d.select(&world.round(number), &Probes::new()))
    }

    #[test]
    fn unknown_losses_come_first_then_the_largest() {
        let mut world = World::of(4);
        let mut rpow_d = selector(ENTRY, "cohort = 2", 6).unwrap();
        report_losses(rpow_d.as_mut(), &world, 0, &[(0, 0.3), (1, 5.0), (2, 0.9)]);
        assert_eq!(ask(rpow_d.as_mut(), &world, 1), [1, 3]);
        report_losses(rpow_d.as_mut(), &world, 1, &[(1, 0.1), (3, 0.2)]);
        assert_eq!(ask(rpow_d.as_mut(), &world, 2), [0, 2]);
        world.join(4, 3);
        world.leave(2);
        assert_eq!(ask(rpow_d.as_mut(), &world, 3), [0, 4]);
    }

    #[test]
    fn only_candidates_are_selected() {
        let world = World::of(30);
        let mut rpow_d = selector(ENTRY, "cohort = 1\ncandidates = 3", 30).unwrap();
        let losses: Vec<_> = (0..30).map(|idx| (idx, idx as f32)).collect();
        report_losses(rpow_d.as_mut(), &world, 0, &losses);
        let mut seen = [0; 30];
        for number in 1..2000 {
            let [idx] = ask(rpow_d.as_mut(), &world, number)[..] else { panic!("one client is selected") };
            seen[idx] += 1;
        }
        // The largest of three among thirty: with probabilities of (idx choose 2) of 4060, so those of the
        // first two are 0.
        assert_eq!((seen[0], seen[1]), (0, 0));
        assert!(seen[29] < 300 && seen[15] > 20, "{seen:?}");
    }

    #[test]
    fn a_loaded_state_continues_equally() {
        let world = World::of(12);
        let text = "cohort = 3\ncandidates = 6";
        let mut whole = selector(ENTRY, text, 12).unwrap();
        report_losses(whole.as_mut(), &world, 0, &[(2, 0.5), (3, 2.5), (8, 1.5)]);
        let mut again = reloaded(whole.as_ref(), ENTRY, text, 12);
        let mut fresh = selector(ENTRY, text, 12).unwrap();
        let mut differs = false;
        for number in 1..40 {
            let expected = ask(whole.as_mut(), &world, number);
            assert_eq!(ask(again.as_mut(), &world, number), expected);
            differs |= ask(fresh.as_mut(), &world, number) != expected;
            let losses: Vec<_> = expected.iter().map(|&idx| (idx, (idx * 7 % 5) as f32)).collect();
            for one in [&mut whole, &mut again] {
                report_losses(one.as_mut(), &world, number, &losses);
            }
        }
        assert!(differs, "the reported losses matter");
    }
}
