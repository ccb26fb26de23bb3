//! Client authentication: none, password, md5, SCRAM-SHA-256.

use bytes::Bytes;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};

use super::error::ClientError;
use super::session::{Client, unexpected};
use crate::backend::{Authentication, BackendMessage};
use crate::frontend::put;

/// Work that a server may demand: Postgres's default is 4096, and each iteration costs about a microsecond.
const MAX_SCRAM_ITERATIONS: u32 = 1_000_000;

/// Answers the server's requests until authentication is complete.
pub(super) async fn authenticate(client: &mut Client, user: &str, password: Option<&[u8]>) -> Result<(), ClientError> {
    loop {
        match receive(client).await? {
            Authentication::Ok => return Ok(()),
            Authentication::Cleartext => put::password(client.writer.buffer(), required(password)?),
            Authentication::Md5(salt) => {
                let hash = md5_hash(user.as_bytes(), required(password)?, salt);
                put::password(client.writer.buffer(), hash.as_bytes());
            }
            Authentication::Sasl(mechanisms) => {
                if !mechanisms.iter().any(|name| name == SCRAM_SHA_256) {
                    return Err(ClientError::Authentication(format!("the server offers only {mechanisms:?}")));
                }
                scram(client, required(password)?).await?;
            }
            Authentication::SaslContinue(_) | Authentication::SaslFinal(_) => {
                return Err(ClientError::Authentication("the server is out of step".into()));
            }
            Authentication::Other(kind) => {
                return Err(ClientError::Authentication(format!("method {kind} is not supported")));
            }
        }
        client.writer.flush().await?;
    }
}

fn required(password: Option<&[u8]>) -> Result<&[u8], ClientError> {
    password.ok_or_else(|| ClientError::Authentication("the server asks for a password, and none is given".into()))
}

async fn receive(client: &mut Client) -> Result<Authentication, ClientError> {
    loop {
        match client.receive().await? {
            BackendMessage::Authentication(authentication) => return Ok(authentication),
            BackendMessage::NegotiateProtocolVersion => {}
            other => return Err(unexpected(&other, "authenticating")),
        }
    }
}

/// RFC 5802 and 7677. The server proves that it knows the password too: `finish` verifies this.
async fn scram(client: &mut Client, password: &[u8]) -> Result<(), ClientError> {
    let refused = |error: std::io::Error| ClientError::Authentication(format!("SCRAM: {error}"));
    let mut scram = ScramSha256::new(password, ChannelBinding::unsupported());
    put::sasl_initial(client.writer.buffer(), SCRAM_SHA_256, scram.message());
    client.writer.flush().await?;
    let Authentication::SaslContinue(challenge) = receive(client).await? else {
        return Err(ClientError::Authentication("SCRAM: no challenge".into()));
    };
    check_iterations(&challenge)?;
    scram.update(&challenge).map_err(refused)?;
    put::sasl_response(client.writer.buffer(), scram.message());
    client.writer.flush().await?;
    let Authentication::SaslFinal(proof) = receive(client).await? else {
        return Err(ClientError::Authentication("SCRAM: no proof from the server".into()));
    };
    scram.finish(&proof).map_err(refused)
}

/// The iterations come from whoever answered at that address: they must not keep this process busy for hours.
fn check_iterations(challenge: &Bytes) -> Result<(), ClientError> {
    let text = String::from_utf8_lossy(challenge);
    let rounds = text.split(',').find_map(|field| field.strip_prefix("i=")).and_then(|n| n.parse::<u32>().ok());
    match rounds {
        Some(1..=MAX_SCRAM_ITERATIONS) => Ok(()),
        _ => Err(ClientError::Authentication("SCRAM: unacceptable number of iterations".into())),
    }
}
