//! Triggers, tasks, and mapped changes.

use std::future::pending;

use serde::Deserialize;
use tokio::sync::oneshot;

use super::{
    control::{Job, Test},
    *,
};
use crate::{
    api::{
        kind::Kind,
        plain::{Custom, Spec},
        reported::Status,
    },
    controller::trigger::Trigger,
};

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Source {
    job: String,
}

impl Spec for Source {
    const KIND: Kind = Kind::custom("example.com", "v1", "Source", "sources");
    type Status = Status;
}

/// A trigger acts during a term only, on one object without delay, and on all objects in the background.
#[tokio::test(start_paused = true)]
async fn a_trigger_reconciles() {
    let (test, mut trigger) = (Test::new(false), None);
    let (running, _program) =
        test.run_with(|program| trigger = Some(program.trigger::<Custom<Job>>()));
    let trigger = trigger.unwrap();
    let attempts = || test.attempts.lock().len();
    sleep(Duration::from_mins(1)).await;
    assert_eq!(attempts(), 1);
    for (is_all, expected) in [(false, 2), (true, 3), (false, 4), (true, 5)] {
        if is_all {
            trigger.reconcile_all();
            trigger.reconcile_all();
        } else {
            trigger.reconcile(key("a"));
            trigger.reconcile(key("missing"));
        }
        sleep(Duration::from_millis(1)).await;
        assert_eq!(attempts(), expected);
    }

    *test.error.lock() = Some(ApiError::transient("no"));
    trigger.reconcile(key("a"));
    sleep(Duration::from_hours(1)).await;
    let before = attempts();
    trigger.reconcile_all();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(attempts(), before, "it keeps its backoff");
    trigger.reconcile(key("a"));
    sleep(Duration::from_millis(1)).await;
    assert_eq!(attempts(), before + 1);

    running.term.send_replace(None);
    sleep(Duration::from_secs(1)).await;
    trigger.reconcile(key("a"));
    trigger.reconcile_all();
    sleep(Duration::from_hours(1)).await;
    assert_eq!(attempts(), before + 1, "a standby");
}

/// An object that was up to date before a trigger may need a change after it. The next term plans it again, although no watch
/// has reported a change, and so does the next resync.
#[tokio::test(start_paused = true)]
async fn a_trigger_between_two_terms_is_not_lost() {
    type Call = fn(&Trigger<Custom<Job>>);
    let (hour, test, mut trigger) = (Duration::from_hours(1), Test::new(false), None);
    let (running, _program) =
        test.run_with(|program| trigger = Some(program.trigger::<Custom<Job>>()));
    let trigger = trigger.unwrap();
    sleep(hour).await;
    let calls: [(Call, u32); 3] = [
        (|_| {}, 0),
        (|trigger| trigger.reconcile(key("a")), 1),
        (Trigger::reconcile_all, 1),
    ];
    for (call, expected) in calls {
        let before = *test.checks.lock();
        running.term.send_replace(None);
        sleep(hour).await;
        call(&trigger);
        running.term.send_replace(Some(Term::unlimited()));
        sleep(hour).await;
        assert_eq!(*test.checks.lock() - before, expected);
    }
}

/// The error names the task.
#[tokio::test(start_paused = true)]
async fn a_task_that_ends_or_panics_ends_the_process() {
    for panics in [false, true] {
        let test = Test::new(false);
        let (_running, program) = test.run_with(|program| {
            program.task("refresh", async move {
                sleep(Duration::from_mins(1)).await;
                assert!(!panics, "on purpose");
            });
        });
        sleep(Duration::from_secs(59)).await;
        assert!(!program.is_finished());
        let ended = program.await.unwrap().unwrap_err();
        let expected = "the task refresh exited unexpectedly; see the log above";
        assert_eq!(ended.to_string(), expected, "{panics}");
    }
}

/// A task does not delay the shutdown, and is dropped before its end.
#[tokio::test(start_paused = true)]
async fn a_shutdown_cancels_a_task() {
    let (test, (held, mut dropped)) = (Test::new(false), oneshot::channel::<()>());
    let (running, program) = test.run_with(|program| {
        program.task("refresh", async move {
            let _held = held;
            pending::<()>().await;
        });
    });
    sleep(Duration::from_mins(1)).await;
    assert!(
        dropped
            .try_recv()
            .is_err_and(|it| it == oneshot::error::TryRecvError::Empty)
    );
    let begun = Instant::now();
    running.stop.send(()).unwrap();
    program.await.unwrap().unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    assert!(
        dropped
            .try_recv()
            .is_err_and(|it| it == oneshot::error::TryRecvError::Closed)
    );
}

/// Each change of a mapped object enqueues the former and the new object. A panic of the function does not stop later changes.
#[tokio::test(start_paused = true)]
async fn a_mapped_change_enqueues_old_and_new_objects() {
    let test = Test::new(false);
    let (_running, program) = test.run_mapping(|changed: &Key, source: &Custom<Source>| {
        let job = &source.spec.as_ref().unwrap().job;
        assert!(job != "odd", "on purpose");
        vec![changed.sibling(job)]
    });
    sleep(Duration::from_mins(1)).await;
    let mut expected = 1;
    for (name, enqueues) in [
        ("b", true),
        ("c", false),
        ("a", true),
        ("odd", true),
        ("c", false),
        ("a", true),
    ] {
        assert_eq!(test.attempts.lock().len(), expected);
        test.name(name).await;
        expected += usize::from(enqueues);
        assert_eq!(test.attempts.lock().len(), expected, "{name}");
    }
    assert!(!program.is_finished());
}

/// The state of a mapped object may be part of the plan. So a resync that skips unchanged objects begins again.
#[tokio::test(start_paused = true)]
async fn a_mapped_change_ends_the_rest_of_a_resync() {
    let (hour, test) = (Duration::from_hours(1), Test::new(false));
    let (_running, _program) = test.run_mapping(|_: &Key, _: &Custom<Source>| Vec::new());
    sleep(hour).await;
    let checks = *test.checks.lock();
    sleep(hour).await;
    assert_eq!(*test.checks.lock(), checks);
    test.name("b").await;
    sleep(hour).await;
    assert_eq!(*test.checks.lock(), checks + 1);
}

/// A trigger or an index of a type that no controller uses would have no effect.
#[tokio::test(start_paused = true)]
async fn a_trigger_and_an_index_need_a_controller() {
    let refuses = |build: fn(&mut Builder), expected: &str| {
        let test = Test::new(false);
        let run = std::panic::AssertUnwindSafe(|| drop(test.run_with(build)));
        let said = *std::panic::catch_unwind(run)
            .unwrap_err()
            .downcast::<String>()
            .unwrap();
        assert_eq!(said, expected);
    };
    refuses(
        |program| drop(program.trigger::<Custom<Source>>()),
        "no controller reconciles the sources of a trigger",
    );
    refuses(
        |program| drop(program.index(|_: &Custom<Source>| Vec::new())),
        "no controller uses the indexed sources",
    );
}
