//! Determines which items exist only in test builds.

use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Token};

/// Whether the attributes keep an item out of every build without `cfg(test)`: `#[test]`, `#[cfg(test)]`,
/// `#[cfg(all(test, ..))]`, but not `#[cfg(any(test, feature = ".."))]` nor `#[cfg(not(test))]`.
pub(crate) fn only_in_tests(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| {
        if attr.path().is_ident("cfg") {
            attr.parse_args::<Meta>().is_ok_and(|predicate| !possible_without_test(&predicate))
        } else {
            attr.path().segments.last().is_some_and(|last| last.ident == "test")
        }
    })
}

/// Whether the predicate can hold in some build that is not for tests. Other flags may have either value.
fn possible_without_test(predicate: &Meta) -> bool {
    match predicate {
        Meta::Path(path) => !path.is_ident("test"),
        Meta::NameValue(_) => true,
        Meta::List(list) => {
            let Ok(parts) = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated) else {
                return true;
            };
            if list.path.is_ident("all") {
                parts.iter().all(possible_without_test)
            } else if list.path.is_ident("any") {
                parts.iter().any(possible_without_test)
            } else {
                // `not(..)`: whatever it negates, `not(test)` holds outside tests and other flags may be off.
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::only_in_tests;

    fn check(attr: &str) -> bool {
        let item: syn::ItemFn = syn::parse_str(&format!("{attr} fn f() {{}}")).expect("sample parses");
        only_in_tests(&item.attrs)
    }

    #[test]
    fn only_what_needs_test_is_left_out() {
        for attr in ["#[cfg(test)]", "#[test]", "#[tokio::test]", "#[cfg(all(test, unix))]", "#[cfg(any(test))]"] {
            assert!(check(attr), "{attr}");
        }
        for attr in ["", "#[cfg(unix)]", "#[cfg(not(test))]", "#[cfg(any(test, feature = \"x\"))]", "#[inline]"] {
            assert!(!check(attr), "{attr}");
        }
    }
}
