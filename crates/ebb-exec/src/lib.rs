//! Training in worker processes, in any language. A worker receives requests as lines of JSON and models as
//! safetensors files, and replies the same way.

#![forbid(unsafe_code)]

mod external;
pub mod protocol;
mod vectors;
mod worker;

pub use external::{DEFAULT_TIMEOUT, ENTRY, ExternalTask};
pub use vectors::{read_layout, read_vector, write_vector};
