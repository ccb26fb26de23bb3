//! Every path that a module names outside test code: use trees, inline paths, and paths inside macro calls.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

use super::cfg_test::only_in_tests;

/// A path as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PathRef {
    /// Names in order; a glob ends with the module's name.
    pub(crate) segments: Vec<String>,
    /// Written as `::name::..`, so its first segment is a crate.
    pub(crate) leading_colon: bool,
    /// Line in the file, from 1.
    pub(crate) line: usize,
    /// Comes from a `use` item, where a single segment counts too.
    pub(crate) is_use: bool,
    /// The name under which it is only re-exported, by a `use` with a visibility.
    pub(crate) handed_on: Option<String>,
}

/// Paths named by these items, excluding the modules declared among them (which are collected separately).
pub(crate) fn collect(items: &[syn::Item]) -> Vec<PathRef> {
    let mut collector = Collector { found: Vec::new(), is_reexport: false };
    for item in items {
        if !matches!(item, syn::Item::Mod(_)) {
            collector.visit_item(item);
        }
    }
    collector.found
}

struct Collector {
    found: Vec<PathRef>,
    is_reexport: bool,
}

impl Collector {
    fn push(&mut self, segments: Vec<String>, leading_colon: bool, line: usize) {
        self.found.push(PathRef { segments, leading_colon, line, is_use: false, handed_on: None });
    }

    fn push_use(&mut self, segments: Vec<String>, leading_colon: bool, line: usize, name: Option<String>) {
        let handed_on = name.filter(|_| self.is_reexport);
        self.found.push(PathRef { segments, leading_colon, line, is_use: true, handed_on });
    }

    fn flatten(&mut self, prefix: &[String], leading_colon: bool, tree: &syn::UseTree) {
        let with = |ident: &syn::Ident| {
            let mut path = prefix.to_vec();
            if ident != "self" || path.is_empty() {
                path.push(ident.to_string());
            }
            path
        };
        let line = |ident: &syn::Ident| ident.span().start().line;
        match tree {
            syn::UseTree::Path(path) => self.flatten(&with(&path.ident), leading_colon, &path.tree),
            syn::UseTree::Name(name) => {
                let path = with(&name.ident);
                let last = path.last().cloned();
                self.push_use(path, leading_colon, line(&name.ident), last);
            }
            syn::UseTree::Rename(rename) => {
                let name = Some(rename.rename.to_string());
                self.push_use(with(&rename.ident), leading_colon, line(&rename.ident), name);
            }
            syn::UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                self.push_use(prefix.to_vec(), leading_colon, line, Some("*".to_owned()));
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.flatten(prefix, leading_colon, tree);
                }
            }
        }
    }

    /// Macro arguments are tokens, not syntax: finds `a :: b :: c` among them.
    fn scan_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => {
                    self.scan_tokens(group.stream());
                    at += 1;
                }
                TokenTree::Ident(first) => {
                    let (segments, next) = path_in_tokens(&tokens, at);
                    let is_macro_name = matches!(tokens.get(next), Some(TokenTree::Punct(p)) if p.as_char() == '!');
                    if segments.len() > 1 && !is_macro_name {
                        self.push(segments, false, first.span().start().line);
                    }
                    at = next;
                }
                TokenTree::Literal(literal) => {
                    if let Some(segments) = path_in_string(&literal.to_string()) {
                        self.push(segments, false, literal.span().start().line);
                    }
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }
}

/// The path that starts with the identifier at `at`, and the position after it.
fn path_in_tokens(tokens: &[TokenTree], at: usize) -> (Vec<String>, usize) {
    let mut segments = Vec::new();
    let mut next = at;
    while let Some(TokenTree::Ident(ident)) = tokens.get(next) {
        segments.push(ident.to_string());
        next += 1;
        if !(is_colon(tokens.get(next)) && is_colon(tokens.get(next + 1))) {
            break;
        }
        next += 2;
    }
    (segments, next)
}

/// The path in a string literal that consists of nothing else.
fn path_in_string(literal: &str) -> Option<Vec<String>> {
    let text = literal.strip_prefix('"')?.strip_suffix('"')?;
    let path = syn::parse_str::<syn::Path>(text).ok().filter(|path| path.segments.len() > 1)?;
    Some(path.segments.iter().map(|segment| segment.ident.to_string()).collect())
}

fn is_colon(token: Option<&TokenTree>) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':')
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if only_in_tests(item_attrs(item)) {
            return;
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        let attrs = match item {
            syn::ImplItem::Fn(item) => &item.attrs,
            syn::ImplItem::Const(item) => &item.attrs,
            syn::ImplItem::Type(item) => &item.attrs,
            _ => return visit::visit_impl_item(self, item),
        };
        if !only_in_tests(attrs) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !only_in_tests(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.is_reexport = !matches!(item.vis, syn::Visibility::Inherited);
        self.flatten(&[], item.leading_colon.is_some(), &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            let line = path.segments[0].ident.span().start().line;
            self.push(segments, path.leading_colon.is_some(), line);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.scan_tokens(mac.tokens.clone());
    }

    /// `pub(in crate::a)` names a module without using it.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    /// Attributes name functions and types for derive macros: as paths, or in strings (`#[serde(with = "a::b")]`).
    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        match &attribute.meta {
            syn::Meta::List(list) if !list.path.is_ident("doc") => self.scan_tokens(list.tokens.clone()),
            _ => {}
        }
    }
}

fn item_attrs(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::ExternCrate(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Union(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
