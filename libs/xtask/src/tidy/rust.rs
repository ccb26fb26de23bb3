//! Measures of one Rust file.

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::source::cfg_test::only_in_tests;

/// Measures of one file.
#[derive(Default)]
pub(crate) struct Found {
    /// Lines of the file without test-only items.
    pub(crate) lines: usize,
    /// Functions outside tests.
    pub(crate) functions: Vec<Function>,
    /// Lines with a call of `unwrap` outside tests, once for each call.
    pub(crate) unwraps: Vec<usize>,
    /// Calls of `expect` outside tests.
    pub(crate) expects: Vec<Expect>,
    /// Lines with an `unsafe` block or impl, tests included, without a comment that says why it is sound.
    pub(crate) bare_unsafe: Vec<usize>,
    /// Names of the modules in separate files that it declares only for tests.
    pub(crate) test_modules: Vec<String>,
}

/// One call of `expect`.
pub(crate) struct Expect {
    pub(crate) line: usize,
    /// Number of words in its message; none if that is not plain text.
    pub(crate) words: usize,
}

/// One function with a body.
pub(crate) struct Function {
    /// Name, including the enclosing types and modules.
    pub(crate) name: String,
    /// Line of its signature.
    pub(crate) at: usize,
    /// Number of lines from its signature to its closing brace.
    pub(crate) lines: usize,
}

/// Parses and measures one file.
pub(crate) fn measure(text: &str) -> syn::Result<Found> {
    let file = syn::parse_file(text)?;
    let lines: Vec<&str> = text.lines().collect();
    let mut visitor = Visitor { lines: &lines, scope: Vec::new(), in_test: 0, test_lines: 0, found: Found::default() };
    visitor.visit_file(&file);
    let mut found = visitor.found;
    found.lines = lines.len() - visitor.test_lines.min(lines.len());
    Ok(found)
}

struct Visitor<'a> {
    lines: &'a [&'a str],
    /// Names of the types, traits and modules around the current item.
    scope: Vec<String>,
    /// Number of test-only items around it.
    in_test: usize,
    test_lines: usize,
    found: Found,
}

impl Visitor<'_> {
    fn function(&mut self, name: &syn::Ident, span: Span) {
        if self.in_test == 0 {
            let name = self.scope.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>().join("::");
            self.found.functions.push(Function { name, at: span.start().line, lines: line_count(span) });
        }
    }

    fn unsafe_at(&mut self, span: Span) {
        let line = span.start().line;
        if !has_reason(self.lines, line) {
            self.found.bare_unsafe.push(line);
        }
    }

    /// Runs `inside` with the scope extended by `name`, and as a test if the attributes say so.
    fn within(&mut self, attrs: &[syn::Attribute], span: Span, name: Option<String>, inside: impl FnOnce(&mut Self)) {
        let is_test = only_in_tests(attrs);
        if is_test && self.in_test == 0 {
            self.test_lines += line_count(span);
        }
        self.in_test += usize::from(is_test);
        let named = name.is_some();
        self.scope.extend(name);
        inside(self);
        if named {
            self.scope.pop();
        }
        self.in_test -= usize::from(is_test);
    }

    fn expect_at(&mut self, name: &syn::Ident, message: Option<syn::LitStr>) {
        if self.in_test == 0 {
            let words = message.map_or(0, |message| message.value().split_whitespace().count());
            self.found.expects.push(Expect { line: name.span().start().line, words });
        }
    }

    /// Macro arguments are tokens: looks for `.unwrap()`, `.expect(..)` and `unsafe {` among them.
    fn scan_tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            let after_dot = at > 0 && matches!(&tokens[at - 1], TokenTree::Punct(p) if p.as_char() == '.');
            match token {
                TokenTree::Group(group) => self.scan_tokens(group.stream()),
                TokenTree::Ident(ident) if ident == "unwrap" && self.in_test == 0 => {
                    let call = matches!(tokens.get(at + 1), Some(TokenTree::Group(g)) if g.stream().is_empty());
                    if after_dot && call {
                        self.found.unwraps.push(ident.span().start().line);
                    }
                }
                TokenTree::Ident(ident) if ident == "expect" && after_dot => {
                    if let Some(TokenTree::Group(arguments)) = tokens.get(at + 1) {
                        self.expect_at(ident, syn::parse2(arguments.stream()).ok());
                    }
                }
                TokenTree::Ident(ident) if ident == "unsafe" => {
                    if matches!(tokens.get(at + 1), Some(TokenTree::Group(_))) {
                        self.unsafe_at(ident.span());
                    }
                }
                _ => {}
            }
        }
    }
}

fn line_count(span: Span) -> usize {
    span.end().line + 1 - span.start().line
}

/// Whether the nearest comment above the statement at `line` (from 1), or the line itself, gives the reason. Up to
/// three lines of code may stand between them, for a statement that spans lines.
fn has_reason(lines: &[&str], line: usize) -> bool {
    let mark = "SAFETY:";
    let upwards = lines[..line.min(lines.len())].iter().rev();
    let mut code_lines = 0;
    let mut in_comment = false;
    for (up, text) in upwards.enumerate() {
        let text = text.trim_start();
        let is_comment = text.starts_with("//");
        if text.contains(mark) && (is_comment || up == 0) {
            return true;
        }
        if in_comment && !is_comment {
            return false;
        }
        in_comment = is_comment;
        if !is_comment && !text.starts_with("#[") && up > 0 {
            code_lines += 1;
        }
        if code_lines > 3 || (up > 0 && (text.is_empty() || text == "}")) {
            return false;
        }
    }
    false
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.content.is_none() && only_in_tests(&item.attrs) {
            self.found.test_modules.push(item.ident.to_string());
        }
        if item.content.is_some() || only_in_tests(&item.attrs) {
            self.within(&item.attrs, item.span(), Some(item.ident.to_string()), |this| {
                visit::visit_item_mod(this, item)
            });
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.within(&item.attrs, item.span(), None, |this| {
            this.function(&item.sig.ident, item.sig.span().join(item.block.span()).unwrap_or_else(|| item.span()));
            visit::visit_item_fn(this, item);
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.within(&item.attrs, item.span(), None, |this| {
            this.function(&item.sig.ident, item.sig.span().join(item.block.span()).unwrap_or_else(|| item.span()));
            visit::visit_impl_item_fn(this, item);
        });
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.within(&item.attrs, item.span(), None, |this| {
            if item.default.is_some() {
                this.function(&item.sig.ident, item.span());
            }
            visit::visit_trait_item_fn(this, item);
        });
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if item.unsafety.is_some() {
            self.unsafe_at(item.span());
        }
        self.within(&item.attrs, item.span(), type_name(&item.self_ty), |this| visit::visit_item_impl(this, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.within(&item.attrs, item.span(), Some(item.ident.to_string()), |this| visit::visit_item_trait(this, item));
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.within(&item.attrs, item.span(), None, |_| {});
    }

    fn visit_expr_unsafe(&mut self, item: &'ast syn::ExprUnsafe) {
        self.unsafe_at(item.unsafe_token.span);
        visit::visit_expr_unsafe(self, item);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if call.method == "unwrap" && call.args.is_empty() && self.in_test == 0 {
            self.found.unwraps.push(call.method.span().start().line);
        }
        if let (true, Some(message)) = (call.method == "expect", call.args.first()) {
            let literal = match message {
                syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.clone()),
                _ => None,
            };
            self.expect_at(&call.method, literal);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.scan_tokens(mac.tokens.clone());
    }
}

fn type_name(ty: &syn::Type) -> Option<String> {
    match ty {
        syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
        _ => None,
    }
}
