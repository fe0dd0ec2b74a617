//! The description of a network: its input and its layers.

/// A network that ends in one score per class.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The shape of a sample.
    pub input: Input,
    /// The layers, in order.
    pub layers: Vec<Layer>,
}

/// The shape of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// An image: rows of pixels of channels.
    Image {
        /// Rows.
        height: usize,
        /// Pixels per row.
        width: usize,
        /// Channels per pixel.
        channels: usize,
    },
    /// A number of features without order.
    Flat(usize),
    /// A sequence of symbols, each a number below `symbols`.
    Sequence {
        /// Length of the sequence.
        steps: usize,
        /// Number of different symbols.
        symbols: usize,
    },
}

impl Input {
    /// The number of values in a sample.
    pub fn len(self) -> usize {
        match self {
            Input::Image { height, width, channels } => height * width * channels,
            Input::Flat(count) => count,
            Input::Sequence { steps, .. } => steps,
        }
    }

    /// Whether a sample is empty.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// One layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layer {
    /// A convolution with a square filter.
    Conv {
        /// Output channels.
        channels: usize,
        /// Height and width of the filter.
        kernel: usize,
        /// Pixels between two positions of the filter.
        stride: usize,
        /// Rows and columns of zeros around the image.
        padding: usize,
    },
    /// The maximum of each window.
    MaxPool {
        /// Height and width of the window, and its stride.
        size: usize,
    },
    /// The mean of each window.
    AvgPool {
        /// Height and width of the window, and its stride.
        size: usize,
    },
    /// ReLU: `max(x, 0)`.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
    /// All inputs to all outputs; an image is flattened channel by channel and a sequence step by step, as
    /// PyTorch does.
    Dense {
        /// Number of outputs.
        units: usize,
    },
    /// During training, each activation is zeroed with this probability.
    Dropout {
        /// The probability.
        probability: f32,
    },
    /// During training, each channel of an image is zeroed with this probability.
    ChannelDropout {
        /// The probability.
        probability: f32,
    },
    /// Each channel is normalised to mean 0 and variance 1 over the batch, then scaled and shifted.
    BatchNorm,
    /// Each symbol of a sequence becomes a learned vector.
    Embedding {
        /// Length of the vectors.
        width: usize,
    },
    /// Stacked LSTMs over a sequence. Each row of an image is a step in time.
    Lstm {
        /// Size of the state and of the output of each.
        units: usize,
        /// How many are stacked.
        layers: usize,
    },
    /// The output of the last step in time only.
    LastStep,
    /// The loss, as the last layer: softmax cross-entropy, which is also the default.
    CrossEntropy,
    /// The loss, as the last layer: squared error, mean over outputs. The targets are 1 for the sample's
    /// class and 0 for the others, or the sample's regression targets.
    SquaredError,
}

impl Layer {
    /// Its name in errors.
    pub fn name(&self) -> &'static str {
        match self {
            Layer::Conv { .. } => "conv",
            Layer::MaxPool { .. } => "max-pool",
            Layer::AvgPool { .. } => "avg-pool",
            Layer::Relu => "relu",
            Layer::Tanh => "tanh",
            Layer::Dense { .. } => "dense",
            Layer::Dropout { .. } => "dropout",
            Layer::ChannelDropout { .. } => "channel-dropout",
            Layer::BatchNorm => "batch-norm",
            Layer::Embedding { .. } => "embedding",
            Layer::Lstm { .. } => "lstm",
            Layer::LastStep => "last-step",
            Layer::CrossEntropy => "cross-entropy",
            Layer::SquaredError => "squared-error",
        }
    }
}
