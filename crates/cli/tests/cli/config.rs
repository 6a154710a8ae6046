//! Which engine: what is said on the command line, then in the environment, then in a file.

use crate::place::{Done, Place};

/// Where a run's lock ended up, with this command line and these variables.
fn place_of_locks(place: &Place, variables: &[(&str, &str)]) -> String {
    let mut command = place.tenure(&["run", "job", "--", "true"]);
    command.env_remove("TENURE_URL").envs(variables.iter().copied());
    Done::of(&command.output().unwrap()).expect(0, "");
    let found: Vec<_> = ["option", "variable", "file", "other-file", ".local/state/tenure/locks"]
        .into_iter()
        .filter(|folder| std::fs::remove_dir_all(place.path(folder)).is_ok())
        .collect();
    found.join(" ")
}

#[test]
fn the_nearest_word_on_the_engine_counts() {
    let place = Place::new();
    assert_eq!(place_of_locks(&place, &[]), ".local/state/tenure/locks");
    std::fs::create_dir_all(place.path(".config/tenure")).unwrap();
    std::fs::write(place.path(".config/tenure/config.toml"), "url = \"file:file\"\n").unwrap();
    std::fs::write(place.path("other.toml"), "url = \"file:other-file\"\nttl = \"5s\"\n").unwrap();
    let other = ("TENURE_CONFIG", "other.toml");
    assert_eq!(place_of_locks(&place, &[]), "file");
    assert_eq!(place_of_locks(&place, &[("TENURE_URL", ""), ("TENURE_CONFIG", "")]), "file");
    assert_eq!(place_of_locks(&place, &[other]), "other-file");
    assert_eq!(place_of_locks(&place, &[other, ("TENURE_URL", "file:variable")]), "variable");
    let mut run = place.tenure(&["run", "--url", "file:option", "job", "--", "true"]);
    Done::of(&run.env("TENURE_URL", "file:variable").output().unwrap()).expect(0, "");
    assert!(place.path("option").exists() && !place.path("variable").exists());
}

#[test]
fn a_lock_that_no_other_run_would_meet_is_refused() {
    let place = Place::new();
    std::fs::write(place.path("memory.toml"), "url = \"memory:jobs\"\n").unwrap();
    for url in ["memory:", "memory:jobs"] {
        let done = place.run(&["run", "--url", url, "job", "--", "echo", "ran"]);
        let done = done.expect(64, "use file: for the processes of this host");
        assert_eq!(done.out, "", "what is not locked is not run");
    }
    let mut run = place.tenure(&["run", "job", "--", "echo", "ran"]);
    let run = Done::of(&run.env("TENURE_URL", "memory:").output().unwrap());
    assert_eq!(run.expect(64, "locks within one process").out, "");
    for command in [vec!["ls"], vec!["who", "job"], vec!["break", "job"], vec!["migrate"]] {
        let arguments: Vec<_> = command.into_iter().chain(["--config", "memory.toml"]).collect();
        let mut command = place.tenure(&arguments);
        // A name in it is no better.
        Done::of(&command.env_remove("TENURE_URL").output().unwrap())
            .expect(64, "`memory:jobs` locks within one process");
    }
}

#[test]
fn a_bad_file_is_named_and_what_is_wrong_in_it() {
    let place = Place::new();
    std::fs::write(place.path("bad.toml"), "url = \"file:x\"\nttl = \"90\"\n").unwrap();
    let done = place.run(&["ls", "--config", "bad.toml"]).expect(64, "bad.toml: ");
    assert!(done.err.contains("line 2") && done.err.contains("Write 90s for seconds"), "{}", done.err);
    place.run(&["ls", "--config", "none.toml"]).expect(64, "there is no configuration file none.toml");
    std::fs::write(place.path("typo.toml"), "tll = \"90s\"\n").unwrap();
    place.run(&["ls", "--config", "typo.toml"]).expect(64, "unknown field `tll`, expected one of");
}

#[test]
fn a_file_gives_what_was_not_said() {
    let place = Place::new();
    std::fs::write(place.path("c.toml"), "wait = \"10ms\"\nlabel = \"night shift\"\n").unwrap();
    let mut holder = place.start(&["run", "--config", "c.toml", "job", "--", "sleep", "1000"]);
    tenure_testkit::eventually("it to be held", || place.is_held("job"));
    let done = place.run(&["run", "--config", "c.toml", "job", "--", "true"]).expect(75, "within 10ms");
    assert!(done.err.contains("held by night shift (pid "), "{}", done.err);
    holder.kill();
}
