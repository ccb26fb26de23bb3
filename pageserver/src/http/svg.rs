//! Draws the layers of a timeline: keys horizontally, LSNs vertically, one box per layer.
//!
//! Neither axis is to scale: each is divided at the layers' boundaries into pieces of equal length. So overlaps are
//! visible whether a layer has ten keys or all, even with thousands of layers. Each box shows details on hover.

mod axis;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use pageserver_api::key::Key;
use utils::lsn::Lsn;

use self::axis::Axis;
use super::page_for_people::escape;
use engine::tenant::timeline::{LayerInfo, LayerKind};

/// Width of the key axis in pixels.
const WIDTH: f64 = 1400.0;
/// Margins: on the left for LSNs, above for title and legend, below for keys.
const LEFT: f64 = 130.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 60.0;
/// Smaller boxes have no label.
const LABEL_WIDTH: f64 = 110.0;
const LABEL_HEIGHT: f64 = 11.0;
/// Minimum distance of labels on an axis.
const LSN_STEP: f64 = 14.0;
const KEY_STEP: f64 = 170.0;

/// Name and color of a layer.
fn looks(layer: &LayerInfo) -> (&'static str, &'static str) {
    match layer.kind {
        LayerKind::Open => ("in memory, open", "#f6c344"),
        LayerKind::Frozen => ("in memory, frozen", "#e8933a"),
        LayerKind::Delta if layer.l0 => ("L0 delta", "#7fb3e6"),
        LayerKind::Delta => ("sorted delta", "#3f77b5"),
        LayerKind::Image => ("image", "#6cc070"),
    }
}

/// Draws `layers`; `durable` is the LSN up to which everything is on disk.
pub(super) fn draw(title: &str, layers: &[LayerInfo], durable: Lsn) -> String {
    let keys = Axis::new(layers.iter().flat_map(|layer| [layer.keys.start, layer.keys.end]), WIDTH);
    let rows = Axis::new(layers.iter().flat_map(|layer| [layer.lsns.start, layer.lsns.end]), 1.0);
    let row_height = if rows.pieces() > 400 { 5.0 } else { 14.0 };
    let rows = rows.stretched((rows.pieces() as f64 * row_height).max(120.0));
    let (width, height) = (LEFT + WIDTH + 20.0, TOP + rows.length() + BOTTOM);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"system-ui,sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"16\">{}</text>\n",
        escape(title)
    );
    legend(&mut svg, layers);
    lsn_labels(&mut svg, &rows);
    key_labels(&mut svg, &keys, TOP + rows.length());
    for layer in layers {
        draw_box(&mut svg, layer, &keys, &rows);
    }
    if let Some(y) = rows.place_within(durable).map(|at| TOP + rows.length() - at) {
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#c00\" stroke-dasharray=\"6 4\">\
             <title>on disk up to LSN {durable}</title></line>",
            LEFT + WIDTH
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn legend(svg: &mut String, layers: &[LayerInfo]) {
    let mut kinds: Vec<(&str, &str, u64, u64)> = Vec::new();
    for layer in layers {
        let (name, colour) = looks(layer);
        match kinds.iter_mut().find(|(known, ..)| *known == name) {
            Some((_, _, count, bytes)) => (*count, *bytes) = (*count + 1, *bytes + layer.size),
            None => kinds.push((name, colour, 1, layer.size)),
        }
    }
    for (at, (name, colour, count, bytes)) in kinds.iter().enumerate() {
        let x = LEFT + at as f64 * 230.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"38\" width=\"14\" height=\"14\" fill=\"{colour}\" stroke=\"#333\"/>\
             <text x=\"{}\" y=\"49\">{name}: {count}, {}</text>",
            x + 20.0,
            size(*bytes)
        );
    }
    if layers.is_empty() {
        let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"49\">no layers: all reads go to the ancestor</text>");
    }
}

fn draw_box(svg: &mut String, layer: &LayerInfo, keys: &Axis<Key>, rows: &Axis<Lsn>) {
    let (name, colour) = looks(layer);
    let (left, right) = (keys.place(layer.keys.start), keys.place(layer.keys.end));
    let (low, high) = (rows.place(layer.lsns.start), rows.place(layer.lsns.end));
    let (x, y) = (LEFT + left, TOP + rows.length() - high);
    let (width, height) = ((right - left).max(0.5), (high - low).max(0.5));
    let stroke = if width < 3.0 || height < 3.0 { 0.2 } else { 0.6 };
    let lsns = match layer.kind {
        LayerKind::Image => format!("as of LSN {}", layer.lsns.start),
        _ => format!("LSN {} to {}", layer.lsns.start, layer.lsns.end),
    };
    let file = layer.file_name.as_deref().unwrap_or("not on disk yet");
    let filter = if layer.filter { ", with a key filter" } else { "" };
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{colour}\" \
         stroke=\"#333\" stroke-width=\"{stroke}\"><title>{name}, {}{filter}\n{lsns}\nkeys {} ({})\n  to {} ({})\n{}\
         </title></rect>",
        size(layer.size),
        layer.keys.start,
        describe(&layer.keys.start),
        layer.keys.end,
        describe(&layer.keys.end),
        escape(file)
    );
    if width >= LABEL_WIDTH && height >= LABEL_HEIGHT {
        let (x, y) = (x + 4.0, y + height / 2.0 + 4.0);
        let _ =
            writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" pointer-events=\"none\">{name} {}</text>", size(layer.size));
    }
}

fn lsn_labels(svg: &mut String, rows: &Axis<Lsn>) {
    for (lsn, at) in rows.ticks(LSN_STEP) {
        let y = TOP + rows.length() - at;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{lsn}</text>\
             <line x1=\"{}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>",
            LEFT - 8.0,
            y + 4.0,
            LEFT - 4.0,
            LEFT + WIDTH
        );
    }
}

fn key_labels(svg: &mut String, keys: &Axis<Key>, y: f64) {
    for (key, at) in keys.ticks(KEY_STEP) {
        let x = LEFT + at;
        let anchor = if at + KEY_STEP > WIDTH { "end" } else { "start" };
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y:.1}\" y2=\"{:.1}\" stroke=\"#333\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\"><title>{key}</title>{}</text>",
            y + 6.0,
            y + 20.0,
            escape(&describe(&key))
        );
    }
}

/// Describes a key, roughly.
fn describe(key: &Key) -> String {
    match (key.to_rel_block(), key.field1) {
        _ if *key == Key::MAX => "the last key".to_owned(),
        (Some((rel, block)), _) => format!("{rel} block {block}"),
        (None, 0) if *key == Key::MIN => "the first key".to_owned(),
        (None, 0) => "relation directory".to_owned(),
        (None, 1) => "SLRU".to_owned(),
        (None, 2) => "two-phase file".to_owned(),
        (None, 3) => "single file".to_owned(),
        (None, _) => "metadata".to_owned(),
    }
}

/// A number of bytes in human-readable form.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(unit > 0 && value < 100.0);
    format!("{value:.decimals$} {}", UNITS.get(unit).unwrap_or(&""))
}
