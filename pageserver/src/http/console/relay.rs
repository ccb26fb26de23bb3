//! Passes on what the console asks of computes to `pagectl compute serve`, which starts and stops them on their host.
//!
//! That asks for a token of its own, which the page sends besides the one for this server; none is kept here.

use std::net::SocketAddr;

use axum::body::{Body, to_bytes};
use axum::extract::{Path, Request};
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::http::error::ApiError;

/// The header with the token for `pagectl compute serve`.
const TOKEN: HeaderName = HeaderName::from_static("x-compute-token");
/// Larger bodies are refused, as everywhere in this interface.
const BODY_MAX: usize = 1 << 20;
/// Longer answers are refused: a list of thousands of computes, or a log of many lines.
const ANSWER_MAX: usize = 8 << 20;

/// Passes on a request.
pub(super) async fn relay(
    to: Option<SocketAddr>,
    path: Option<Path<String>>,
    request: Request,
) -> Result<Response, ApiError> {
    let Some(to) = to else {
        return Err(ApiError::not_found(
            "no computes are known here: set console_computes to where pagectl compute \
                                        serve listens",
        ));
    };
    let gone = |error: &dyn std::fmt::Display| {
        let reason = format!("pagectl compute serve does not answer at {to} (console_computes): {error}");
        ApiError::new(StatusCode::BAD_GATEWAY, reason)
    };
    let request = outgoing(to, path.as_ref().map_or("", |Path(path)| path), request).await?;
    let stream = TcpStream::connect(to).await.map_err(|error| gone(&error))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| gone(&error))?;
    env::spawn::task("connection to computes", async move {
        if let Err(error) = connection.await {
            tracing::debug!("connection to pagectl compute serve: {error}");
        }
    });
    let answer = sender.send_request(request).await.map_err(|error| gone(&error))?;
    let status = match answer.status() {
        // That would say that the token for this server is not good.
        StatusCode::UNAUTHORIZED => StatusCode::FORBIDDEN,
        other => other,
    };
    let body = to_bytes(Body::new(answer.into_body()), ANSWER_MAX).await.map_err(|error| gone(&error))?;
    Ok((status, [(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// The request as it is sent on: with nothing of the caller's headers but its token for computes.
async fn outgoing(to: SocketAddr, path: &str, request: Request) -> Result<Request, ApiError> {
    let invalid = |_| ApiError::bad_request("this path or token cannot be passed on");
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, BODY_MAX).await;
    let body = body.map_err(|error| ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string()))?;
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    // As it was encoded: a name with a slash is refused there.
    let below = match path {
        "" => "",
        _ => parts.uri.path().strip_prefix("/console/computes").unwrap_or_default(),
    };
    let uri: Uri = format!("/v1/compute{below}{query}")
        .parse()
        .map_err(|error: axum::http::uri::InvalidUri| ApiError::bad_request(error.to_string()))?;
    let mut outgoing = Request::new(Body::from(body));
    *outgoing.method_mut() = parts.method;
    *outgoing.uri_mut() = uri;
    let headers = outgoing.headers_mut();
    headers.insert(header::HOST, HeaderValue::from_str(&to.to_string()).map_err(invalid)?);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(token) = parts.headers.get(TOKEN) {
        let bearer = [b"Bearer ", token.as_bytes()].concat();
        headers.insert(header::AUTHORIZATION, HeaderValue::from_bytes(&bearer).map_err(invalid)?);
    }
    Ok(outgoing)
}
