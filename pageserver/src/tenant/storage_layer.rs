//! Layers: one key and LSN range of a timeline's history each, in memory or in a file.

mod desc;
mod name;
mod reconstruct;

pub use desc::PersistentLayerDesc;
pub use name::{LayerName, LayerNameParseError};
pub use reconstruct::{KeyHistory, ReconstructState};
