//! Layers: each holds one key and LSN range of a timeline's history, in memory or in a file.

mod block_source;
mod block_writer;
mod delta_layer;
mod delta_writer;
mod desc;
mod ephemeral_file;
mod gather;
mod image_layer;
mod image_writer;
mod inmemory_layer;
pub mod inspect;
mod layer_file;
mod layer_writer;
mod memory_pool;
mod name;
mod read_plan;
mod reconstruct;
mod remote_file;
mod run;
mod value_index;
mod visit;

pub use delta_layer::DeltaLayer;
pub use delta_writer::DeltaLayerWriter;
pub use desc::{LayerIdentity, PersistentLayerDesc};
pub use ephemeral_file::EPHEMERAL_PREFIX;
pub(crate) use gather::release_unused;
pub use image_layer::ImageLayer;
pub use image_writer::ImageLayerWriter;
pub use inmemory_layer::InMemoryLayer;
pub use layer_file::{read_identity, read_remote_identity};
pub use name::{LayerFileName, LayerName, LayerNameParseError};
pub(crate) use read_plan::ReadPlan;
pub use reconstruct::{KeyHistory, ReconstructState};
pub(crate) use remote_file::RemoteFile;
pub use remote_file::{PARTIAL_SUFFIX, RemoteObject};
