//! How much arithmetic a sample costs, as if nothing were skipped.

use ebb_train::net::{Input, Layer, Spec};

/// Floating-point operations of one training step, a sample: forward, and backward the gradients of weights
/// and inputs, save those of the network's own input. A multiply-add counts as two; only products count.
pub(super) fn training(spec: &Spec) -> f64 {
    let all = products(spec);
    let forward: f64 = all.iter().sum();
    let first = all.first().copied().unwrap_or(0.0);
    2.0 * (3.0 * forward - first)
}

/// The same of judging a sample.
pub(super) fn judging(spec: &Spec) -> f64 {
    2.0 * products(spec).iter().sum::<f64>()
}

/// Multiply-adds of every layer that has weights, in order.
fn products(spec: &Spec) -> Vec<f64> {
    let (mut height, mut width, mut channels) = match spec.input {
        Input::Image { height, width, channels } => (height, width, channels),
        Input::Flat(count) => (1, 1, count),
        Input::Sequence { steps, .. } => (steps, 1, 1),
    };
    let mut products = Vec::new();
    for layer in &spec.layers {
        match *layer {
            Layer::Conv { channels: out, kernel, stride, padding } => {
                let moved = |side: usize| (side + 2 * padding - kernel) / stride + 1;
                (height, width) = (moved(height), moved(width));
                products.push((height * width * out) as f64 * (kernel * kernel * channels) as f64);
                channels = out;
            }
            Layer::MaxPool { size } | Layer::AvgPool { size } => {
                (height, width) = (height / size, width / size);
            }
            Layer::Dense { units } => {
                products.push((height * width * channels) as f64 * units as f64);
                (height, width, channels) = (1, 1, units);
            }
            // Looked up, not multiplied.
            Layer::Embedding { width } => channels = width,
            Layer::Lstm { units, layers } => {
                for _ in 0..layers {
                    products.push((height * 4 * units) as f64 * (width * channels + units) as f64);
                    (width, channels) = (1, units);
                }
            }
            Layer::LastStep => height = 1,
            Layer::Relu
            | Layer::Tanh
            | Layer::Dropout { .. }
            | Layer::ChannelDropout { .. }
            | Layer::BatchNorm
            | Layer::CrossEntropy
            | Layer::SquaredError => {}
        }
    }
    products
}

#[cfg(test)]
mod tests {
    use super::super::WORKLOADS;

    /// Counted by hand when the kernels were prototyped.
    #[test]
    fn rounds_cost_what_was_counted_by_hand() {
        let check = |name: &str, gflop: f64, digits: i32| {
            let workload = WORKLOADS.iter().find(|workload| workload.name == name).unwrap();
            let rounded = (workload.gflop().unwrap() * 10_f64.powi(digits)).round() / 10_f64.powi(digits);
            assert_eq!(rounded, gflop, "{name}");
        };
        check("W1", 20.8, 1);
        check("W2", 95.4, 1);
        check("W3", 201.6, 1);
        check("W4", 0.06, 2);
    }
}
