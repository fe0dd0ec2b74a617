//! What is said to a worker, and what it says: one JSON object a line.
//!
//! A worker does one run at a time. `begin` gives it a model and a client; `steps` lets it train on, by the rule that goes with
//! it; `update` asks for how far it came, as a file of new minus old. A run is cancelled by not being asked for more.

use std::path::PathBuf;

use ebb_round::StepRule;
use serde::{Deserialize, Serialize};

/// What a worker is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Say what there is of a client's data: `samples` to train on, `held_out` ones to be judged on, whether there are `labels`,
    /// and what else the worker `can`.
    Describe {
        /// Whose data.
        client: u32,
    },
    /// Begin a run from a model, with the data of a client.
    Begin {
        /// Whose data.
        client: u32,
        /// The round, for whoever draws its batches by it.
        round: u32,
        /// The seed of everything random.
        seed: u64,
        /// The model, as safetensors.
        model: PathBuf,
        /// Samples a step; absent: all.
        batch: Option<u32>,
        /// How many steps will be asked for at most.
        steps: u32,
    },
    /// Train on.
    Steps {
        /// So many steps.
        count: u32,
        /// How a step goes.
        rule: StepSettings,
    },
    /// Write new minus old into a file.
    Update {
        /// The file, as safetensors with the model's names.
        file: PathBuf,
    },
    /// Write the gradient over all of the client's data into a file.
    Gradient {
        /// The file, as safetensors with the model's names.
        file: PathBuf,
    },
    /// The loss of a model on a client's data.
    Loss {
        /// Whose data.
        client: u32,
        /// The model.
        model: PathBuf,
        /// Over so many samples; absent: over all.
        samples: Option<u32>,
    },
    /// Judge a model.
    Evaluate {
        /// On data that this client keeps for that; absent: on the test data of all.
        client: Option<u32>,
        /// The model.
        model: PathBuf,
    },
}

/// How a step goes: the slope, with what is added to it, times the rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSettings {
    /// The local rate.
    pub rate: f32,
    /// Share of the last step's direction that is kept.
    pub momentum: f32,
    /// Looks ahead along the momentum.
    pub nesterov: bool,
    /// Adam's beta 1, beta 2 and epsilon, instead of momentum.
    pub adam: Option<[f32; 3]>,
    /// Pull towards zero.
    pub weight_decay: f32,
    /// Pull towards the model of `begin`.
    pub pull: f32,
    /// A file of what is added to every slope.
    pub push: Option<PathBuf>,
    /// The longest that a slope may be.
    pub clip: Option<f32>,
}

impl StepSettings {
    /// The same as the engine has it, but for what lies in a file.
    pub fn of(rule: &StepRule<'_>, correction: Option<PathBuf>) -> StepSettings {
        let &StepRule {
            learning_rate: rate,
            momentum,
            nesterov,
            adam,
            weight_decay,
            proximal: pull,
            correction: _,
            max_grad_norm: clip,
        } = rule;
        let adam = adam.map(|adam| [adam.beta1, adam.beta2, adam.epsilon]);
        StepSettings { rate, momentum, nesterov, adam, weight_decay, pull, push: correction, clip }
    }
}

/// What a worker says: of these, what was asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Why it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Steps done, of `steps` those just done, of `update` all of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// Of `describe` those to train on, of `evaluate` those judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<f64>,
    /// How many more the client keeps to judge models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<u32>,
    /// Whether samples have labels that can be right or wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<bool>,
    /// Which of `momentum`, `nesterov`, `adam`, `weight-decay`, `clip`, `pull`, `push` (in the rule of a step), `gradient` and
    /// `loss` it can do; absent: all. Whatever needs another is refused before the first job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub can: Option<Vec<String>>,
    /// Of `update` the mean over its steps, of `loss` the mean, of `evaluate` the sum over samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// How far it fell, from the first tenth of the steps to the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_fall: Option<f64>,
    /// Mean training accuracy, where there is such a thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Samples that were labelled right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hits: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_plain_json() {
        let request = Request::Begin {
            client: 3,
            round: 5,
            seed: 1,
            model: "m.safetensors".into(),
            batch: None,
            steps: 7,
        };
        let line = serde_json::to_string(&request).unwrap();
        assert_eq!(
            line,
            r#"{"do":"begin","client":3,"round":5,"seed":1,"model":"m.safetensors","batch":null,"steps":7}"#
        );
        assert_eq!(serde_json::from_str::<Request>(&line).unwrap(), request);
        let reply: Reply = serde_json::from_str(r#"{"steps": 4, "metrics": {"anything": 1}}"#).unwrap();
        assert_eq!(reply.steps, Some(4));
    }
}
