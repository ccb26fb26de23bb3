//! The known query parameters. Others are refused, because a client that sends a parameter which would be ignored is
//! mistaken.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::Method;
use utils::excerpt::Excerpt;
use utoipa::openapi::path::{Operation, Parameter, ParameterIn};
use utoipa::openapi::{OpenApi, RefOr};

use super::error::ApiError;

/// Query parameters by path and method, as listed in the OpenAPI document.
#[derive(Debug, Default)]
pub(crate) struct KnownArgs(BTreeMap<(String, Method), BTreeSet<String>>);

impl KnownArgs {
    pub(crate) fn of(document: &OpenApi) -> Self {
        let mut known = Self::default();
        for (path, item) in &document.paths.paths {
            let operations = [
                (Method::GET, &item.get),
                (Method::PUT, &item.put),
                (Method::POST, &item.post),
                (Method::DELETE, &item.delete),
            ];
            for (method, operation) in operations {
                let Some(operation) = operation else { continue };
                let query = parameters(operation).filter(|parameter| parameter.parameter_in == ParameterIn::Query);
                known.0.insert((path.clone(), method), query.map(|parameter| parameter.name.clone()).collect());
            }
        }
        known
    }

    /// Refuses a parameter that the path does not have.
    pub(super) fn check(&self, path: &str, method: &Method, query: &str) -> Result<(), ApiError> {
        let Some(known) = self.0.get(&(path.to_owned(), method.clone())) else { return Ok(()) };
        let names = query.split('&').filter(|part| !part.is_empty()).map(|part| part.split('=').next().unwrap_or(part));
        match names.into_iter().find(|name| !known.contains(*name)) {
            None => Ok(()),
            Some(unknown) if known.is_empty() => {
                Err(ApiError::bad_request(format!("unknown parameter {:?}: this path takes none", Excerpt(unknown))))
            }
            Some(unknown) => {
                let known = known.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                Err(ApiError::bad_request(format!("unknown parameter {:?}: this path takes {known}", Excerpt(unknown))))
            }
        }
    }
}

/// The parameters of an operation. All of ours are inline, none is a reference.
pub(crate) fn parameters(operation: &Operation) -> impl Iterator<Item = &Parameter> {
    operation.parameters.iter().flatten().filter_map(|parameter| match parameter {
        RefOr::T(parameter) => Some(parameter),
        RefOr::Ref(_) => None,
    })
}
