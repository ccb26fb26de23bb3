//! The OpenAPI document as one self-contained HTML page.

use std::fmt::Write;

use utoipa::openapi::OpenApi;
use utoipa::openapi::path::Operation;

use super::known_args::parameters;

const HEAD: &str = "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>pageserver</title>\n<style>\
    body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}\
    td{padding:.3rem .8rem .3rem 0;vertical-align:top}code{font-size:13px;white-space:nowrap}\
    tr+tr td{border-top:1px solid #ddd}small{color:#555}</style>\n<h1>pageserver</h1>\n";

/// Renders the page.
pub(super) fn html(document: &OpenApi) -> String {
    let mut page = HEAD.to_owned();
    let description = document.info.description.as_deref().unwrap_or_default();
    let _ = writeln!(
        page,
        "<p>{} For machines: <a href=\"openapi.json\">openapi.json</a>.</p>\n<table>",
        escape(description)
    );
    for (path, item) in &document.paths.paths {
        let operations = [("GET", &item.get), ("PUT", &item.put), ("POST", &item.post), ("DELETE", &item.delete)];
        for (method, operation) in operations {
            if let Some(operation) = operation {
                row(&mut page, method, path, operation);
            }
        }
    }
    page.push_str("</table>\n</html>\n");
    page
}

fn row(page: &mut String, method: &str, path: &str, operation: &Operation) {
    let summary = operation.summary.as_deref().unwrap_or_default();
    let details: Vec<String> = parameters(operation)
        .filter(|parameter| !path.contains(&format!("{{{}}}", parameter.name)))
        .map(|parameter| {
            let text = parameter.description.as_deref().unwrap_or_default();
            format!("<br><small><code>?{}</code> {}</small>", escape(&parameter.name), escape(text))
        })
        .collect();
    let (path, summary) = (escape(path), escape(summary));
    let _ =
        writeln!(page, "<tr><td><code>{method}</code><td><code>{path}</code><td>{summary}{}</tr>", details.concat());
}

/// Escapes text for HTML and SVG.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
