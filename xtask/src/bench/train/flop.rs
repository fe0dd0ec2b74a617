//! The floating-point operations of a sample, as if no zeros were skipped.

use ebb_train::net::{Input, Layer, Spec};

/// Floating-point operations of a training step, per sample: the forward pass, and the gradients of
/// parameters and inputs, except for the network's own input. A multiply-add counts as two, and only products
/// count.
pub(super) fn training(spec: &Spec) -> f64 {
    let Products { all, of_the_input } = products(spec);
    2.0 * (3.0 * all - of_the_input)
}

/// As above, for an evaluation.
pub(super) fn evaluation(spec: &Spec) -> f64 {
    2.0 * products(spec).all
}

/// Multiply-adds of the forward pass: all, and those with the network's own input.
#[derive(Default)]
struct Products {
    all: f64,
    of_the_input: f64,
}

fn products(spec: &Spec) -> Products {
    let (mut height, mut width, mut channels) = match spec.input {
        Input::Image { height, width, channels } => (height, width, channels),
        Input::Flat(count) => (1, 1, count),
        Input::Sequence { steps, .. } => (steps, 1, 1),
    };
    let mut products = Products::default();
    // Whether no layer before has parameters.
    let mut first = true;
    for layer in &spec.layers {
        let mut add = |count: f64, with_input: f64| {
            products.all += count;
            products.of_the_input += if first { with_input } else { 0.0 };
            first = false;
        };
        match *layer {
            Layer::Conv { channels: out, kernel, stride, padding } => {
                let moved = |side: usize| (side + 2 * padding - kernel) / stride + 1;
                (height, width) = (moved(height), moved(width));
                let count = (height * width * out) as f64 * (kernel * kernel * channels) as f64;
                add(count, count);
                channels = out;
            }
            Layer::MaxPool { size } | Layer::AvgPool { size } => {
                (height, width) = (height / size, width / size);
            }
            Layer::Dense { units } => {
                let count = (height * width * channels) as f64 * units as f64;
                add(count, count);
                (height, width, channels) = (1, 1, units);
            }
            // A lookup has no products.
            Layer::Embedding { width } => {
                channels = width;
                add(0.0, 0.0);
            }
            Layer::Lstm { units, layers } => {
                for _ in 0..layers {
                    // The recurrent state passes on a gradient, whatever the inputs were.
                    let gates = (height * 4 * units) as f64;
                    add(gates * (width * channels + units) as f64, gates * (width * channels) as f64);
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
        // 7,000 sequences of 80 steps: 6 x (1024 x (8 + 256) + 1024 x 512), and 6 x 256 x 80 at the end.
        check("W7", 2670.8, 1);
    }
}
