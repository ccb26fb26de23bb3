//! `pageserver init`: creates a working directory with its settings.

use anyhow::{Context, bail};
use pageserver::settings::{FILE_NAME, Overrides, Settings, commented_file};
use virtual_file::fs;

use crate::args::Place;

/// Creates the directory and the file. Leaves an existing file unchanged.
pub(crate) fn run(place: &Place) -> anyhow::Result<()> {
    let workdir = place.absolute_workdir()?;
    let path = workdir.join(FILE_NAME);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // The environment is temporary; only flags are meant to be saved.
    let settings = Settings::of_flags(&Overrides { env: Vec::new(), flags: place.overrides.clone() })?;
    runtime.block_on(async {
        fs::create_dir_all(&workdir).await?;
        if path.exists() {
            bail!("{path} exists already: it is left as it is");
        }
        virtual_file::write_file_durably(&path, commented_file(&settings).as_bytes()).await?;
        let parent = workdir.parent().context("the root directory cannot be a working directory")?;
        fs::fsync_dir(parent).await?;
        anyhow::Ok(())
    })?;
    println!("{path} written: start with `pageserver --workdir {workdir}`");
    Ok(())
}
