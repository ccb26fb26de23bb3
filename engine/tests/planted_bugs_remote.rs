//! Known bugs in what is done to the bucket, planted: a lost server must show each of them.

#[path = "remote_support/mod.rs"]
mod remote_support;
#[path = "stack/mod.rs"]
mod stack;
#[path = "remote_faults/world.rs"]
#[allow(dead_code, reason = "shared with remote_faults")]
mod world;

use std::time::Duration;

use fault::{Bug, plant};
use remote_support::{Fault, Op, fast};
use world::World;

/// Replaces layers while no index part can be written, loses the server, and has another one read everything.
async fn lose_server_before_index_part() {
    let mut world = World::new(fast()).await;
    for _ in 0..2 {
        world.replace_layers().await;
        world.publish().await;
    }
    let is_index_part = |path: &object_store::path::Path| path.as_ref().contains("/index_part");
    world
        .store
        .faults
        .set_plan(move |op, _, path| (op == Op::Put && is_index_part(path)).then_some(Fault::ErrorBefore));
    world.replace_layers().await;
    // What is to be published, up to the index part, has time to arrive.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let failed = world.store.faults.failed();
    assert!(failed > 0, "no index part was to be written");
    world.restart(true).await;
    world.store.faults.clear_plan();
    world.end().await;
}

/// Whether the scenario finds something.
async fn is_caught() -> bool {
    // Reads that fail are repeated a few times, then they end the task.
    tokio::spawn(lose_server_before_index_part()).await.is_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_go_too_early_are_missed() {
    const { assert!(fault::CAN_BE_PLANTED, "this build cannot have bugs: it needs debug assertions") };
    plant(&[]);
    lose_server_before_index_part().await;
    plant(&[Bug::DeleteBeforeConfirm]);
    let caught = is_caught().await;
    assert!(Bug::DeleteBeforeConfirm.has_happened(), "nothing asks for it any more");
    plant(&[]);
    assert!(caught, "not caught");
}
