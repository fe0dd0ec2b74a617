//! The `[model]` table: a network by name, or layer by layer.

use ebb_settings::{Settings, SettingsError, nearest};
use serde::{Deserialize, Serialize};

use super::named::{NAMES, named};
use super::spec::{Input, Layer, Spec};
use super::{Net, NetError};
use crate::kernels::KernelPath;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelTable {
    /// Number of outputs, if it exceeds the number of classes.
    outputs: Option<usize>,
    /// The loss function.
    #[serde(default)]
    loss: Loss,
    /// For kind "layers": all layers but the last, which has one unit per class.
    layers: Option<Vec<LayerTable>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Loss {
    #[default]
    CrossEntropy,
    SquaredError,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LayerTable {
    kind: String,
    channels: Option<usize>,
    kernel: Option<usize>,
    stride: Option<usize>,
    padding: Option<usize>,
    size: Option<usize>,
    units: Option<usize>,
    probability: Option<f32>,
    width: Option<usize>,
    layers: Option<usize>,
}

const LAYERS: [&str; 12] = [
    "conv",
    "max-pool",
    "avg-pool",
    "relu",
    "tanh",
    "dense",
    "dropout",
    "channel-dropout",
    "batch-norm",
    "embedding",
    "lstm",
    "last-step",
];

/// Builds the network that the `[model]` table names, or `default`.
pub fn build(
    settings: &Settings<'_>,
    input: Input,
    n_classes: usize,
    default: &str,
) -> Result<Net, SettingsError> {
    let path = KernelPath::chosen().map_err(|message| settings.error("kind", message))?;
    let kind = settings.kind()?.unwrap_or_else(|| default.to_owned());
    settings.resolve_kind(&kind);
    let table: ModelTable = settings.parse()?;
    let outputs = table.outputs.unwrap_or(n_classes);
    if outputs < n_classes {
        return Err(settings
            .error("outputs", format!("fewer than the {n_classes} classes; give at least {n_classes}")));
    }
    let mut spec = match (&table.layers, kind.as_str()) {
        (Some(layers), "layers") => {
            let mut all = Vec::with_capacity(layers.len() + 1);
            for (at, layer) in layers.iter().enumerate() {
                all.push(layer.read(at, settings)?);
            }
            all.push(Layer::Dense { units: outputs });
            Spec { input, layers: all }
        }
        (None, "layers") => {
            return Err(settings.error("layers", "missing; list the layers, as { kind = \"conv\", ... }"));
        }
        (Some(_), _) => {
            return Err(settings.error("layers", "it needs kind = \"layers\"; remove it, or change the kind"));
        }
        (None, name) => named(name, input, outputs).ok_or_else(|| {
            let names = || NAMES.iter().map(|(name, _)| *name).chain(["layers"]);
            let hint =
                nearest(name, names()).map_or(String::new(), |near| format!("did you mean \"{near}\"? "));
            let known = names().collect::<Vec<_>>().join(", ");
            settings.error("kind", format!("there is no such model; {hint}known: {known}"))
        })?,
    };
    if table.loss == Loss::SquaredError {
        spec.layers.push(Layer::SquaredError);
    }
    Net::new(&spec, path).map_err(|error| match (kind.as_str(), table.layers) {
        ("layers", Some(layers)) if error.layer < layers.len() => {
            settings.error(&format!("layers[{}]", error.layer), error.message)
        }
        _ => settings.error("kind", NetError::to_string(&error)),
    })
}

impl LayerTable {
    fn read(&self, at: usize, settings: &Settings<'_>) -> Result<Layer, SettingsError> {
        let path = |key: &str| format!("layers[{at}].{key}");
        let keys = [
            ("channels", self.channels.is_some()),
            ("kernel", self.kernel.is_some()),
            ("stride", self.stride.is_some()),
            ("padding", self.padding.is_some()),
            ("size", self.size.is_some()),
            ("units", self.units.is_some()),
            ("probability", self.probability.is_some()),
            ("width", self.width.is_some()),
            ("layers", self.layers.is_some()),
        ];
        let only = |allowed: &[&str]| match keys.iter().find(|(key, given)| *given && !allowed.contains(key))
        {
            Some((key, _)) => {
                Err(settings.error(&path(key), format!("a {} layer has no such key; remove it", self.kind)))
            }
            None => Ok(()),
        };
        let need = |key: &str, value: Option<usize>| {
            value
                .ok_or_else(|| settings.error(&path(key), format!("missing; a {} layer needs it", self.kind)))
        };
        match self.kind.as_str() {
            "conv" => {
                only(&["channels", "kernel", "stride", "padding"])?;
                let (channels, kernel) = (need("channels", self.channels)?, need("kernel", self.kernel)?);
                let (stride, padding) = (self.stride.unwrap_or(1), self.padding.unwrap_or(0));
                Ok(Layer::Conv { channels, kernel, stride, padding })
            }
            "max-pool" => {
                only(&["size"]).and_then(|()| Ok(Layer::MaxPool { size: need("size", self.size)? }))
            }
            "avg-pool" => {
                only(&["size"]).and_then(|()| Ok(Layer::AvgPool { size: need("size", self.size)? }))
            }
            "relu" => only(&[]).map(|()| Layer::Relu),
            "tanh" => only(&[]).map(|()| Layer::Tanh),
            "batch-norm" => only(&[]).map(|()| Layer::BatchNorm),
            "last-step" => only(&[]).map(|()| Layer::LastStep),
            "embedding" => {
                only(&["width"]).and_then(|()| Ok(Layer::Embedding { width: need("width", self.width)? }))
            }
            "lstm" => {
                only(&["units", "layers"])?;
                Ok(Layer::Lstm { units: need("units", self.units)?, layers: self.layers.unwrap_or(1) })
            }
            "dense" => only(&["units"]).and_then(|()| Ok(Layer::Dense { units: need("units", self.units)? })),
            "dropout" | "channel-dropout" => {
                only(&["probability"])?;
                let missing = || {
                    settings.error(&path("probability"), format!("missing; a {} layer needs it", self.kind))
                };
                let probability = self.probability.ok_or_else(missing)?;
                let whole = self.kind == "channel-dropout";
                Ok(if whole { Layer::ChannelDropout { probability } } else { Layer::Dropout { probability } })
            }
            other => {
                let hint =
                    nearest(other, LAYERS).map_or(String::new(), |near| format!("did you mean \"{near}\"? "));
                let message = format!("there is no such layer; {hint}known: {}", LAYERS.join(", "));
                Err(settings.error(&path("kind"), message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ebb_settings::{BuildContext, Tree};

    use super::*;

    fn model(text: &str) -> Result<usize, String> {
        let tree = Tree::parse(&format!("[model]\n{text}"), "a.toml").unwrap();
        let input = Input::Image { height: 28, width: 28, channels: 1 };
        let net = build(&tree.table("model", BuildContext::default()), input, 10, "logistic");
        net.map(|net| net.layout().len()).map_err(|error| error.to_string())
    }

    #[test]
    fn networks_are_built_by_name_and_by_layers() {
        assert_eq!(model(""), Ok(7850));
        assert_eq!(model("kind = \"mnist-cnn\""), Ok(21_840));
        assert_eq!(model("kind = \"fast-fashion-cnn\"\noutputs = 62"), Ok(1_206_590));
        let layers = "kind = \"layers\"\nlayers = [
            { kind = \"conv\", channels = 10, kernel = 5 }, { kind = \"max-pool\", size = 2 }, { kind = \"relu\" },
            { kind = \"conv\", channels = 20, kernel = 5 }, { kind = \"max-pool\", size = 2 }, { kind = \"relu\" },
            { kind = \"dense\", units = 50 }, { kind = \"relu\" }]";
        assert_eq!(model(layers), Ok(21_840));
    }

    #[test]
    fn errors_in_models_name_the_place() {
        for (text, expected) in [
            (
                "kind = \"lenett\"",
                "a.toml:2:1: model.kind = \"lenett\": there is no such model; did you mean \"lenet\"?",
            ),
            ("kind = \"layers\"", "a.toml:1:2: model.layers: missing"),
            (
                "kind = \"layers\"\nlayers = [{ kind = \"cov\" }]",
                "a.toml:3:13: model.layers[0].kind = \"cov\": there is no such layer; did you mean \"conv\"?",
            ),
            (
                "kind = \"layers\"\nlayers = [{ kind = \"conv\", kernel = 3 }]",
                "model.layers[0].channels: missing; a conv layer needs it",
            ),
            (
                "kind = \"layers\"\nlayers = [{ kind = \"relu\", size = 3 }]",
                "model.layers[0].size = 3: a relu layer has no such key; remove it",
            ),
            (
                "kind = \"layers\"\nlayers = [{ kind = \"conv\", channels = 0, kernel = 3 }]",
                "model.layers[0]: channels, kernel and stride must be at least 1",
            ),
            (
                "kind = \"layers\"\nlayers = [{ kind = \"conv\", channels = 3, kernel = 30 }]",
                "model.layers[0]: a kernel of 30 does not fit an image of 28 x 28 x 1",
            ),
            ("outputs = 3", "model.outputs = 3: fewer than the 10 classes"),
        ] {
            let error = model(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
