//! The OpenAPI document: generated from the handlers, then completed with what all operations share.

use std::collections::BTreeMap;

use axum::http::Method;
use utoipa::OpenApi as _;
use utoipa::openapi::path::Operation;
use utoipa::openapi::response::Response;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{ContentBuilder, OpenApi, Ref, RefOr, ResponseBuilder};

use super::access::Needs;
use super::error::ErrorBody;
use super::ids::{HoldNameText, KeyText, LsnText, ServerText, TenantShardText, TenantText, TimelineText};

/// Name of the security scheme.
const BEARER: &str = "bearer";
const SCOPES: &str = "A JWT signed by EdDSA. Its claim scope says what it allows: pageserverapi everything; \
    tenant what \
                      concerns the tenant that the claim tenant_id names; tenant_admin that, and its removal";

#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "pageserver", description = "Management of tenants and timelines: histories of Postgres clusters."),
    components(schemas(
        ErrorBody,
        TenantShardText,
        TenantText,
        TimelineText,
        LsnText,
        KeyText,
        HoldNameText,
        ServerText
    ))
)]
struct Description;

/// The document's general part, without operations.
pub(super) fn description() -> OpenApi {
    Description::openapi()
}

/// Adds to each operation its required scopes, if tokens are in use, and the errors that operations share.
pub(super) fn complete(document: &mut OpenApi, tokens: bool) {
    if tokens {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT").description(Some(SCOPES));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme(BEARER, SecurityScheme::Http(scheme.build()));
    }
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in [
            (Method::GET, &mut item.get),
            (Method::PUT, &mut item.put),
            (Method::POST, &mut item.post),
            (Method::DELETE, &mut item.delete),
        ] {
            if let Some(operation) = operation {
                let needs = Needs::of(&method, path);
                if tokens && needs != Needs::Nothing {
                    ask_for_token(operation, needs);
                }
                if !tokens {
                    add(
                        operation,
                        "403",
                        "It is for a host that is not this server, or comes from a page of another site",
                    );
                }
                add_errors(operation, needs, path.contains('{'));
            }
        }
    }
}

fn ask_for_token(operation: &mut Operation, needs: Needs) {
    let scopes = needs.scopes().iter();
    operation.security = Some(scopes.map(|scope| SecurityRequirement::new(BEARER, [*scope])).collect());
    add(operation, "401", "No token, or one that is not good, or not any more");
    add(operation, "403", "The token does not allow this");
}

fn add_errors(operation: &mut Operation, needs: Needs, names_something: bool) {
    add(operation, "400", "The request makes no sense");
    if needs == Needs::Nothing {
        return;
    }
    if names_something {
        add(operation, "404", "There is no such thing");
        add(operation, "421", "This server is a standby of the tenant: ask its owner");
    }
    if operation.request_body.is_some() {
        add(operation, "413", "The body is too large");
    }
    add(operation, "408", "It took too long");
    add(operation, "500", "The server or what it has stored is at fault");
    add(operation, "503", "Not now: try again");
}

/// Adds an error, unless the handler describes it in more detail.
fn add(operation: &mut Operation, status: &str, what: &str) {
    let responses: &mut BTreeMap<String, RefOr<Response>> = &mut operation.responses.responses;
    responses.entry(status.to_owned()).or_insert_with(|| {
        let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
        ResponseBuilder::new().description(what).content("application/json", body).build().into()
    });
}
