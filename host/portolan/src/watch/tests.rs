//! The watched folder over a real folder, the desk, and the fakes of its store and loader.

mod bench;

use super::*;
use crate::system::SystemClock;
use bench::{Bench, HandClock, desk};
use portolan_base::TenantName;
use portolan_gateway::policies::{By, FourEyes, PolicySlot};
use portolan_policy::{QuestionKind, Scope};
use portolan_ports::{FakeSignatures, MemoryStore, PolicyStore, ProposalState, StoreCall, VerdictKind};
use std::fs;
use std::path::Path;
use std::time::Instant;

fn acme() -> Scope {
    Scope::Tenant(TenantName::new("acme").unwrap())
}

fn routing() -> PolicySlot {
    PolicySlot::new(acme(), QuestionKind::Routing)
}

#[test]
fn a_complete_file_is_bound_for_its_tenant_with_its_configuration() {
    let mut bench = Bench::new();
    bench.write("acme/routing.json", "{\"a\":1}");
    bench.write("acme/routing.wasm", "ok:1");
    bench.write("_platform/cost.wasm", "ok:2");
    bench.look();
    assert_eq!(bench.generation(), None, "not before it has settled");
    bench.settle();
    let bound: Vec<_> = bench
        .desk
        .list()
        .unwrap()
        .into_iter()
        .map(|b| (b.scope, b.question, b.config))
        .collect();
    let expected = [
        (Scope::Platform, QuestionKind::Cost, String::new()),
        (acme(), QuestionKind::Routing, "{\"a\":1}".to_owned()),
    ];
    assert_eq!(bound, expected);
    assert!(bench.desk.table().get(&acme(), QuestionKind::Routing).is_some());
    assert_eq!(bench.store.audit(1).unwrap()[0].actor, "policy-folder");
}

#[test]
fn a_bad_file_is_told_so_beside_itself_and_replaces_nothing() {
    let mut bench = Bench::new();
    bench.write("acme/routing.wasm", "ok:1");
    bench.settle();
    bench.write("acme/routing.wasm", "no component");
    bench.settle();
    assert_eq!(bench.generation(), Some(1));
    let report = bench.report("acme/routing.wasm.error").unwrap();
    let expected = "routing.wasm was not activated; what was active before stays active.\n\n\
                    error[no-component]: the bytes are no component\n  help: begin them with \"ok:\"\n";
    assert_eq!(report, expected);
    bench.write("acme/routing.wasm", "ok:2");
    bench.settle();
    assert_eq!(bench.generation(), Some(2));
    assert_eq!(bench.report("acme/routing.wasm.error"), None);
}

#[test]
fn a_policy_for_a_tenant_that_does_not_exist_is_refused_where_it_lies() {
    let mut bench = Bench::new();
    bench.write("nosuch/routing.wasm", "ok:good");
    bench.settle();
    let report = bench.report("nosuch/routing.wasm.error").unwrap();
    assert!(report.contains("there is no tenant nosuch"), "{report}");
    assert!(bench.desk.list().unwrap().is_empty());
}

#[test]
fn a_configuration_is_checked_and_its_change_binds_anew() {
    let mut bench = Bench::new();
    bench.write("acme/routing.wasm", "ok:1");
    bench.write("acme/routing.json", "{\"a\":");
    bench.settle();
    assert_eq!(bench.generation(), None);
    assert!(
        bench
            .report("acme/routing.wasm.error")
            .unwrap()
            .contains("error[bad-config]: routing.json: EOF")
    );
    bench.write("acme/routing.json", "{\"a\":2}");
    bench.settle();
    assert_eq!(
        (bench.generation(), bench.config().as_str()),
        (Some(1), "{\"a\":2}")
    );
    assert_eq!(bench.report("acme/routing.wasm.error"), None);
    fs::remove_file(bench.path("acme/routing.json")).unwrap();
    bench.settle();
    assert_eq!((bench.generation(), bench.config().as_str()), (Some(2), ""));
    bench.write("acme/routing.json", &" ".repeat(64 * 1024 + 1));
    bench.settle();
    assert_eq!(bench.generation(), Some(2));
    assert!(
        bench
            .report("acme/routing.wasm.error")
            .unwrap()
            .contains("error[too-large]")
    );
}

#[test]
fn links_misnamed_files_and_files_outside_are_refused() {
    let mut bench = Bench::new();
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("routing.wasm"), "ok:1").unwrap();
    bench.write("acme/rooting.wasm", "ok:1");
    bench.write("cost.wasm", "ok:1");
    bench.write("Acme/cost.wasm", "ok:1");
    bench.write("..acme/cost.wasm", "ok:1");
    fs::create_dir_all(bench.path("acme/invalidation.wasm")).unwrap();
    bench.write("beta/cost.wasm", "ok:1");
    std::os::unix::fs::symlink("/etc/passwd", bench.path("beta/cost.json")).unwrap();
    std::os::unix::fs::symlink(
        elsewhere.path().join("routing.wasm"),
        bench.path("acme/routing.wasm"),
    )
    .unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), bench.path("linked")).unwrap();
    bench.settle();
    assert_eq!(bench.desk.list().unwrap(), []);
    for (file, code) in [
        ("acme/rooting.wasm", "no-question"),
        ("cost.wasm", "no-tenant"),
        ("acme/routing.wasm", "no-file"),
        ("acme/invalidation.wasm", "no-file"),
        ("beta/cost.wasm", "no-file"),
    ] {
        let report = bench
            .report(&format!("{file}.error"))
            .unwrap_or_else(|| panic!("no report on {file}"));
        assert!(report.contains(&format!("error[{code}]")), "{file}: {report}");
    }
    assert_eq!(
        fs::read_dir(elsewhere.path()).unwrap().count(),
        1,
        "nothing is written through a link"
    );

    fs::remove_file(bench.path("acme/routing.wasm")).unwrap();
    bench.write("acme/routing.wasm", "ok:1");
    fs::remove_file(bench.path("acme/rooting.wasm")).unwrap();
    bench.settle();
    assert_eq!(bench.generation(), Some(1));
    assert_eq!(bench.report("acme/routing.wasm.error"), None);
    assert_eq!(
        bench.report("acme/rooting.wasm.error"),
        None,
        "a report goes with its file"
    );
}

#[test]
fn a_report_is_not_written_through_a_link() {
    let mut bench = Bench::new();
    bench.write("acme/routing.wasm", "no component");
    bench.write("victim", "untouched");
    for link in ["acme/routing.wasm.error", "acme/.routing.wasm.error"] {
        std::os::unix::fs::symlink(bench.path("victim"), bench.path(link)).unwrap();
    }
    bench.settle();
    assert_eq!(bench.report("victim").unwrap(), "untouched");
    assert!(
        bench
            .report("acme/routing.wasm.error")
            .unwrap()
            .contains("no-component")
    );
}

#[test]
fn a_file_that_grows_is_taken_once_when_it_is_whole() {
    let mut bench = Bench::new();
    for length in 1..6 {
        bench.write("acme/routing.wasm", &"ok:12"[..length]);
        bench.look();
        bench.pass(SETTLE - Duration::from_millis(1));
        bench.look();
    }
    assert_eq!(bench.generation(), None);
    bench.settle();
    assert_eq!(bench.generation(), Some(1));
    assert_eq!(
        bench.report("acme/routing.wasm.error"),
        None,
        "no torn file was looked into"
    );
}

#[test]
fn a_file_that_appears_by_a_rename_is_taken_at_once() {
    let mut bench = Bench::new();
    bench.write("acme/.upload", "ok:1");
    fs::rename(bench.path("acme/.upload"), bench.path("acme/routing.wasm")).unwrap();
    let renamed = BTreeSet::from([bench.path("acme/routing.wasm")]);
    bench.watched.look(bench.clock.now(), &renamed);
    assert_eq!(bench.generation(), Some(1));
}

#[test]
fn a_deleted_file_leaves_its_binding() {
    let mut bench = Bench::new();
    bench.write("acme/routing.wasm", "ok:1");
    bench.settle();
    fs::remove_dir_all(bench.path("acme")).unwrap();
    bench.settle();
    assert_eq!(bench.generation(), Some(1));
}

#[test]
fn a_restart_changes_nothing_and_the_later_of_folder_and_api_wins() {
    let mut bench = Bench::new();
    bench.write("acme/routing.wasm", "ok:1");
    bench.settle();
    bench.restart();
    bench.settle();
    assert_eq!(bench.generation(), Some(1), "what is active is not bound again");

    bench.desk.unbind(&routing(), &By::new("tess", "wrong")).unwrap();
    bench.restart();
    bench.settle();
    assert_eq!(
        bench.generation(),
        None,
        "the file does not undo what the API did"
    );

    bench.write("acme/routing.wasm", "ok:1");
    bench.settle();
    assert_eq!(bench.generation(), Some(3), "put there again, it is bound again");

    bench.pass(SETTLE);
    bench.write("acme/routing.wasm", "ok:2");
    bench.restart();
    bench.settle();
    assert_eq!(bench.generation(), Some(4), "changed while the host was down");
}

#[test]
fn an_old_file_the_store_never_saw_is_taken_at_start() {
    let mut bench = Bench::new();
    bench.write("elsewhere", "ok:2");
    bench.pass(SETTLE);
    bench.write("acme/routing.wasm", "ok:1");
    bench.settle();
    fs::rename(bench.path("elsewhere"), bench.path("acme/routing.wasm")).unwrap();
    bench.restart();
    bench.settle();
    assert_eq!(bench.generation(), Some(2));
}

#[test]
fn a_file_is_tried_again_when_the_store_failed() {
    let mut bench = Bench::new();
    bench.write("acme/routing.wasm", "ok:1");
    bench.store.fail(StoreCall::Bind);
    bench.look();
    bench.pass(SETTLE);
    bench.look();
    assert_eq!((bench.generation(), bench.watched.is_settling()), (None, true));
    assert_eq!(
        bench.report("acme/routing.wasm.error"),
        None,
        "it is not the file's fault"
    );
    bench.store.heal();
    bench.pass(SETTLE);
    bench.look();
    assert_eq!(bench.generation(), Some(1));
}

#[test]
fn the_thread_takes_files_that_were_there_and_files_that_come() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(MemoryStore::new());
    let clock = Arc::new(SystemClock::start());
    let desk = desk(&store, Arc::clone(&clock) as Arc<dyn Clock>);
    let root = folder.path().join("policies");
    fs::create_dir_all(root.join("acme")).unwrap();
    fs::write(root.join("acme/cost.wasm"), "ok:1").unwrap();
    let watch = Watch::start(root.clone(), Arc::clone(&desk), clock).unwrap();
    await_binding(&desk, QuestionKind::Cost);
    fs::write(folder.path().join("upload"), "ok:2").unwrap();
    fs::rename(folder.path().join("upload"), root.join("acme/routing.wasm")).unwrap();
    await_binding(&desk, QuestionKind::Routing);
    drop(watch);
}

#[test]
fn dropping_a_watch_gives_the_desk_back() {
    let folder = tempfile::tempdir().unwrap();
    let desk = desk(&Arc::new(MemoryStore::new()), Arc::new(HandClock::default()));
    let begun = Instant::now();
    for _ in 0..20 {
        let watch = Watch::start(
            folder.path().to_owned(),
            Arc::clone(&desk),
            Arc::new(HandClock::default()),
        );
        drop(watch.unwrap());
        assert_eq!(Arc::strong_count(&desk), 1, "the thread still holds the desk");
    }
    assert!(begun.elapsed() < RESCAN, "the thread was woken and did not wait");
}

#[test]
fn no_further_file_is_taken_once_the_watching_is_over() {
    let mut bench = Bench::new();
    bench.write("acme/routing.wasm", "ok:1");
    bench.look();
    bench.pass(SETTLE);
    bench.over.store(true, Ordering::Relaxed);
    bench.look();
    assert_eq!(bench.generation(), None);
    bench.over.store(false, Ordering::Relaxed);
    bench.look();
    assert_eq!(bench.generation(), Some(1));
}

fn await_binding(desk: &PolicyDesk, question: QuestionKind) {
    let begun = Instant::now();
    while desk.table().get(&acme(), question).is_none() {
        assert!(begun.elapsed() < 4 * RESCAN, "the {question} file was not taken");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error_that_names_it() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let desk = desk(&Arc::new(MemoryStore::new()), Arc::new(HandClock::default()));
    let folder = file.path().join("policies");
    let error = Watch::start(folder.clone(), desk, Arc::new(HandClock::default())).unwrap_err();
    assert!(
        matches!(&error, WatchError::Folder { path, .. } if *path == folder),
        "{error}"
    );
}

#[test]
fn only_a_rename_into_place_counts_as_one_and_reading_wakes_nobody() {
    use notify::event::{CreateKind, DataChange};
    let worth_of = |kind| worth(notify::Event::new(kind).add_path(Path::new("p").to_owned()));
    let to = EventKind::Modify(ModifyKind::Name(RenameMode::To));
    assert!(matches!(worth_of(to), Some(Wake::Renamed(paths)) if paths == [Path::new("p")]));
    let from = EventKind::Modify(ModifyKind::Name(RenameMode::From));
    let written = EventKind::Modify(ModifyKind::Data(DataChange::Any));
    for kind in [from, written, EventKind::Create(CreateKind::File)] {
        assert!(matches!(worth_of(kind), Some(Wake::Look)), "{kind:?}");
    }
    assert!(worth_of(EventKind::Access(AccessKind::Open(AccessMode::Any))).is_none());
    assert!(worth_of(EventKind::Access(AccessKind::Close(AccessMode::Read))).is_none());
}

#[test]
fn a_signature_beside_the_component_goes_along() {
    let mut bench = Bench::ruled(|desk| {
        desk.demanding(Arc::new(FakeSignatures {
            trusted: vec!["a".repeat(16), "b".repeat(16)],
        }))
    });
    let line = |key: &str| {
        format!(
            "portolan-signature-1 ed25519 {} {}\n",
            key.repeat(16),
            "1".repeat(128)
        )
    };
    bench.write("acme/routing.wasm", "ok:1");
    bench.settle();
    assert_eq!(bench.generation(), None);
    let report = bench.report("acme/routing.wasm.error").unwrap();
    assert!(report.contains("error[unsigned]"), "{report}");

    bench.write("acme/routing.wasm.sig", &line("a")[..60]);
    bench.settle();
    let report = bench.report("acme/routing.wasm.error").unwrap();
    assert!(report.contains("error[bad-signature]"), "{report}");

    bench.write("acme/routing.wasm.sig", &line("a"));
    bench.settle();
    assert_eq!(bench.generation(), Some(1), "the signature alone was mended");
    assert_eq!(bench.report("acme/routing.wasm.error"), None);

    bench.write("acme/routing.wasm.sig", &format!("{}{}", line("a"), line("b")));
    bench.settle();
    assert_eq!(bench.generation(), Some(1), "the same version stays bound");
    let version = bench.desk.versions(&routing()).unwrap().remove(0);
    assert_eq!(version.signatures.len(), 2, "a second signature is kept with it");
}

#[test]
fn under_four_eyes_a_platform_file_makes_one_proposal_and_a_tenants_file_is_bound() {
    let expiry = Duration::from_secs(3600);
    let mut bench = Bench::ruled(move |desk| desk.with_four_eyes(FourEyes { expiry }));
    bench.write("_platform/cost.wasm", "ok:1");
    bench.write("acme/routing.wasm", "ok:1");
    bench.settle();
    assert_eq!(bench.generation(), Some(1), "the tenant's");
    assert_eq!(bench.desk.list().unwrap().len(), 1);
    let states = |bench: &Bench| -> Vec<_> {
        let proposals = bench.desk.proposals().unwrap().into_iter();
        proposals
            .map(|(proposal, state)| (proposal.actor, state))
            .collect()
    };
    let pending = ("policy-folder".to_owned(), ProposalState::Pending);
    assert_eq!(states(&bench), std::slice::from_ref(&pending));
    assert_eq!(
        bench.report("_platform/cost.wasm.error"),
        None,
        "nothing is wrong with it"
    );

    bench.restart();
    bench.settle();
    assert_eq!(states(&bench), [pending], "a restart proposes nothing twice");

    let by = By::new("operator alice", "not now");
    bench.desk.decide(1, VerdictKind::Rejected, &by).unwrap();
    bench.restart();
    bench.settle();
    assert_eq!(
        states(&bench).len(),
        1,
        "what was rejected is not proposed by a restart"
    );
    bench.write("_platform/cost.wasm", "ok:2");
    bench.settle();
    assert_eq!(states(&bench).len(), 2, "another file is");
    bench.desk.decide(2, VerdictKind::Approved, &by).unwrap();
    assert_eq!(bench.desk.list().unwrap().len(), 2);
    bench.restart();
    bench.settle();
    assert_eq!(states(&bench).len(), 2, "it is active: nothing to propose");
}
