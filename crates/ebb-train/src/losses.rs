//! The training losses of a client's steps.

/// The training losses of one local run, step by step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses(Vec<f64>);

impl Losses {
    /// An empty list with capacity for `steps` losses.
    pub(crate) fn for_steps(steps: u32) -> Losses {
        Losses(Vec::with_capacity(steps.min(1 << 16) as usize))
    }

    /// Adds the loss of one more step.
    pub(crate) fn add(&mut self, loss: f64) {
        self.0.push(loss);
    }

    /// The sum of all losses.
    pub(crate) fn sum(&self) -> f64 {
        self.0.iter().sum()
    }

    /// The fall of the loss: the mean over the first tenth of the steps minus that over the last tenth. A
    /// tenth is at least one step.
    pub(crate) fn fall(&self) -> f32 {
        let tenth = self.0.len().div_ceil(10);
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len().max(1) as f64;
        (mean(&self.0[..tenth]) - mean(&self.0[self.0.len() - tenth..])) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fall_is_from_the_first_tenth_to_the_last() {
        let fall = |losses: &[f64]| Losses(losses.to_vec()).fall();
        assert_eq!((fall(&[]), fall(&[3.0]), fall(&[3.0, 1.0])), (0.0, 0.0, 2.0));
        let twenty: Vec<_> = (0..20).map(f64::from).collect();
        assert_eq!(fall(&twenty), 0.5 - 18.5);
        // With eleven steps, a tenth is two.
        assert_eq!(fall(&twenty[..11]), 0.5 - 9.5);
    }
}
