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
    assert_eq!(place_of_locks(&place, &[other]), "other-file");
    assert_eq!(place_of_locks(&place, &[other, ("TENURE_URL", "file:variable")]), "variable");
    let mut run = place.tenure(&["run", "--url", "file:option", "job", "--", "true"]);
    Done::of(&run.env("TENURE_URL", "file:variable").output().unwrap()).expect(0, "");
    assert!(place.path("option").exists() && !place.path("variable").exists());
}

/// An empty setting is a secret that was not found: the default in its place would lock less.
#[test]
fn an_empty_setting_is_refused_and_nothing_is_run() {
    let place = Place::new();
    let url = "name an engine, as in redis://host:6379";
    let config = "name a configuration file";
    for empty in ["", " ", "\t\n"] {
        for (variable, option, said) in [("TENURE_URL", "--url", url), ("TENURE_CONFIG", "--config", config)]
        {
            let mut run = place.tenure(&["run", "--once-per", "1d", "job", "--", "echo", "ran"]);
            let run = Done::of(&run.env_remove("TENURE_URL").env(variable, empty).output().unwrap());
            assert_eq!(run.expect(64, &format!("{variable} is empty: {said}")).out, "");
            let mut run = place.tenure(&["run", option, empty, "job", "--", "echo", "ran"]);
            let run = Done::of(&run.env_remove("TENURE_URL").output().unwrap());
            assert_eq!(run.expect(64, &format!("{option} is empty: {said}")).out, "");
        }
        std::fs::write(place.path("empty.toml"), format!("url = {empty:?}\n")).unwrap();
        let mut run = place.tenure(&["run", "--config", "empty.toml", "job", "--", "echo", "ran"]);
        assert_eq!(Done::of(&run.env_remove("TENURE_URL").output().unwrap()).expect(64, "").out, "");
    }
    for command in
        [vec!["ls"], vec!["who", "job"], vec!["watch", "job"], vec!["break", "job"], vec!["migrate"]]
    {
        Done::of(&place.tenure(&command).env("TENURE_URL", "").output().unwrap())
            .expect(64, "TENURE_URL is empty");
    }
    // An option is nearer than a variable, and what needs no engine does not ask for one.
    let named = format!("--url={}", place.url());
    for command in [vec!["ls", &named], vec!["completions", "bash"], vec!["--help"]] {
        Done::of(&place.tenure(&command).env("TENURE_URL", "").output().unwrap()).expect(0, "");
    }
}

#[test]
fn a_url_with_a_line_break_behind_it_is_refused_and_not_printed() {
    let place = Place::new();
    let mut run = place.tenure(&["run", "job", "--", "echo", "ran"]);
    let run = Done::of(&run.env("TENURE_URL", "redis://user:secret@127.0.0.1\n").output().unwrap());
    let run = run.expect(64, "begins or ends with a blank or a line break");
    assert!(run.out.is_empty() && !run.err.contains("secret"), "{run:?}");
}

/// Eight servers with the default engine send eight messages: that must not come as a surprise.
#[test]
fn once_per_on_the_default_engine_says_that_it_covers_one_host() {
    let place = Place::new();
    let run = |options: &[&str]| {
        let mut run = place.tenure(&[&["run"], options, &["--once-per", "1m", "job", "--", "true"]].concat());
        Done::of(&run.env_remove("TENURE_URL").output().unwrap())
    };
    let said = "on this host only, since no engine is named";
    run(&[]).expect(0, said).expect(0, "name one with --url or TENURE_URL");
    run(&[]).expect(0, said);
    std::fs::write(place.path("file.toml"), "url = \"file:\"\n").unwrap();
    for silent in [["--url", "file:"].as_slice(), &["-q"], &["--config", "file.toml"]] {
        let done = run(silent).expect(0, "");
        assert!(!done.err.contains(said), "{silent:?}: {}", done.err);
    }
    let mut lock = place.tenure(&["run", "job", "--", "true"]);
    assert_eq!(
        Done::of(&lock.env_remove("TENURE_URL").output().unwrap()).err,
        "",
        "a lock alone is not a surprise"
    );
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
    std::fs::write(place.path("c.toml"), "wait = \"2s\"\nlabel = \"night shift\"\n").unwrap();
    let mut holder =
        place.start(&["run", "--config", "c.toml", "--wait", "1m", "job", "--", "sleep", "1000"]);
    tenure_testkit::eventually("it to be held", || place.is_held("job"));
    let done = place.run(&["run", "--config", "c.toml", "job", "--", "true"]).expect(75, "within 2s");
    assert!(done.err.contains("held by night shift (pid "), "{}", done.err);
    holder.kill();
}
