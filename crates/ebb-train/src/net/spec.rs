//! What a network is: its input and its layers.

/// A network that ends in one score a class.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// What goes in.
    pub input: Input,
    /// What happens to it, in order.
    pub layers: Vec<Layer>,
}

/// The shape of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Rows of pixels of channels.
    Image {
        /// Rows.
        height: usize,
        /// Pixels a row.
        width: usize,
        /// Channels a pixel.
        channels: usize,
    },
    /// Numbers without order.
    Flat(usize),
    /// Symbols one after another, each a number below `symbols`.
    Sequence {
        /// How many one sample has.
        steps: usize,
        /// How many different ones there are.
        symbols: usize,
    },
}

impl Input {
    /// How many numbers a sample has.
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
        /// Channels that come out.
        channels: usize,
        /// Height and width of the filter.
        kernel: usize,
        /// Pixels it moves by.
        stride: usize,
        /// Zeros around the image.
        padding: usize,
    },
    /// The largest of each window.
    MaxPool {
        /// Height and width of the window, and how far it moves.
        size: usize,
    },
    /// The mean of each window.
    AvgPool {
        /// Height and width of the window, and how far it moves.
        size: usize,
    },
    /// Nothing below zero.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
    /// All inputs to all outputs; an image is flattened channel by channel and a sequence step by step, as PyTorch
    /// does.
    Dense {
        /// Numbers that come out.
        units: usize,
    },
    /// Each number is dropped with this chance while training.
    Dropout {
        /// The chance.
        probability: f32,
    },
    /// Each channel of an image is dropped with this chance while training.
    ChannelDropout {
        /// The chance.
        probability: f32,
    },
    /// Each channel is brought to mean 0 and variance 1 over the batch, then scaled and shifted.
    BatchNorm,
    /// Each symbol of a sequence becomes a vector that is learnt.
    Embedding {
        /// How long the vectors are.
        width: usize,
    },
    /// Long short-term memories over a sequence, one upon the other. Each row of an image is a step in time.
    Lstm {
        /// How many numbers each remembers, and gives out at every step.
        units: usize,
        /// How many there are.
        layers: usize,
    },
    /// Only what came out at the last step in time.
    LastStep,
    /// What the network is judged by, at the very end: softmax cross-entropy, as when nothing is said.
    CrossEntropy,
    /// What the network is judged by, at the very end: the mean over all outputs of the squared distance to 1
    /// for the sample's class and to 0 for the others, or to the sample's values.
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
