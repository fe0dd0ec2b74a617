//! The networks of the papers, by name.

use super::spec::{Input, Layer, Spec};
use Layer::{ChannelDropout, Conv, Dense, Dropout, MaxPool, Relu};

/// The names that [`named`] knows, each with a description.
pub const NAMES: &[(&str, &str)] = &[
    ("logistic", "multinomial logistic regression"),
    ("mlp", "two hidden layers of 200"),
    ("mnist-cnn", "conv5x5 10 and 20, pooled, dense 50 (21,840 parameters on MNIST)"),
    ("mnist-cnn-dropout", "the same with dropout 0.5"),
    ("lenet", "LeNet for CIFAR-10: conv5x5 6 and 16, pooled, dense 120, 84 (62,006)"),
    ("e3cs-emnist-cnn", "conv5x5 10 and 10, pooled, dense 1280, 256 (543,468 with 26 classes)"),
    ("e3cs-cifar-cnn", "conv5x5 64 and 64, pooled, dense 384, 192 (797,962)"),
    ("mcmahan-cnn", "conv5x5 32 and 64, same padding, pooled, dense 512 (1,663,370)"),
    ("fast-fashion-cnn", "conv3x3 32 and 64, pooled once, dense 128 (1,206,590 with 62 outputs)"),
    ("fast-cifar-cnn", "conv3x3 16, 32, 64, pooled, dense 500 (541,094)"),
    ("fmnist-cnn", "conv5x5 16 and 32 with batch norm, pooled (29,034 trained)"),
    ("char-lstm", "embedding 8, two LSTMs of 256, dropout 0.5 (819,920 with 80 symbols)"),
];

/// The network of this name for an input and a number of classes.
pub fn named(name: &str, input: Input, n_classes: usize) -> Option<Spec> {
    let conv = |channels, kernel, padding| Conv { channels, kernel, stride: 1, padding };
    let pool = MaxPool { size: 2 };
    let dense = |units| Dense { units };
    let out = dense(n_classes);
    let dropout = |probability| Dropout { probability };
    let layers = match name {
        "logistic" => vec![out],
        "mlp" => vec![dense(200), Relu, dense(200), Relu, out],
        "mnist-cnn" => {
            vec![conv(10, 5, 0), pool, Relu, conv(20, 5, 0), pool, Relu, dense(50), Relu, out]
        }
        "mnist-cnn-dropout" => vec![
            conv(10, 5, 0),
            pool,
            Relu,
            conv(20, 5, 0),
            ChannelDropout { probability: 0.5 },
            pool,
            Relu,
            dense(50),
            Relu,
            dropout(0.5),
            out,
        ],
        "lenet" => {
            vec![
                conv(6, 5, 0),
                Relu,
                pool,
                conv(16, 5, 0),
                Relu,
                pool,
                dense(120),
                Relu,
                dense(84),
                Relu,
                out,
            ]
        }
        "e3cs-emnist-cnn" => {
            vec![
                conv(10, 5, 0),
                Relu,
                pool,
                conv(10, 5, 0),
                Relu,
                pool,
                dense(1280),
                Relu,
                dense(256),
                Relu,
                out,
            ]
        }
        "e3cs-cifar-cnn" => {
            vec![
                conv(64, 5, 0),
                Relu,
                pool,
                conv(64, 5, 0),
                Relu,
                pool,
                dense(384),
                Relu,
                dense(192),
                Relu,
                out,
            ]
        }
        "mcmahan-cnn" => vec![conv(32, 5, 2), Relu, pool, conv(64, 5, 2), Relu, pool, dense(512), Relu, out],
        "fast-fashion-cnn" => vec![
            conv(32, 3, 0),
            Relu,
            conv(64, 3, 0),
            Relu,
            pool,
            dropout(0.25),
            dense(128),
            Relu,
            dropout(0.5),
            out,
        ],
        "fast-cifar-cnn" => vec![
            conv(16, 3, 1),
            Relu,
            pool,
            conv(32, 3, 1),
            Relu,
            pool,
            conv(64, 3, 1),
            Relu,
            pool,
            dropout(0.25),
            dense(500),
            Relu,
            dropout(0.25),
            out,
        ],
        "fmnist-cnn" => vec![
            conv(16, 5, 2),
            Layer::BatchNorm,
            Relu,
            pool,
            conv(32, 5, 2),
            Layer::BatchNorm,
            Relu,
            pool,
            out,
        ],
        "char-lstm" => {
            let (embedding, lstm) = (Layer::Embedding { width: 8 }, Layer::Lstm { units: 256, layers: 2 });
            vec![embedding, lstm, Layer::LastStep, dropout(0.5), out]
        }
        _ => return None,
    };
    Some(Spec { input, layers })
}
