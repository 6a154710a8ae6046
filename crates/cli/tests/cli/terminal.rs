//! At a terminal: who has the foreground, what the keys do, and what one sees.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};

use tenure_testkit::{Terminal, eventually};

use crate::place::{Place, is_alive};

/// A shell with job control.
fn shell(place: &Place) -> Terminal {
    let mut bash: Command = place.program("bash");
    bash.args(["--norc", "--noprofile", "-i"]).env("PS1", "ready> ");
    let mut terminal = Terminal::start(&bash);
    terminal.wait_for("ready> ");
    terminal
}

fn died_of_ctrl_c(status: ExitStatus) -> bool {
    status.signal() == Some(rustix::process::Signal::INT.as_raw())
}

#[test]
fn a_command_reads_from_the_terminal() {
    let place = Place::new();
    let script = "read line; echo \"<$line>\"";
    let mut terminal = Terminal::start(&place.tenure(&["run", "job", "--", "sh", "-c", script]));
    terminal.type_keys("hello\n");
    terminal.wait_for("<hello>");
    assert_eq!(terminal.wait().code(), Some(0));
}

#[test]
fn a_command_in_a_pipeline_reads_from_the_terminal() {
    let place = Place::new();
    let mut terminal = shell(&place);
    terminal.type_keys("tenure run job -- sh -c 'read line; echo \"<$line>\"' | cat\n");
    terminal.type_keys("hello\n");
    terminal.wait_for("<hello>");
    terminal.wait_for("ready> ");
}

#[test]
fn ctrl_c_ends_the_command_and_all_that_it_started() {
    let place = Place::new();
    let script = "sh -c 'trap \"\" INT; echo $$ >> pids; while :; do sleep 1; done' & echo $$ >> pids; echo started; wait";
    let run = ["run", "--grace", "100ms", "job", "--", "sh", "-c", script];
    let mut terminal = Terminal::start(&place.tenure(&run));
    terminal.wait_for("started");
    let pids = eventually("both", || Some(place.numbers("pids")).filter(|pids| pids.len() == 2));
    terminal.type_keys("\x03");
    assert!(died_of_ctrl_c(terminal.wait()));
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "{pids:?}");
    assert!(!place.is_held("job"));
}

/// A shell goes on with its script, or its loop, unless what it ran died of the signal.
#[test]
fn ctrl_c_ends_the_script_around_it_too() {
    // No shell: one that is about to start a program takes the key for that program's, which never hears of it.
    let command = "tenure run job -- perl -e 'syswrite STDERR, qq(started\\n); sleep'";
    let runs = [
        command,
        &format!("{command} | cat"),
        &format!("tenure run outer -- bash -c \"{command}; echo went on\""),
        "tenure run held -- true; echo started; tenure run busy -- true",
    ];
    for shell in ["sh", "bash"] {
        for run in runs {
            let place = Place::new();
            let _holder = place.hold("busy");
            let mut script = place.program(shell);
            script.args(["-c", &format!("{run}; echo went on")]);
            let mut terminal = Terminal::start(&script);
            terminal.wait_for("started");
            if run.ends_with("busy -- true") {
                eventually("it to wait", || place.waiters("busy") == 1);
            }
            terminal.type_keys("\x03");
            terminal.wait();
            assert!(!terminal.shown().contains("went on"), "{shell}: {run}\n{}", terminal.shown());
        }
    }
}

#[test]
fn ctrl_c_that_the_command_handles_is_the_commands() {
    let place = Place::new();
    let script = "trap 'echo not yet' INT; echo started; read line; echo \"<$line>\"";
    let mut terminal = Terminal::start(&place.tenure(&["run", "job", "--", "bash", "-c", script]));
    terminal.wait_for("started");
    terminal.type_keys("\x03");
    terminal.wait_for("not yet");
    terminal.type_keys("now\n");
    terminal.wait_for("<now>");
    assert_eq!(terminal.wait().code(), Some(0));
}

#[test]
fn ctrl_z_stops_it_with_the_lock_and_fg_continues_it() {
    let place = Place::new();
    let mut terminal = shell(&place);
    terminal
        .type_keys("tenure run job -- sh -c 'echo $$ > pid; while read line; do echo \"<$line>\"; done'\n");
    terminal.type_keys("one\n");
    terminal.wait_for("<one>");
    terminal.type_keys("\x1a");
    terminal.wait_for("Stopped");
    terminal.wait_for("ready> ");
    terminal.type_keys("echo shell-$((6 * 7))\n");
    terminal.wait_for("shell-42");
    assert!(place.is_held("job"));
    place.run(&["run", "--no-wait", "job", "--", "true"]).expect(75, "held by sh");
    terminal.type_keys("fg\n");
    terminal.type_keys("two\n");
    terminal.wait_for("<two>");
    // And once more.
    terminal.type_keys("\x1a");
    terminal.wait_for("Stopped");
    terminal.type_keys("fg\n");
    terminal.type_keys("three\n");
    terminal.wait_for("<three>");
    terminal.type_keys("\x04");
    terminal.wait_for("ready> ");
    terminal.type_keys("echo code-$?\n");
    terminal.wait_for("code-0");
    assert!(!place.is_held("job"));
}

/// A stopped job must not wake up and go on after its lock is gone.
#[test]
fn a_job_that_was_stopped_for_too_long_is_killed_and_not_continued() {
    let place = Place::new();
    let mut terminal = shell(&place);
    let script = "trap '' TERM; echo $$ > pid; echo started; read line; echo went on > went-on";
    std::fs::write(place.path("job.sh"), script).unwrap();
    terminal.type_keys("tenure run --max-hold 15s --grace 1s job -- sh job.sh\n");
    terminal.wait_for("started");
    terminal.type_keys("\x1a");
    terminal.wait_for("Stopped");
    let pid = place.numbers("pid")[0];
    eventually("it to be killed", || !is_alive(pid));
    terminal.type_keys("fg\n");
    terminal.wait_for("the lock on `job` is lost");
    terminal.wait_for("ready> ");
    terminal.type_keys("echo code-$?\n");
    terminal.wait_for("code-76");
    assert!(!place.path("went-on").exists());
}

/// Its end must not take the terminal from whoever has it now.
#[test]
fn a_job_that_was_sent_to_the_background_ends_there() {
    let place = Place::new();
    let mut terminal = shell(&place);
    // It starts no program that Ctrl-Z could stop before its `exec`: a `vfork` does not return before that, and the job would never stop.
    assert!(place.program("mkfifo").arg("go").status().unwrap().success());
    std::fs::write(place.path("job.sh"), "echo started; read line < go; kill -9 $$").unwrap();
    terminal.type_keys("tenure run job -- sh job.sh\n");
    terminal.wait_for("started");
    terminal.type_keys("\x1a");
    terminal.wait_for("Stopped");
    terminal.type_keys("bg\n");
    terminal.wait_for("ready> ");
    std::fs::write(place.path("cat.sh"), "echo here; exec cat").unwrap();
    terminal.type_keys("sh cat.sh\n");
    terminal.wait_for("here");
    terminal.type_keys("one\n");
    terminal.wait_for("one\r\none");
    std::fs::write(place.path("go"), "go\n").unwrap();
    eventually("it to end", || !place.is_held("job"));
    terminal.type_keys("two\n");
    terminal.wait_for("two\r\ntwo");
}

#[test]
fn a_stopped_job_that_the_shell_ends_leaves_the_shell_its_terminal() {
    let place = Place::new();
    let mut terminal = shell(&place);
    std::fs::write(place.path("job.sh"), "echo started; read line").unwrap();
    terminal.type_keys("tenure run job -- sh job.sh\n");
    terminal.wait_for("started");
    terminal.type_keys("\x1a");
    terminal.wait_for("Stopped");
    terminal.type_keys("kill %1\n");
    eventually("it to end", || !place.is_held("job"));
    terminal.type_keys("echo shell-$((6 * 7))\n");
    terminal.wait_for("shell-42");
}

#[test]
fn a_job_in_the_background_that_wants_the_terminal_waits_for_fg() {
    let place = Place::new();
    let mut terminal = shell(&place);
    terminal.type_keys("tenure run job -- sh -c 'read line; echo \"<$line>\"' &\n");
    eventually("it to be held", || place.is_held("job"));
    // The shell says so when it is asked for the next line.
    eventually("it to stop", || {
        terminal.type_keys("\n");
        terminal.shown().contains("Stopped")
    });
    terminal.type_keys("fg\n");
    terminal.type_keys("hello\n");
    terminal.wait_for("<hello>");
    eventually("it to be free", || !place.is_held("job"));
}

#[test]
fn a_job_that_the_shell_kills_takes_its_command_with_it() {
    let place = Place::new();
    let mut terminal = shell(&place);
    terminal.type_keys("tenure run job -- sh -c 'sleep 1000 & echo $! > pid; wait' &\n");
    let pid = eventually("it to start", || place.numbers("pid").first().copied());
    terminal.type_keys("kill -9 %1\n");
    eventually("it to be gone", || !is_alive(pid));
    eventually("it to be free", || !place.is_held("job"));
}

#[test]
fn who_waits_sees_for_whom() {
    let place = Place::new();
    let holder = place.hold("job");
    let mut terminal = Terminal::start(&place.tenure(&["run", "job", "--", "echo", "my turn"]));
    terminal.wait_for("waiting for `job` for ");
    terminal.wait_for(&format!("held by sleep (pid {} on ", holder.pid()));
    drop(holder);
    terminal.wait_for("my turn");
    assert_eq!(terminal.wait().code(), Some(0));
}

/// Redrawn in place, cut to the width of the terminal, and erased at the end.
#[test]
fn the_waiting_line_is_one_line() {
    let wait_at = |columns: u16, label: &str| {
        let place = Place::new();
        let holder = place.start(&["run", "--label", label, "job", "--", "sleep", "1000"]);
        eventually("the lock to be held", || place.is_held("job"));
        let waiter = place.tenure(&["run", "job", "--", "echo", "my turn"]);
        let mut terminal = Terminal::start_with_columns(columns, &waiter);
        for _ in 0..6 {
            terminal.wait_for("waiting for `job` for ");
            let screen = terminal.screen();
            assert_eq!(screen.len(), 1, "{columns} columns, {label}: {screen:#?}");
        }
        drop(holder);
        assert_eq!(terminal.wait().code(), Some(0));
        eventually("the line to be erased", || terminal.screen() == ["my turn"]);
    };
    std::thread::scope(|scope| {
        for columns in [30, 50, 100, 200] {
            for label in ["job", "夜間バッチ処理の長い名前"] {
                scope.spawn(move || wait_at(columns, label));
            }
        }
    });
}

/// A message does not end up in the middle of the line, nor on top of it.
#[test]
fn a_message_takes_the_place_of_the_waiting_line() {
    let place = Place::new();
    let holder = place.hold("job");
    let waiter = place.tenure(&["run", "-v", "job", "--", "echo", "my turn"]);
    let mut terminal = Terminal::start(&waiter);
    terminal.wait_for("waiting for `job` for 1s");
    drop(holder);
    assert_eq!(terminal.wait().code(), Some(0));
    eventually("all of it", || terminal.screen().len() == 4);
    let screen = terminal.screen();
    for (line, start) in screen.iter().zip([
        "tenure: the lock `job` is at file:",
        "tenure: got `job`",
        "my turn",
        "tenure: released `job`",
    ]) {
        assert!(line.starts_with(start), "{screen:#?}");
    }
}

#[test]
fn who_is_interrupted_while_it_waits_goes_at_once() {
    let place = Place::new();
    let _holder = place.hold("job");
    let mut terminal = Terminal::start(&place.tenure(&["run", "job", "--", "echo", "my turn"]));
    terminal.wait_for("waiting for `job`");
    terminal.type_keys("\x03");
    assert!(died_of_ctrl_c(terminal.wait()));
    assert_eq!(place.waiters("job"), 0);
}

#[test]
fn a_command_that_is_killed_leaves_the_terminal_as_it_was() {
    let place = Place::new();
    let mut terminal = shell(&place);
    terminal.type_keys("tenure run job -- sh -c 'stty -echo raw; kill -9 $$'; stty -a\n");
    terminal.wait_for(" icanon ");
    terminal.wait_for(" echo ");
}

#[test]
fn lists_are_tables() {
    let place = Place::new();
    let _holder = place.hold("orders/42");
    let mut terminal = Terminal::start(&place.tenure(&["ls"]));
    for text in ["LOCK", "MODE", "HELD BY", "orders/42", "EX", "sleep (pid "] {
        terminal.wait_for(text);
    }
    let mut terminal = Terminal::start(&place.tenure(&["who", "orders/42"]));
    for text in ["WHO", "holds", "EX", "sleep (pid "] {
        terminal.wait_for(text);
    }
    let mut terminal = Terminal::start(&place.tenure(&["who", "another"]));
    terminal.wait_for("`another` is free");
    assert_eq!(terminal.wait().code(), Some(1));
    let mut terminal = Terminal::start(&place.tenure(&["ls", "nothing"]));
    terminal.wait_for("no lock is held or waited for");
}

#[test]
fn a_command_that_was_told_to_end_leaves_the_terminal_as_it_was() {
    let place = Place::new();
    let mut terminal = shell(&place);
    let script = "trap 'exit 0' TERM; stty -echo -icanon; echo started; while :; do sleep 0.05; done";
    std::fs::write(place.path("raw.sh"), script).unwrap();
    terminal.type_keys("tenure run job -- sh raw.sh; stty -a\n");
    terminal.wait_for("started");
    let pid = place.client().inspect("job").unwrap().holders[0].pid.unwrap();
    crate::place::signal(pid.cast_signed(), rustix::process::Signal::TERM);
    terminal.wait_for(" icanon ");
    terminal.wait_for(" echo ");
}

/// There is no shell that could ever give it the terminal: it is not stopped and continued for ever, but hung up.
#[test]
fn a_command_without_a_shell_does_not_wait_for_the_terminal_for_ever() {
    let place = Place::new();
    let mut terminal = shell(&place);
    let script = "tenure run job -- sh -c 'echo > started; read line < /dev/tty' &";
    std::fs::write(place.path("orphan.sh"), script).unwrap();
    terminal.type_keys("sh orphan.sh\n");
    eventually("it to start", || place.path("started").exists());
    eventually("it to end", || !place.is_held("job"));
}
