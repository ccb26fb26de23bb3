//! A layer file of a timeline, opened when it is first read.

use camino::{Utf8Path, Utf8PathBuf};

use crate::tenant::storage_layer::PersistentLayerDesc;

/// A layer file: what it covers and where it is.
#[derive(Debug)]
pub struct Layer {
    desc: PersistentLayerDesc,
    generation: u32,
    path: Utf8PathBuf,
}

impl Layer {
    /// The layer of generation `generation` in directory `dir`.
    pub fn new(dir: &Utf8Path, desc: PersistentLayerDesc, generation: u32) -> Self {
        let path = dir.join(desc.layer_name().file_name(generation));
        Self { desc, generation, path }
    }

    /// What it covers.
    pub fn desc(&self) -> &PersistentLayerDesc {
        &self.desc
    }

    /// The generation in its file name.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Its file.
    pub fn path(&self) -> &Utf8Path {
        &self.path
    }
}
