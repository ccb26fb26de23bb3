//! WAL from this server's journal for a timeline that is read at a standby.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::walreceiver::failure::Failure;
use crate::walreceiver::intake::Beginning;
use crate::walreceiver::standby::Standing;
use engine::tenant::timeline::Timeline;

/// How often it is looked whether there is something to take in.
const LOOK: Duration = Duration::from_secs(1);

/// Takes in what the journal has, and what comes, until `cancel`.
pub(super) async fn feed(standing: Arc<Standing>, timeline: Timeline, cancel: CancellationToken) {
    let mut last_error = String::new();
    let feeding = async {
        loop {
            if let Err(failure) = feed_once(&standing, &timeline).await {
                let error = failure.to_string();
                if error != last_error {
                    let (tenant, timeline) = (timeline.tenant_shard_id(), timeline.timeline_id());
                    tracing::info!(%tenant, %timeline, "what is read of it at this standby gets no WAL: {error}");
                    last_error = error;
                }
            }
            env::clock::sleep(LOOK).await;
        }
    };
    tokio::select! {
        () = feeding => {}
        () = cancel.cancelled() => {}
    }
}

/// Takes in WAL from where the timeline ends on, as long as the journal has it without a gap.
async fn feed_once(standing: &Standing, timeline: &Timeline) -> Result<(), Failure> {
    let lane = standing.lane((timeline.tenant_shard_id(), timeline.timeline_id()));
    let mut synced = lane.watch();
    if *synced.borrow_and_update() <= timeline.last_record_lsn() || !standing.is_of_its_writer(timeline).await? {
        // It may come, or never.
        let _ = env::clock::timeout(LOOK, synced.changed()).await;
        return Ok(());
    }
    let beginning = Beginning::load(timeline).await?;
    let mut next = beginning.feed_lsn();
    if lane.replay(next).end() <= Some(beginning.last_record()) {
        return Ok(());
    }
    let intake = beginning.start();
    loop {
        let mut replay = lane.replay(next);
        while let Some((start, bytes)) = replay.next().await? {
            next = start + bytes.len() as u64;
            if !intake.feed(start, bytes).await {
                break;
            }
        }
        tokio::select! {
            changed = synced.changed() => if changed.is_err() { break },
            () = intake.ended() => break,
        }
    }
    let (_, taken_in) = intake.finish().await;
    Ok(taken_in?)
}
