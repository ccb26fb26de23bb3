//! Admission at each level.

use super::*;

const MIB: u64 = 1 << 20;

fn measured(room: u64) -> Measured {
    Measured {
        room: room as i64,
        slow_below: 100 << 20,
        evict_below: 200 << 20,
        advice: "raise disk_budget".to_owned(),
        ..Measured::default()
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_keeper_there_is_no_limit() {
    let budget = DiskBudget::default();
    for _ in 0..1000 {
        budget.admit(u64::MAX).await.unwrap();
    }
    assert_eq!((budget.level(), budget.measured(), budget.make_room().await), (Level::Open, None, false));
}

#[tokio::test(start_paused = true)]
async fn what_is_admitted_lowers_the_room() {
    let budget = DiskBudget::default();
    budget.set(measured(300 * MIB), budget.begin());
    assert_eq!(budget.level(), Level::Open);
    assert!(budget.has_room_for(99 * MIB) && !budget.has_room_for(100 * MIB));
    assert!(!budget.has_ample_room_for(0));
    budget.admit(150 * MIB).await.unwrap();
    budget.admit(51 * MIB).await.unwrap();
    assert_eq!((budget.room(), budget.level()), (99 << 20, Level::Slow));
    budget.pressed().await;
    budget.admit(99 * MIB).await.unwrap();
    assert_eq!(budget.level(), Level::Refuse);
}

#[tokio::test(start_paused = true)]
async fn room_is_ample_with_three_times_as_much_as_causes_evictions() {
    let budget = DiskBudget::default();
    assert!(budget.has_ample_room_for(1 << 40), "without a keeper there is no limit");
    budget.set(measured(700 * MIB), budget.begin());
    assert!(budget.has_ample_room_for(99 * MIB) && !budget.has_ample_room_for(100 * MIB));
}

#[tokio::test(start_paused = true)]
async fn what_can_be_spared_is_what_intake_does_not_need() {
    let budget = DiskBudget::default();
    assert!(budget.can_spare(1 << 40), "without a keeper there is no limit");
    budget.set(measured(110 * MIB), budget.begin());
    assert!(budget.can_spare(10 * MIB));
    assert!(tokio::time::timeout(Duration::from_secs(1), budget.pressed()).await.is_err(), "nobody needs room");
    assert!(!budget.can_spare(10 * MIB + 1));
    budget.pressed().await;
    // Between two measurements it counts what was written since the last one.
    budget.note_used(MIB);
    assert!(budget.can_spare(9 * MIB) && !budget.can_spare(10 * MIB));
    assert_eq!(budget.level(), Level::Open);
}

#[tokio::test(start_paused = true)]
async fn intake_slows_with_the_debt() {
    let seconds_for_a_mib = async |room: u64| {
        let budget = DiskBudget::default();
        budget.set(measured(room), budget.begin());
        let started = tokio::time::Instant::now();
        budget.admit(MIB).await.unwrap();
        started.elapsed().as_secs_f64()
    };
    assert_eq!(seconds_for_a_mib(150 * MIB).await, 0.0);
    let (half, tenth) = (seconds_for_a_mib(50 * MIB).await, seconds_for_a_mib(10 * MIB).await);
    assert!((0.015..0.018).contains(&half) && (0.14..0.15).contains(&tenth), "{half} {tenth}");
}

#[tokio::test(start_paused = true)]
async fn small_batches_are_slowed_by_their_sum() {
    let budget = DiskBudget::default();
    budget.set(measured(50 * MIB), budget.begin());
    let started = tokio::time::Instant::now();
    for _ in 0..1024 {
        budget.admit(1024).await.unwrap();
    }
    let took = started.elapsed().as_secs_f64();
    assert!((0.015..0.03).contains(&took), "a MiB takes 16 ms at this pace, and took {took} s");
}

#[tokio::test(start_paused = true)]
async fn slowed_intake_goes_on_however_often_the_keeper_measures() {
    let budget = DiskBudget::default();
    budget.set(measured(1), budget.begin());
    let keeper = tokio::spawn({
        let budget = budget.clone();
        async move {
            loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
                budget.set(measured(1), budget.begin());
            }
        }
    });
    let admitted = tokio::time::timeout(PATIENCE, budget.admit(MIB / 2)).await;
    keeper.abort();
    admitted.expect("admitted in time").unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_is_to_be_refused_goes_on_when_there_is_room_again() {
    let budget = DiskBudget::default();
    budget.set(measured(0), budget.begin());
    let waiting = tokio::spawn({
        let budget = budget.clone();
        async move { budget.admit(MIB).await }
    });
    budget.pressed().await;
    assert!(!waiting.is_finished());
    budget.set(measured(0), budget.begin());
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!waiting.is_finished());
    budget.set(measured(300 * MIB), budget.begin());
    waiting.await.unwrap().unwrap();
    assert_eq!(budget.room(), 299 << 20);
}

#[tokio::test(start_paused = true)]
async fn patience_ends_with_an_error_that_says_what_to_do() {
    let budget = DiskBudget::default();
    budget.set(measured(0), budget.begin());
    let started = tokio::time::Instant::now();
    let error = budget.admit(MIB).await.unwrap_err();
    assert!((PATIENCE..PATIENCE + Duration::from_millis(10)).contains(&started.elapsed()));
    assert_eq!(error.kind(), errors::ErrorKind::Retry);
    assert!(error.to_string().contains("raise disk_budget"), "{error}");
    assert_eq!(budget.room(), 0, "what was refused takes no room");
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_has_the_keeper_look_twice() {
    let budget = DiskBudget::default();
    budget.set(measured(300 * MIB), budget.begin());
    let keeper = tokio::spawn({
        let budget = budget.clone();
        async move {
            for _ in 0..2 {
                budget.pressed().await;
                budget.set(measured(300 * MIB), budget.begin());
            }
        }
    });
    assert!(budget.make_room().await);
    keeper.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_in_while_the_keeper_measures_counts() {
    let budget = DiskBudget::default();
    budget.set(measured(300 * MIB), budget.begin());
    let begun = budget.begin();
    budget.admit(20 * MIB).await.unwrap();
    budget.set(measured(300 * MIB), begun);
    assert_eq!(budget.room(), 280 << 20);
    budget.set(measured(280 * MIB), budget.begin());
    assert_eq!(budget.room(), 280 << 20);
}

#[tokio::test(start_paused = true)]
async fn background_work_leaves_intake_its_room() {
    let budget = DiskBudget::default();
    let hold = budget.hold();
    budget.set(measured(300 * MIB), budget.begin());
    let slow_below = budget.measured().unwrap().slow_below;
    let spare = 300 * MIB as i64 - slow_below;
    hold.take_spare(spare as u64).await.unwrap();
    assert_eq!((budget.room(), budget.level()), (slow_below, Level::Open));
    let refused = hold.take_spare(1).await.unwrap_err().to_string();
    assert!(refused.contains("no room to spare"), "{refused}");
    assert_eq!(hold.bytes(), spare as u64, "nothing is held of what was refused");
    drop(hold);
    assert_eq!(budget.room(), 300 * MIB as i64);
}

#[tokio::test(start_paused = true)]
async fn what_is_promised_stays_so_until_it_is_written() {
    let budget = DiskBudget::default();
    budget.set(measured(300 * MIB), budget.begin());
    let (hold, other) = (budget.hold(), budget.hold());
    hold.take_spare(50 * MIB).await.unwrap();
    other.add(7 * MIB);
    assert_eq!((budget.held(), budget.promised()), (57 * MIB, 50 * MIB));
    hold.note_written(20 * MIB);
    other.note_written(7 * MIB);
    assert_eq!((budget.held(), budget.promised()), (57 * MIB, 30 * MIB));
    hold.note_written(40 * MIB);
    assert_eq!((budget.held(), budget.promised()), (57 * MIB, 0), "more was written than was promised");
    hold.take_spare(10 * MIB).await.unwrap();
    drop((hold, other));
    assert_eq!((budget.held(), budget.promised()), (0, 0));
}

/// Layers are counted once, whoever has them: a job that ends takes no room from intake.
#[tokio::test(start_paused = true)]
async fn what_changes_hands_takes_no_room() {
    let budget = DiskBudget::default();
    budget.set(measured(300 * MIB), budget.begin());
    let (job, graveyard) = (budget.hold(), budget.hold());
    job.take_spare(50 * MIB).await.unwrap();
    job.note_written(40 * MIB);
    assert_eq!((budget.room(), budget.held()), (250 << 20, 50 * MIB));
    graveyard.take_over(60 * MIB);
    job.hand_over(40 * MIB);
    assert_eq!((budget.room(), budget.held(), budget.promised()), (250 << 20, 70 * MIB, 0));
    drop(job);
    assert_eq!((budget.room(), budget.held()), (260 << 20, 60 * MIB), "what was not written after all");
    graveyard.release(60 * MIB);
    assert_eq!((budget.room(), budget.held()), (320 << 20, 0));
}
