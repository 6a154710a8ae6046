//! The picture in the README: two servers start one job, and it runs on one after the other. It is drawn from a real run:
//!
//! ```sh
//! TENURE_PICTURE=docs/images/run.svg cargo test --package tenure-cli --test cli picture
//! ```
//!
//! Root is needed to draw it, since each terminal has a host name of its own.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use tenure::clock::BootTime;
use tenure_testkit::Terminal;

use crate::place::Place;

const COLUMNS: u16 = 84;
const ROWS: usize = 7;
const HOSTS: [&str; 2] = ["web-1", "web-2"];
const WAITS: &str = "waiting for `nightly-report`";
const COMMAND: &str = "tenure run nightly-report -- ./report";

/// How long the last frame stays.
const REST: Duration = Duration::from_secs(3);

/// What both terminals show, from an instant on.
struct Frame {
    at: Duration,
    screens: [Vec<String>; 2],
}

/// Types one key after the other, and takes in frames meanwhile.
struct Recording {
    began: BootTime,
    terminals: [Terminal; 2],
    frames: Vec<Frame>,
}

impl Recording {
    fn look(&mut self) {
        let screens = [&self.terminals[0], &self.terminals[1]].map(|terminal| {
            let mut lines = terminal.screen();
            lines.drain(..lines.len().saturating_sub(ROWS));
            lines
        });
        if self.frames.last().is_none_or(|last| last.screens != screens) {
            self.frames.push(Frame { at: BootTime::now().since(self.began), screens });
        }
    }

    fn look_for(&mut self, time: Duration) {
        let ends = BootTime::now() + time;
        while BootTime::now() < ends {
            self.look();
            std::thread::sleep(Duration::from_millis(40));
        }
    }

    fn type_command(&mut self, at: usize) {
        for key in COMMAND.chars() {
            self.terminals[at].type_keys(&key.to_string());
            self.look_for(Duration::from_millis(40));
        }
        self.terminals[at].type_keys("\n");
    }

    fn shows(&self, at: usize, text: &str) -> bool {
        self.frames.iter().any(|frame| frame.screens[at].iter().any(|line| line.contains(text)))
    }
}

fn record(draw: bool) -> Recording {
    let place = Place::new();
    // It does not end before the other one was seen to wait.
    let script = "#!/bin/sh\nfor page in 1 2 3; do sleep 1; echo \"page $page of 3\"; done\nuntil [ -e seen ]; do sleep 0.1; done\n";
    std::fs::write(place.path("report"), script).unwrap();
    let terminals = HOSTS.map(|host| {
        let shell = "exec bash --norc --noprofile -i";
        let (program, shell) =
            if draw { ("unshare", format!("hostname {host}; {shell}")) } else { ("env", shell.to_owned()) };
        let mut command = place.program(program);
        if draw {
            command.arg("--uts");
        }
        command.args(["sh", "-c", &format!("chmod +x report; {shell}")]).env("PS1", format!("{host}$ "));
        let mut terminal = Terminal::start_with_columns(COLUMNS, &command);
        terminal.wait_for(&format!("{host}$ "));
        terminal
    });
    let mut recording = Recording { began: BootTime::now(), terminals, frames: Vec::new() };
    recording.look_for(Duration::from_millis(400));
    recording.type_command(0);
    recording.look_for(Duration::from_millis(300));
    recording.type_command(1);
    let patience = BootTime::now() + Duration::from_mins(1);
    while !(recording.shows(0, "page 3") && recording.shows(1, "page 3")) {
        if recording.shows(1, WAITS) {
            std::fs::write(place.path("seen"), "").unwrap();
        }
        assert!(BootTime::now() < patience, "{:#?}", recording.frames.last().map(|last| &last.screens));
        recording.look_for(Duration::from_millis(40));
    }
    recording.look_for(Duration::from_millis(400));
    recording
}

/// An animation that browsers play by themselves: each frame is visible for its time.
fn svg(frames: &[Frame]) -> String {
    const LINE: usize = 18;
    const PANE: usize = ROWS * LINE + 36;
    let whole = frames.last().map(|last| last.at).unwrap_or_default() + REST;
    let percent = |at: Duration| 100.0 * at.as_secs_f64() / whole.as_secs_f64();
    let (width, height) = (usize::from(COLUMNS) * 8 + 40, 2 * PANE + 16);
    let (mut style, mut body) = (String::new(), String::new());
    for (number, frame) in frames.iter().enumerate() {
        let (from, to) = (percent(frame.at), frames.get(number + 1).map_or(100.0, |next| percent(next.at)));
        let _ = writeln!(
            style,
            "@keyframes f{number}{{0%{{visibility:hidden}}{from:.2}%{{visibility:visible}}{to:.2}%{{visibility:{}}}}}\n#f{number}{{animation-name:f{number}}}",
            if number + 1 == frames.len() { "visible" } else { "hidden" },
        );
        let _ = writeln!(body, "<g id=\"f{number}\" class=\"frame\">");
        for (pane, lines) in frame.screens.iter().enumerate() {
            for (row, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
                let y = pane * (PANE + 16) + 44 + row * LINE;
                let text = line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
                let _ = writeln!(body, "<text x=\"20\" y=\"{y}\" xml:space=\"preserve\">{text}</text>");
            }
        }
        let _ = writeln!(body, "</g>");
    }
    let mut panes = String::new();
    for (pane, host) in HOSTS.iter().enumerate() {
        let y = pane * (PANE + 16);
        let _ = writeln!(
            panes,
            "<rect y=\"{y}\" width=\"{width}\" height=\"{PANE}\" rx=\"8\" fill=\"#1b1f27\"/>\n<text x=\"20\" y=\"{}\" class=\"title\">{host}</text>",
            y + 20
        );
    }
    let last = frames.len().saturating_sub(1);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"Two servers run {COMMAND}: the second one waits for the first\">
<style>
text{{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d7dce5}}
.title{{fill:#8a94a6}}
.frame{{visibility:hidden;animation-duration:{:.1}s;animation-iteration-count:infinite;animation-timing-function:step-end}}
{style}@media (prefers-reduced-motion:reduce){{.frame{{animation:none}}#f{last}{{visibility:visible}}}}
</style>
{panes}{body}</svg>
",
        whole.as_secs_f64()
    )
}

#[test]
fn the_picture_in_the_readme_is_of_a_real_run() {
    let file = std::env::var_os("TENURE_PICTURE").map(PathBuf::from);
    let recording = record(file.is_some());
    assert!(recording.shows(1, WAITS) && !recording.shows(0, WAITS));
    let drawn = svg(&recording.frames);
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    if let Some(file) = file {
        // The test runs in the folder of its package.
        std::fs::write(root.join(file), &drawn).unwrap();
    }
    let picture = std::fs::read_to_string(root.join("docs/images/run.svg")).unwrap();
    for text in [WAITS, ": held by report (pid ", "page 3 of 3", COMMAND] {
        assert!(
            picture.contains(text) && drawn.contains(text),
            "the picture shows {text:?} no longer: draw it anew"
        );
    }
}
