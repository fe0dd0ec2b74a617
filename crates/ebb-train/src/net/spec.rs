//! What a network is: its input and its layers.

/// A network that ends in one score a class, judged by softmax cross-entropy.
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
}

impl Input {
    /// How many numbers a sample has.
    pub fn len(self) -> usize {
        match self {
            Input::Image { height, width, channels } => height * width * channels,
            Input::Flat(count) => count,
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
    /// All inputs to all outputs; an image is flattened channel by channel, as PyTorch does.
    Dense {
        /// Numbers that come out.
        units: usize,
    },
    /// Each number is dropped with this chance while training.
    Dropout {
        /// The chance.
        chance: f32,
    },
    /// Each channel of an image is dropped with this chance while training.
    ChannelDropout {
        /// The chance.
        chance: f32,
    },
    /// Each channel is brought to mean 0 and variance 1 over the batch, then scaled and shifted.
    BatchNorm,
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
        }
    }
}
