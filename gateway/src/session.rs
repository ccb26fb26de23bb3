//! One client, from its first byte to its last.

use std::time::Duration;

use bytes::BytesMut;
use pq_proto::backend::{ErrorFields, put};
use pq_proto::sqlstate::SqlState;
use pq_proto::stream::BoxStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use traces::{Kind, Trace};

use crate::fleet::{Fleet, Place};
use crate::hello::{Hello, Start, hear};
use crate::refusal;
use crate::relay::{self, Begun};
use crate::shared::Shared;
use crate::wanted::Wanted;

/// How long a client may take to receive why it is refused.
const FAREWELL: Duration = Duration::from_secs(2);

/// Serves a client that has just connected.
pub(crate) async fn serve<F: Fleet>(gateway: &Shared<F>, client: TcpStream) {
    let open = gateway.connections();
    // Beyond that not even a refusal is sent: those who wait for one take room as well.
    if open > 2 * gateway.settings.connections_max {
        return;
    }
    // A client whose host is gone would keep its compute awake forever.
    let ready = client.set_nodelay(true).and_then(|()| Ok(rustix::net::sockopt::set_socket_keepalive(&client, true)?));
    if let Err(error) = ready {
        tracing::debug!("a client is gone: {error}");
        return;
    }
    let heard = env::clock::timeout(gateway.settings.login_limit, hear(client, gateway.settings.tls.as_ref())).await;
    let start = match heard {
        Ok(Ok(Hello::Start(start))) => start,
        Ok(Ok(Hello::Cancel(key))) => return gateway.keys.pass_on(&key).await,
        Ok(Err(error)) => return tracing::debug!("no client: {error}"),
        Err(_) => return tracing::debug!("a client said nothing"),
    };
    let Start { mut stream, mut startup, is_encrypted, server_name } = start;
    // From what the client wants until it has a session; what it does then is its own.
    let trace = traces::begin(None);
    let visiting = async {
        allowed(gateway, is_encrypted)?;
        let wanted = Wanted::take(&mut startup, server_name.as_deref(), &gateway.settings);
        let place = place(gateway, wanted.ok_or_else(refusal::no_branch)?).await?;
        gateway.places.visit(place, trace.as_ref()).await
    };
    let (visit, mut server) = match visiting.await {
        Ok(found) => found,
        Err(error) => {
            end(trace, None, Some(error.to_string()));
            return refuse(stream, error).await;
        }
    };
    let know = |key| gateway.keys.know(key, visit.address().clone());
    let begun = relay::begin(&mut stream, &mut server, startup, know).await;
    end(trace, Some(visit.place()), begun.as_ref().err().map(ToString::to_string));
    let passed = match begun {
        Ok(Begun::Ready(_known)) => relay::pass(&mut stream, &mut server).await,
        Ok(Begun::Gone) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = passed {
        tracing::debug!("a session of {} broke off: {error}", visit.place());
    }
}

/// A client has a session, or none.
fn end(trace: Option<Trace>, place: Option<&Place>, error: Option<String>) {
    let Some(trace) = trace else { return };
    let about = place.map(|place| ("branch", place.to_string().into()));
    trace.end("gateway: session", Kind::Server, about.into_iter().collect(), error);
}

fn allowed<F: Fleet>(gateway: &Shared<F>, is_encrypted: bool) -> Result<(), ErrorFields> {
    let settings = &gateway.settings;
    if settings.require_tls && !is_encrypted {
        return Err(refusal::fatal(SqlState::INVALID_AUTHORIZATION, "must connect with TLS"));
    }
    if gateway.connections() > settings.connections_max {
        return Err(refusal::too_many("to this gateway"));
    }
    Ok(())
}

/// The place that is meant.
async fn place<F: Fleet>(gateway: &Shared<F>, wanted: Wanted) -> Result<Place, ErrorFields> {
    let Wanted { branch, moment } = wanted;
    let lsn = match moment {
        Some(moment) => Some(gateway.places.lsn(branch.clone(), moment).await?),
        None => None,
    };
    Ok(Place { branch, lsn })
}

/// Tells a client why it is refused.
async fn refuse(mut stream: BoxStream, error: ErrorFields) {
    tracing::info!("a client is refused: {error}");
    let mut bytes = BytesMut::new();
    put::error(&mut bytes, &error);
    let told = async {
        stream.write_all_buf(&mut bytes).await?;
        stream.shutdown().await?;
        // What it has sent and nobody has read would make the kernel throw away what is on its way to it.
        while stream.read(&mut [0; 512]).await? > 0 {}
        std::io::Result::Ok(())
    };
    // If it does not read that, the reason still holds.
    let _ = env::clock::timeout(FAREWELL, told).await;
}

#[cfg(test)]
pub(crate) mod tests;
