//! Loading and unloading, one thing at a time.

use std::{
    future::Future,
    sync::{Arc, atomic::Ordering::SeqCst},
    task::{Context, Waker},
    time::{Duration, Instant},
};

use turbo_serve::{
    engine::{EngineError, Health},
    models::{ChangeError, DeclareError, Declared, LoadWhen, Models, NotServed, Served, State, Wanted},
};

use crate::fake::{Engine, Shelf, Trouble, alias, ask, eventually, run, run_fast, started};

fn find(models: &Models, name: &str) -> Result<String, NotServed> {
    models.find(Wanted::named(name)).map(|served| full_name(&served))
}

fn full_name(served: &Served) -> String {
    format!("{}/{}", served.name(), served.version())
}

fn states(models: &Models) -> Vec<State> {
    models.list().into_iter().map(|entry| entry.state).collect()
}

/// Polls a future for the first time, which does not resolve it.
fn begin(future: std::pin::Pin<&mut impl Future>) {
    assert!(future.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[test]
fn a_name_is_its_latest_version_unless_another_is_said_or_pinned() {
    run(async {
        let (a, b) = (Shelf::new("a", &["1", "10", "9"]), Shelf::new("b", &["1", "2"]));
        let aliases = vec![alias("org/a", None), alias("stable", Some("9"))];
        let a = Declared { aliases, ..a.declared(LoadWhen::Start) };
        let b = Declared { version: Some("1".to_owned()), ..b.declared(LoadWhen::Start) };
        let models = Models::new(vec![a, b], Some("b")).unwrap();
        models.start().await.unwrap();
        for (name, expected) in [
            ("a", "a/10"),
            ("org/a", "a/10"),
            ("a/1", "a/1"),
            ("stable", "a/9"),
            ("b", "b/1"),
            ("b/latest", "b/2"),
        ] {
            assert_eq!(find(&models, name).unwrap(), expected);
        }
        assert_eq!(full_name(&models.find(Wanted::default()).unwrap()), "b/1", "the default");
        let unknown = find(&models, "a/2").unwrap_err().to_string();
        assert_eq!(unknown, "model `a` has no version `2`: expected `1`, `9`, `10`");
        let unknown = find(&models, "c").unwrap_err().to_string();
        assert_eq!(unknown, "no model `c` is served: expected `a`, `b`");
        let aliases: Vec<_> = models.list().into_iter().map(|entry| entry.aliases.join(" ")).collect();
        assert_eq!(aliases, ["org/a", "org/a stable", "org/a", "", ""]);
    });
}

#[test]
fn an_unloaded_model_is_gone_at_once_and_answers_who_has_a_lease() {
    run(async {
        let shelf = Shelf::new("a", &["1"]);
        let models = started(&[&shelf]).await;
        let lease = models.find(Wanted::named("a")).unwrap();
        let mut unloading = Box::pin(models.unload("a"));
        begin(unloading.as_mut());
        assert_eq!(find(&models, "a"), Err(NotServed::Unloaded { name: "a/1".to_owned() }));
        assert_eq!(states(&models), [State::Unloading]);
        let other = lease.clone();
        drop(lease);
        ask(&other).await.unwrap();
        begin(unloading.as_mut());
        drop(other);
        unloading.await.unwrap();
        assert_eq!((states(&models), shelf.alive.load(SeqCst)), (vec![State::Unloaded], 0));
        models.unload("a").await.unwrap(); // there is nothing to do
        models.load("a").await.unwrap();
        assert_eq!(find(&models, "a").unwrap(), "a/1");
    });
}

#[test]
fn a_model_that_is_loaded_while_it_ends_waits_for_the_end() {
    run(async {
        let shelf = Shelf::new("a", &["1"]);
        let models = started(&[&shelf]).await;
        let lease = models.find(Wanted::named("a")).unwrap();
        begin(Box::pin(models.unload("a")).as_mut());
        let loading = tokio::spawn({
            let models = models.clone();
            async move { models.load("a").await }
        });
        ask(&lease).await.unwrap();
        assert_eq!(shelf.loads.load(SeqCst), 1, "there is no room for two");
        drop(lease);
        loading.await.unwrap().unwrap();
        assert_eq!(shelf.loads.load(SeqCst), 2);
        // the handle of the stopped engine is dropped shortly after the table says so
        eventually(|| shelf.alive.load(SeqCst) == 1).await;
    });
}

#[test]
fn several_orders_to_load_are_one_load() {
    run(async {
        let shelf = Shelf::new("a", &["1"]);
        let models = Models::new(vec![shelf.declared(LoadWhen::Start)], None).unwrap();
        let load = || {
            let models = models.clone();
            tokio::spawn(async move { models.load("a").await })
        };
        for (fails, attempt) in [(true, 1), (false, 2)] {
            shelf.hold("1");
            if fails {
                shelf.next_load(Trouble::FailsInTheEnd);
            }
            let first = load();
            eventually(|| shelf.loads.load(SeqCst) == attempt).await;
            let others = [load(), load()];
            // Time enough for them to begin another load.
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            shelf.release();
            let first = first.await.unwrap();
            assert_eq!(first.is_err(), fails);
            for other in others {
                assert_eq!(other.await.unwrap(), first, "they hear the same");
            }
            assert_eq!(shelf.loads.load(SeqCst), attempt);
        }
        models.load("a").await.unwrap();
        assert_eq!(shelf.loads.load(SeqCst), 2, "it is there");
    });
}

#[test]
fn an_order_to_unload_counts_for_what_is_being_loaded() {
    run(async {
        let shelf = Shelf::new("a", &["1"]);
        let models = Models::new(vec![shelf.declared(LoadWhen::Start)], None).unwrap();
        shelf.hold("1");
        let loading = tokio::spawn({
            let models = models.clone();
            async move { models.load("a").await }
        });
        eventually(|| shelf.loads.load(SeqCst) == 1).await;
        let mut unloading = Box::pin(models.unload("a"));
        begin(unloading.as_mut());
        assert_eq!(states(&models), [State::Loading]);
        shelf.release();
        unloading.await.unwrap();
        assert_eq!((states(&models), shelf.alive.load(SeqCst)), (vec![State::Unloaded], 0));
        let gone = NotServed::Unloaded { name: "a/1".to_owned() };
        assert_eq!(loading.await.unwrap(), Err(ChangeError::NotServed(gone)));
        assert_eq!(shelf.loads.load(SeqCst), 1, "it is not loaded again");
    });
}

#[test]
fn an_order_to_unload_counts_for_what_an_older_one_has_yet_to_load() {
    run(async {
        // Repeated, for it is random which of the two is first notified that a version is ready.
        for _ in 0..20 {
            let shelf = Shelf::new("a", &["1", "2"]);
            let models = Models::new(vec![shelf.declared(LoadWhen::Start)], None).unwrap();
            shelf.hold("1");
            let loading = tokio::spawn({
                let models = models.clone();
                async move { models.load("a").await }
            });
            eventually(|| shelf.loads.load(SeqCst) == 1).await;
            let mut unloading = Box::pin(models.unload("a"));
            begin(unloading.as_mut());
            shelf.release();
            unloading.await.unwrap();
            let gone = NotServed::Unloaded { name: "a/1".to_owned() };
            assert_eq!(loading.await.unwrap(), Err(ChangeError::NotServed(gone)));
            assert_eq!(states(&models), [State::Unloaded, State::Unloaded]);
            assert_eq!(shelf.loads.load(SeqCst), 1, "the second was not begun");
        }
    });
}

#[test]
fn an_order_counts_though_who_gave_it_has_gone() {
    run(async {
        let shelf = Shelf::new("a", &["1", "2"]);
        let models = Models::new(vec![shelf.declared(LoadWhen::Start)], None).unwrap();
        shelf.hold("1");
        begin(Box::pin(models.load("a")).as_mut());
        eventually(|| shelf.loads.load(SeqCst) == 1).await;
        shelf.release();
        eventually(|| states(&models) == [State::Ready, State::Ready]).await;

        shelf.set_versions(&["1", "2", "3"]);
        shelf.hold("3");
        begin(Box::pin(models.load("a")).as_mut());
        eventually(|| shelf.loads.load(SeqCst) == 3).await;
        begin(Box::pin(models.unload("a")).as_mut());
        shelf.release();
        eventually(|| states(&models) == [State::Unloaded, State::Unloaded, State::Unloaded]).await;
    });
}

/// Two engines without a label would write the same gauges.
#[test]
fn a_version_that_comes_to_a_single_one_has_a_label() {
    run(async {
        let a = Shelf::new("a", &["1"]);
        let models = started(&[&a]).await;
        a.set_versions(&["1", "2"]);
        models.load("a").await.unwrap();
        assert_eq!(*a.labels.lock().unwrap(), [None, Some("a/2".to_owned())]);
    });
}

#[test]
fn what_is_there_serves_while_a_new_version_is_loaded() {
    run(async {
        let (a, b) = (Shelf::new("a", &["1"]), Shelf::new("b", &["1"]));
        let models = started(&[&a, &b]).await;
        a.set_versions(&["1", "2"]);
        a.hold("2");
        let loading = tokio::spawn({
            let models = models.clone();
            async move { models.load("a").await }
        });
        eventually(|| a.loads.load(SeqCst) == 2).await;
        assert_eq!(states(&models), [State::Ready, State::Loading, State::Ready]);
        assert_eq!([find(&models, "a").unwrap(), find(&models, "b").unwrap()], ["a/1", "b/1"]);
        assert_eq!(find(&models, "a/2"), Err(NotServed::NotReady { name: "a/2".to_owned() }));
        let wanted = tokio::spawn({
            let models = models.clone();
            async move { models.lease(Wanted::named("a/2")).await }
        });
        a.release();
        loading.await.unwrap().unwrap();
        assert_eq!(full_name(&wanted.await.unwrap().unwrap()), "a/2", "who asks for it waits");
        assert_eq!(find(&models, "a").unwrap(), "a/2");
        // The folder of the old version goes, then the version.
        a.set_versions(&["2"]);
        models.load("a").await.unwrap();
        assert_eq!(find(&models, "a/1").unwrap(), "a/1", "what somebody may use stays");
        models.unload("a/1").await.unwrap();
        models.load("a").await.unwrap();
        assert_eq!(states(&models), [State::Ready, State::Ready]);
    });
}

#[test]
fn on_demand_the_first_request_loads_and_all_wait() {
    run(async {
        let shelf = Shelf::new("a", &["1", "2"]);
        let models = Models::new(vec![shelf.declared(LoadWhen::Request)], None).unwrap();
        models.start().await.unwrap();
        assert_eq!(states(&models), [State::OnDemand, State::OnDemand]);
        assert_eq!(find(&models, "a"), Err(NotServed::NotReady { name: "a/2".to_owned() }));
        let asking: Vec<_> = (0..8)
            .map(|_| {
                let models = models.clone();
                tokio::spawn(async move { models.lease(Wanted::named("a")).await })
            })
            .collect();
        for asked in asking {
            assert_eq!(full_name(&asked.await.unwrap().unwrap()), "a/2");
        }
        assert_eq!((shelf.loads.load(SeqCst), states(&models)), (1, vec![State::OnDemand, State::Ready]));
        models.lease(Wanted::named("a/1")).await.unwrap();
        assert_eq!(find(&models, "a").unwrap(), "a/2");
        // A version that was unloaded explicitly is not loaded by a request.
        models.unload("a").await.unwrap();
        let gone = models.lease(Wanted::named("a")).await.map(|served| full_name(&served));
        assert_eq!(gone, Err(NotServed::Unloaded { name: "a/2".to_owned() }));
    });
}

#[test]
fn a_version_that_cannot_be_loaded_says_why_and_may_be_tried_again() {
    run(async {
        let shelf = Shelf::new("a", &["1"]);
        let models = Models::new(vec![shelf.declared(LoadWhen::Start)], None).unwrap();
        for (trouble, why) in [(Trouble::Fails, "the file is too short"), (Trouble::Panics, "it panicked")] {
            shelf.next_load(trouble);
            let error = models.start().await.unwrap_err();
            assert_eq!(error.to_string(), format!("model `a/1` could not be loaded: {why}"));
            assert_eq!(states(&models), [State::Unavailable { reason: why.to_owned() }]);
            let found = models.lease(Wanted::named("a")).await.unwrap_err().to_string();
            let order = "when that is fixed, load it with `POST /v2/repository/models/a/1/load`";
            assert_eq!(found, format!("{error}; {order}"));
        }
        models.load("a").await.unwrap();
        assert_eq!(find(&models, "a").unwrap(), "a/1");
        assert_eq!(models.load("b").await.unwrap_err().to_string(), "no model `b` is served: expected `a`");
        assert!(matches!(models.unload("a/2").await, Err(ChangeError::NotServed(_))));
    });
}

#[test]
fn what_could_not_be_loaded_for_a_request_is_tried_again_after_a_pause() {
    run_fast(async {
        let shelf = Shelf::new("a", &["1"]);
        let models = Models::new(vec![shelf.declared(LoadWhen::Request)], None).unwrap();
        for attempt in 1..=2 {
            shelf.next_load(Trouble::Fails);
            for _ in 0..2 {
                let error = models.lease(Wanted::named("a")).await.unwrap_err();
                assert_eq!(
                    error.to_string(),
                    "model `a/1` could not be loaded: the file is too short; when that is fixed, ask again in 5 s, \
                     or load it with `POST /v2/repository/models/a/1/load`"
                );
                assert_eq!((shelf.loads.load(SeqCst), models.health()), (attempt, None));
            }
            tokio::time::advance(Duration::from_secs(5)).await;
        }
        assert_eq!(full_name(&models.lease(Wanted::named("a")).await.unwrap()), "a/1");
    });
}

#[test]
fn what_could_not_be_loaded_does_not_count_until_it_could() {
    run_fast(async {
        let shelf = Shelf::new("a", &["1"]);
        let models = Models::new(vec![shelf.declared(LoadWhen::Request)], None).unwrap();
        assert_eq!((models.health(), models.failure()), (Some(Health::Ready), None), "nobody has tried");
        shelf.next_load(Trouble::Fails);
        models.lease(Wanted::named("a")).await.unwrap_err();
        let is_ill = || {
            assert_eq!(models.health(), None);
            let why = "model `a/1` could not be loaded: the file is too short";
            assert_eq!(models.failure().as_deref(), Some(why));
        };
        is_ill();
        assert_eq!(states(&models), [State::Unavailable { reason: "the file is too short".to_owned() }]);
        // No request is sent to an unhealthy server: the health check retries the load.
        shelf.hold("1");
        tokio::time::advance(Duration::from_secs(5)).await;
        is_ill();
        assert_eq!(states(&models), [State::Loading]);
        is_ill();
        shelf.release();
        eventually(|| states(&models) == [State::Ready]).await;
        assert_eq!((models.health(), models.failure()), (Some(Health::Ready), None));
        assert_eq!(shelf.loads.load(SeqCst), 2);
    });
}

#[test]
fn one_that_could_not_be_loaded_takes_nothing_from_the_others() {
    run_fast(async {
        let (a, b) = (Shelf::new("a", &["1"]), Shelf::new("b", &["1"]));
        let declared = [&a, &b].map(|shelf| shelf.declared(LoadWhen::Request)).into();
        let models = Models::new(declared, None).unwrap();
        a.next_load(Trouble::Fails);
        models.lease(Wanted::named("a")).await.unwrap_err();
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(models.health(), Some(Health::Ready), "the next request for `b` has it loaded");
        models.lease(Wanted::named("b")).await.unwrap();
        assert_eq!(models.health(), Some(Health::Ready));
        assert_eq!(a.loads.load(SeqCst), 1, "nobody asks for it");
    });
}

#[test]
fn who_waits_for_a_model_waits_until_the_deadline_or_the_end_of_the_server() {
    run(async {
        let shelf = Shelf::new("a", &["1"]);
        let models = Models::new(vec![shelf.declared(LoadWhen::Request)], None).unwrap();
        shelf.hold("1");
        let late =
            models.lease_by(Wanted::named("a"), Some(Instant::now() + Duration::from_millis(20))).await;
        assert_eq!(late.unwrap_err(), NotServed::Expired { name: "a/1".to_owned() });
        let waits = tokio::spawn({
            let models = models.clone();
            async move { models.lease(Wanted::named("a")).await.map(drop) }
        });
        eventually(|| shelf.loads.load(SeqCst) == 1).await;
        models.stop().await;
        assert_eq!(waits.await.unwrap(), Err(NotServed::Stopping));
        assert_eq!(models.lease(Wanted::named("a")).await.map(drop), Err(NotServed::Stopping));
        shelf.release();
        eventually(|| states(&models) == [State::Unloaded]).await;
        assert_eq!(models.lease(Wanted::named("a")).await.map(drop), Err(NotServed::Stopping));
    });
}

#[test]
fn a_server_without_any_model_is_not_well() {
    run(async {
        let (a, b) = (Shelf::new("a", &["1"]), Shelf::new("b", &["1"]));
        let models = started(&[&a, &b]).await;
        models.unload("a").await.unwrap();
        assert_eq!(models.health(), Some(Health::Ready), "what was unloaded is not ill");
        models.unload("b").await.unwrap();
        assert_eq!(models.health(), None);
        a.next_load(Trouble::Fails);
        models.load("a").await.unwrap_err();
        assert_eq!(models.health(), None);
        models.load("b").await.unwrap();
        assert_eq!(models.health(), Some(Health::Ready));
    });
}

#[test]
fn one_engine_answers_to_every_name_and_stays() {
    run(async {
        let engine = Arc::new(Engine::new("a", Arc::default()));
        let models = Models::single(engine);
        for wanted in [Wanted::default(), Wanted::named("a"), Wanted::named("org/b"), Wanted::named("a/1")] {
            assert_eq!(full_name(&models.find(wanted).unwrap()), "a/1");
        }
        assert!(matches!(models.find(Wanted::named("a/2")), Err(NotServed::UnknownVersion { .. })));
        for name in ["a", "a/1", "another"] {
            assert_eq!(models.unload(name).await, Err(ChangeError::Fixed));
            assert_eq!(models.load(name).await, Err(ChangeError::Fixed));
        }
    });
}

#[test]
fn a_server_that_stops_stops_all_engines_and_loads_none() {
    run(async {
        let (a, b) = (Shelf::new("a", &["1"]), Shelf::new("b", &["1"]));
        let models = started(&[&a, &b]).await;
        a.set_versions(&["1", "2"]);
        a.hold("2");
        let loading = tokio::spawn({
            let models = models.clone();
            async move { models.load("a").await }
        });
        eventually(|| a.loads.load(SeqCst) == 2).await;
        models.stop().await;
        for model in models.ready() {
            assert!(ask(&model).await.is_err(), "{model:?} answers");
        }
        a.release();
        assert_eq!(loading.await.unwrap(), Err(ChangeError::Stopping));
        eventually(|| states(&models) == [State::Ready, State::Unloaded, State::Ready]).await;
        eventually(|| a.alive.load(SeqCst) == 1).await;
        assert_eq!(models.load("a/2").await, Err(ChangeError::Stopping));
    });
}

#[test]
fn what_has_begun_may_ask_again_before_a_server_stops() {
    run(async {
        let models = started(&[&Shelf::new("a", &["1"]), &Shelf::new("b", &["1"])]).await;
        let [a, b] = ["a", "b"].map(|name| models.find(Wanted::named(name)).unwrap());
        let begun = a.begin().unwrap();
        let (mut stopping, mut as_well) = (Box::pin(models.stop()), Box::pin(models.stop()));
        begin(stopping.as_mut());
        begin(as_well.as_mut());
        for model in [&a, &b] {
            ask(model).await.unwrap();
            assert_eq!(model.begin().unwrap_err(), EngineError::Stopping);
        }
        drop(begun);
        stopping.await;
        as_well.await;
        assert_eq!(ask(&b).await, Err(EngineError::Stopping));
    });
}

#[test]
fn a_declaration_names_versions_that_there_are() {
    let with = |versions: &[&str], pinned: Option<&str>| {
        let declared = Shelf::new("a", versions).declared(LoadWhen::Start);
        Models::new(vec![Declared { version: pinned.map(str::to_owned), ..declared }], None).err()
    };
    let wrong = |why: &str| Some(DeclareError::Versions { name: "a".to_owned(), why: why.to_owned() });
    assert_eq!(with(&[], None), wrong("it has no versions, expected at least one"));
    assert_eq!(with(&["1", "2"], Some("3")), wrong("version `3` is not there: expected one of `1`, `2`"));
    assert_eq!(with(&["1"], Some("1")), None);
}
