//! Whether a newcomer's updates should be boosted, by the gradients of a round.
//!
//! An additional step along the newcomer's gradient `g_l` lowers the new objective, whose gradient is
//! `p_l g_l + (1 - p_l) g`, as long as `|g| < p_l / (1 - p_l) |g_l|`. Here `g` is the gradient of all other
//! clients. The condition says that the model is near their optimum (the corollary on the fast reboot). A
//! gradient is estimated as an update over its learning rate and its effective number of steps.

use ebb_round::{ClientDecision, ClientId, Contribution, Round, vectors};

use super::arrivals::{BOOSTED, PLAIN};

/// The sum of the gradients of the clients that returned updates, by shares.
pub(super) struct Gradients<'c> {
    own: Vec<(ClientId, &'c [f32], f64)>,
    sum: Vec<f64>,
    responded: f64,
}

impl<'c> Gradients<'c> {
    /// `effective_steps` gives the effective number of steps at a learning rate.
    pub(super) fn of(
        round: &Round<'_>,
        contributions: &'c [Contribution],
        effective_steps: impl Fn(u32, f64) -> f64,
    ) -> Gradients<'c> {
        let mut own = Vec::new();
        for one in contributions.iter().filter(|one| one.is_own()) {
            let learning_rate = f64::from(one.update.learning_rate);
            let far = learning_rate * effective_steps(one.update.steps.get(), learning_rate);
            if far > 0.0 {
                own.push((one.client, one.update.delta.model.as_slice(), 1.0 / far));
            }
        }
        let mut sum = vec![0.0; round.global.model.len()];
        let terms: Vec<_> =
            own.iter().map(|&(client, update, scale)| (update, scale * round.share(client))).collect();
        vectors::add_weighted(&mut sum, &terms, round.threads);
        let responded = own.iter().map(|&(client, _, _)| round.share(client)).sum();
        Gradients { own, sum, responded }
    }

    /// Whether a newcomer's updates should still be boosted; `None` without an update of its own, or of any
    /// other client.
    pub(super) fn decide(&self, round: &Round<'_>, client: ClientId) -> Option<ClientDecision> {
        let &(_, update, scale) = self.own.iter().find(|(one, _, _)| *one == client)?;
        let share = round.share(client);
        let others = self.responded - share;
        if others <= 1e-12 {
            return None;
        }
        let rest = self.sum.iter().zip(update).map(|(sum, own)| sum - share * scale * f64::from(*own));
        let old = rest.map(|one| one * one).sum::<f64>().sqrt() / others;
        let new = scale * vectors::norm(update);
        let ratio = share / (1.0 - share);
        let verdict = if old < ratio * new { BOOSTED } else { PLAIN };
        let metrics = [("gradient_others", old), ("gradient_own", new), ("share_ratio", ratio)];
        Some(ClientDecision { client, decision: verdict, metrics: metrics.into() })
    }
}
