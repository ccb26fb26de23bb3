//! The console's files: as they are in the directory `console/src`, and packed.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use ring::digest::{Context, SHA256};

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

/// Where the page says which version it is of.
const VERSION: &str = "{{version}}";

macro_rules! files {
    ($($name:literal $kind:ident)+) => {
        &[$(($name, $kind, include_str!(concat!("../../../../console/src/", $name)))),+]
    };
}

/// All files: name, kind and contents.
const FILES: &[(&str, &str, &str)] = files! {
    "index.html" HTML
    "style.css" STYLE
    "icon.svg" PICTURE
    "app.js" SCRIPT
    "api.js" SCRIPT
    "actions.js" SCRIPT
    "charts.js" SCRIPT
    "computes.js" SCRIPT
    "dialog.js" SCRIPT
    "fleet.js" SCRIPT
    "format.js" SCRIPT
    "history.js" SCRIPT
    "layermap.js" SCRIPT
    "layers.js" SCRIPT
    "moment.js" SCRIPT
    "timeline.js" SCRIPT
    "times.js" SCRIPT
    "tree.js" SCRIPT
    "ui.js" SCRIPT
    "vendor/hooks.js" SCRIPT
    "vendor/htm.js" SCRIPT
    "vendor/preact.js" SCRIPT
};

/// A file.
pub(super) struct Asset {
    pub(super) kind: &'static str,
    pub(super) plain: Bytes,
    /// By gzip.
    pub(super) packed: Bytes,
    /// Its entity tag.
    pub(super) tag: String,
}

/// All of them.
pub(super) struct Assets {
    files: Vec<(&'static str, Asset)>,
    version: String,
}

impl Assets {
    pub(super) fn new() -> Self {
        let mut all = Context::new(&SHA256);
        for (name, _, contents) in FILES {
            all.update(name.as_bytes());
            all.update(contents.as_bytes());
        }
        let version = short(all);
        let asset = |&(name, kind, contents): &(&'static str, &'static str, &'static str)| {
            let plain = match kind {
                HTML => Bytes::from(contents.replace(VERSION, &version)),
                _ => Bytes::from_static(contents.as_bytes()),
            };
            let mut own = Context::new(&SHA256);
            own.update(&plain);
            (name, Asset { kind, packed: packed(&plain), plain, tag: format!("\"{}\"", short(own)) })
        };
        Self { files: FILES.iter().map(asset).collect(), version }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Asset> {
        self.files.iter().find(|(known, _)| *known == name).map(|(_, asset)| asset)
    }

    /// Of all files together.
    pub(super) fn version(&self) -> &str {
        &self.version
    }
}

/// The first digits of a digest: enough to tell versions apart.
fn short(digest: Context) -> String {
    digest.finish().as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn packed(plain: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let written = encoder.write_all(plain);
    // A vector takes all that is written.
    written.and_then(|()| encoder.finish()).map(Bytes::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read;

    use super::*;

    fn names_below(dir: &std::path::Path, above: &str) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{above}{}", entry.file_name().into_string().unwrap());
            match entry.file_type().unwrap().is_dir() {
                true => names.extend(names_below(&entry.path(), &format!("{name}/"))),
                false => _ = names.insert(name),
            }
        }
        names
    }

    #[test]
    fn all_files_of_the_console_are_in_the_program() {
        let dir = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../console/src"));
        let here: BTreeSet<String> = FILES.iter().map(|(name, ..)| (*name).to_owned()).collect();
        // A license says under which terms the others may be passed on; nobody asks for it.
        let there: BTreeSet<String> = names_below(dir, "").into_iter().filter(|name| !name.ends_with(".txt")).collect();
        assert_eq!(here, there);
    }

    #[test]
    fn the_page_loads_all_scripts_at_once_and_names_no_other_host() {
        let assets = Assets::new();
        let page = std::str::from_utf8(&assets.get("index.html").unwrap().plain).unwrap();
        assert!(page.contains(assets.version()) && !page.contains(VERSION));
        for (name, kind, contents) in FILES {
            if *kind == SCRIPT {
                assert!(page.contains(&format!("\"/console/{name}\"")), "{name} is loaded late");
            }
            // Names of kinds of markup, and of an issue in a comment, which nobody asks for.
            let foreign = |url: &str| !url.starts_with("//www.w3.org/");
            let urls = ["http:", "https:"].iter().flat_map(|scheme| contents.split(scheme).skip(1));
            let found: Vec<&str> = urls.filter(|rest| rest.starts_with("//") && foreign(rest)).collect();
            assert!(found.is_empty(), "{name} names another host");
        }
    }

    #[test]
    fn packed_files_are_the_same() {
        let assets = Assets::new();
        let mut size = 0;
        for (name, asset) in &assets.files {
            let mut plain = Vec::new();
            flate2::read::GzDecoder::new(&*asset.packed).read_to_end(&mut plain).unwrap();
            assert_eq!(plain, asset.plain, "{name}");
            size += asset.packed.len();
        }
        assert!(size < 300 << 10, "{size} bytes");
    }
}
