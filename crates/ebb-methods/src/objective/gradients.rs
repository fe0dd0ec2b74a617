//! Whether a newcomer's updates should count for more: what the answers of a round say of the gradients.
//!
//! An extra step along the newcomer's own gradient g_l lowers the new objective, whose gradient is `p_l g_l + (1 - p_l) g`, as long as
//! `|g| < p_l / (1 - p_l) |g_l|`, g being that of the old one: the model is near the optimum of those that were there before (the condition of
//! the fast reboot's corollary). Gradients are taken from updates: an update over its rate and steps is their mean along the way.

use ebb_round::{ClientId, Contribution, Judgement, Round, vectors};

use super::arrivals::{BOOSTED, PLAIN};

/// What the answers of a round say of the old objective.
pub(super) struct Gradients {
    /// The share of those that were there before, whether they answered or not.
    old_share: f64,
    /// The norm of their mean gradient; `None` if none of them answered.
    old: Option<f64>,
}

impl Gradients {
    /// Of those that are no newcomers.
    pub(super) fn of(
        round: &Round<'_>,
        contributions: &[Contribution],
        is_new: impl Fn(ClientId) -> bool,
    ) -> Gradients {
        let members = round.shares.as_slice().iter().enumerate();
        let old_share = members.filter(|&(idx, _)| !is_new(ClientId::new(idx))).map(|(_, share)| share).sum();
        let mut answered = 0.0;
        let mut terms = Vec::new();
        for one in contributions.iter().filter(|one| one.is_own() && !is_new(one.client)) {
            let share = round.share(one.client);
            answered += share;
            terms.push((one.update.delta.model.as_slice(), share / reach(one)));
        }
        if answered <= 0.0 {
            return Gradients { old_share, old: None };
        }
        let mut sum = vec![0.0; round.global.model.len()];
        vectors::add_weighted(&mut sum, &terms, round.threads);
        let norm = sum.iter().map(|one| one * one).sum::<f64>().sqrt();
        Gradients { old_share, old: Some(norm / answered) }
    }

    /// Whether a newcomer's updates should still count for more; `None` where it cannot be said.
    pub(super) fn judge(
        &self,
        round: &Round<'_>,
        contributions: &[Contribution],
        client: ClientId,
    ) -> Option<Judgement> {
        let own = contributions.iter().find(|one| one.is_own() && one.client == client)?;
        let (old, new) = (self.old?, vectors::norm(&own.update.delta.model) / reach(own));
        let ratio = round.share(client) / self.old_share;
        let verdict = if old < ratio * new { BOOSTED } else { PLAIN };
        let figures = [("gradient_old", old), ("gradient_new", new), ("share_ratio", ratio)];
        Some(Judgement { client, verdict, figures: figures.into() })
    }
}

/// Rate times steps.
fn reach(one: &Contribution) -> f64 {
    f64::from(one.update.rate) * f64::from(one.update.steps.get())
}
