//! The worker protocol: requests and replies, one JSON object a line.
//!
//! A worker does one run at a time. `begin` names a model and a client, and `steps` continues the run by the
//! rule that it carries. `update` requests the new parameters minus the old ones as a file. A run is
//! cancelled by not being continued.

use std::path::PathBuf;

use ebb_round::StepRule;
use serde::{Deserialize, Serialize};

/// A request to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Request {
    /// Report about a client's data: `samples` to train on, samples `held_out` for evaluation, whether there
    /// are `labels`, and what else the worker `can` do.
    Describe {
        /// The client whose data is described.
        client: u32,
    },
    /// Begin a local run of a client from a model.
    Begin {
        /// The client whose data is trained on.
        client: u32,
        /// The round, for workers whose batches depend on it.
        round: u32,
        /// The seed of every random draw.
        seed: u64,
        /// The safetensors file of the model.
        model: PathBuf,
        /// Batch size; absent: all samples.
        batch: Option<u32>,
        /// The most steps that this run will be asked for.
        steps: u32,
    },
    /// Continue the run.
    Steps {
        /// The number of steps.
        count: u32,
        /// How each step changes the parameters.
        rule: StepSettings,
    },
    /// Write the new parameters minus the old ones into a file.
    Update {
        /// The file, as safetensors with the model's tensor names.
        file: PathBuf,
    },
    /// Write the gradient over all of the client's data into a file.
    Gradient {
        /// The file, as safetensors with the model's tensor names.
        file: PathBuf,
    },
    /// Compute the loss of a model on a client's data.
    Loss {
        /// The client whose data is used.
        client: u32,
        /// The safetensors file of the model.
        model: PathBuf,
        /// Number of samples; absent: all.
        samples: Option<u32>,
    },
    /// Evaluate a model.
    Evaluate {
        /// The client whose held-out data is used; absent: the pooled test data.
        client: Option<u32>,
        /// The safetensors file of the model.
        model: PathBuf,
    },
}

/// How a step changes the parameters: `w <- w - learning_rate * direction`, with the corrections below in the
/// gradient.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSettings {
    /// The local learning rate.
    pub rate: f32,
    /// The share of the last direction that is kept.
    pub momentum: f32,
    /// Nesterov momentum.
    pub nesterov: bool,
    /// Adam's beta 1, beta 2 and epsilon, instead of momentum.
    pub adam: Option<[f32; 3]>,
    /// Coefficient of L2 regularisation, added to the gradient as `weight_decay * w`.
    pub weight_decay: f32,
    /// The coefficient `proximal_mu` of FedProx's proximal term towards the model of `begin`.
    pub pull: f32,
    /// A file with the vector that is added to every gradient, for example a control variate.
    pub push: Option<PathBuf>,
    /// The largest norm of a gradient; longer ones are clipped.
    pub clip: Option<f32>,
}

impl StepSettings {
    /// The settings of a step rule, with the correction as a file.
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

/// A reply of a worker; each request needs some of these fields.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// Why the request failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Steps done: by `steps` in this request, by `update` in the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// For `describe` the samples to train on, for `evaluate` those that were evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<f64>,
    /// The number of samples that the client holds out for evaluation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out: Option<u32>,
    /// Whether samples have labels, so that accuracy is defined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<bool>,
    /// Supported features: `momentum`, `nesterov`, `adam`, `weight-decay`, `clip`, `pull` and `push` of a
    /// step, `gradient` and `loss`; absent: all. A run that needs an unsupported one is refused before the
    /// first job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub can: Option<Vec<String>>,
    /// For `update` the mean over its steps, for `loss` the mean, for `evaluate` the sum over samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The fall of the training loss, from the first tenth of the steps to the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_fall: Option<f64>,
    /// Mean training accuracy, if samples have labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// The number of samples classified correctly.
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
