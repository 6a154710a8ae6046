//! The rules of `docs/lock-table.md`, told as stories and played on the real table.
//!
//! The stories are in `scripts/*.txt`. A block is one or more commands, the line `----`, and what came out, up to an empty
//! line. A line that starts with `===` begins a story: a new table, the rules that it tells, and its title. `#` starts a
//! comment. Sessions, owners and grants are words, which stand for ids.
//!
//! `TENURE_SCRIPTS=write cargo test -p tenure-table --test scripts` writes what came out into the scripts. **Read the diff**
//! after it: it is the rules that say what is right, and not the table.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::{env, fs};

use tenure_table::{
    Acquire, AcquireAll, Answer, Behind, Break, Command, CycleMember, DelayView, Effect, GrantId, Granted,
    Item, Limits, Link, LockName, Mode, ModeError, Outcome, OwnerId, Refusal, Request, ResourceView,
    SessionEnd, SessionId, SessionView, Table, Value, Wait,
};

#[test]
fn every_story_ends_as_it_is_told() {
    let mut complaints = Vec::new();
    for (path, text) in scripts() {
        let played = play(&path, &text, Snapshots::Asked);
        if writes() && played.complaints.iter().all(|complaint| complaint.is_difference) {
            fs::write(folder().join(path), played.text).unwrap();
        } else {
            complaints.extend(played.complaints);
        }
    }
    fail_if_any(&complaints);
}

/// No command may depend on anything that is not in a snapshot.
#[test]
fn every_story_ends_so_if_the_table_is_restored_after_each_command() {
    if writes() {
        return; // The scripts are being written.
    }
    let played = scripts().map(|(path, text)| play(&path, &text, Snapshots::Always));
    fail_if_any(&played.flat_map(|played| played.complaints).collect::<Vec<_>>());
}

#[test]
fn every_rule_has_its_story() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lock-table.md");
    let page = fs::read_to_string(page).unwrap();
    let numbered = page.lines().filter_map(|line| line.split_once(". ")).map(|(number, _)| number);
    let mut rules: BTreeSet<_> =
        numbered.filter(|number| number.parse::<u32>().is_ok()).map(str::to_owned).collect();
    assert!(rules.len() >= 30, "the rules are not found any more");
    // These have no numbers.
    rules.extend(["limits", "views"].map(str::to_owned));
    let told: BTreeSet<_> = scripts().flat_map(|(_, text)| rules_told(&text)).collect();
    assert_eq!(rules, told, "the rules of the page, and those that are told");
}

#[test]
fn a_script_that_is_wrong_is_refused_with_its_place() {
    let complaint = |text: &str| {
        let played = play("x.txt", text, Snapshots::Asked);
        assert_eq!(played.complaints.len(), 1, "{text}");
        played.complaints[0].text.clone()
    };
    assert!(
        complaint("=== 1: t\nopen s1\nshut s1\n----\n").contains("x.txt:3: `shut s1`: unknown word `shut`")
    );
    assert!(
        complaint("=== 1: t\nopen s1\nkeep s2\n----\n").contains("x.txt:3: `keep s2`: unknown session `s2`")
    );
    assert!(complaint("=== 1: t\nopen s1 quickly=1\n----\nx\n").contains("unknown word `quickly=1`"));
    assert!(complaint("=== 1: t\n\nopen s1\n").contains("x.txt:3: nothing is said to come of it"));
    assert!(complaint("=== 1: t\n\nopen s1\n----\n\n").contains("x.txt:3: nothing is said to come of it"));
    assert!(complaint("open s1\n----\ns1 open, epoch 1\n").contains("x.txt:1: no story has begun"));
    let difference = complaint("=== 1: t\n\nopen s1 s2\n----\ns1 open, epoch 1\ns2 open, epoch 7\n");
    assert!(difference.contains("x.txt:3: 1: t\n"), "{difference}");
    assert!(
        difference.contains("    s1 open, epoch 1\n  - s2 open, epoch 7\n  + s2 open, epoch 1\n"),
        "{difference}"
    );
}

/// Whether what came out is to be written into the scripts.
fn writes() -> bool {
    match env::var("TENURE_SCRIPTS") {
        Ok(what) => {
            what == "write" || panic!("TENURE_SCRIPTS={what}: the only thing that it can be is `write`")
        }
        Err(_) => false,
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts")
}

/// All scripts, in the order of their names.
fn scripts() -> impl Iterator<Item = (String, String)> {
    let files = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<_> =
        files.filter(|name| Path::new(name).extension() == Some("txt".as_ref())).collect();
    assert!(!files.is_empty(), "no scripts in {}", folder().display());
    files.sort();
    files.into_iter().map(|name| (name.clone(), fs::read_to_string(folder().join(name)).unwrap()))
}

/// The rules that the stories of a script name.
fn rules_told(text: &str) -> Vec<String> {
    let titles = text.lines().filter_map(|line| line.strip_prefix("=== "));
    let rules =
        titles.map(|title| title.split_once(": ").unwrap_or_else(|| panic!("`{title}` names no rule")).0);
    rules.flat_map(|rules| rules.split(", ").map(str::to_owned)).collect()
}

fn fail_if_any(complaints: &[Complaint]) {
    let all: Vec<_> = complaints.iter().map(|complaint| complaint.text.as_str()).collect();
    assert!(all.is_empty(), "{} blocks are not as they are told\n\n{}", all.len(), all.join("\n"));
}

/// When the table is written down and read back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Snapshots {
    /// When the script says `restore`.
    Asked,
    /// After each command.
    Always,
}

struct Played {
    /// The script with what came out.
    text: String,
    complaints: Vec<Complaint>,
}

struct Complaint {
    text: String,
    /// Something else came out, which may be written into the script. All else is a mistake in it.
    is_difference: bool,
}

fn play(file: &str, text: &str, snapshots: Snapshots) -> Played {
    let (mut out, mut complaints) = (Vec::new(), Vec::new());
    let mut complain = |line: usize, what: &str, is_difference| {
        complaints.push(Complaint { text: format!("{file}:{line}: {what}"), is_difference });
    };
    let mut title = "";
    let mut story = Err("no story has begun: a line `=== rule: title` begins one");
    let mut lines = (1..).zip(text.lines()).peekable();
    while let Some((at, line)) = lines.next() {
        out.push(line.to_owned());
        if let Some(heading) = line.strip_prefix("=== ") {
            title = heading;
            story = Ok(Story::new(snapshots));
        }
        if line.is_empty() || line.starts_with("===") || line.starts_with('#') {
            continue;
        }
        let mut commands = vec![(at, line)];
        while let Some(command) = lines.next_if(|(_, line)| !line.is_empty() && *line != "----") {
            out.push(command.1.to_owned());
            commands.push(command);
        }
        out.push("----".to_owned());
        let ruler = lines.next_if(|(_, line)| *line == "----");
        let mut told = Vec::new();
        while let Some((_, line)) = lines.next_if(|(_, line)| ruler.is_some() && !line.is_empty()) {
            told.push(line);
        }
        let came = match &mut story {
            Ok(story) => story.block(&commands),
            Err("") => continue,
            Err(why) => Err((at, (*why).to_owned())),
        };
        match came {
            Ok(came) => {
                if told.is_empty() {
                    complain(at, "nothing is said to come of it", true);
                } else if told != came {
                    complain(at, &format!("{title}\n{}", difference(&told, &came)), true);
                }
                out.extend(came);
            }
            Err((at, what)) => {
                complain(at, &what, false);
                // What comes after a mistake means nothing, up to the next story.
                story = Err("");
            }
        }
    }
    Played { text: out.join("\n") + "\n", complaints }
}

/// What was told and what came: the lines that are the same at the start and at the end, and what is between them in both.
fn difference(told: &[&str], came: &[String]) -> String {
    let same = told.iter().zip(came).take_while(|(a, b)| a == b).count();
    let (told_rest, came_rest) = (&told[same..], &came[same..]);
    let end = told_rest.iter().rev().zip(came_rest.iter().rev()).take_while(|(a, b)| a == b).count();
    let mut text = String::new();
    let mut put = |mark: char, line: &str| writeln!(text, "  {mark} {line}").unwrap();
    told[..same].iter().for_each(|line| put(' ', line));
    told_rest[..told_rest.len() - end].iter().for_each(|line| put('-', line));
    came_rest[..came_rest.len() - end].iter().for_each(|line| put('+', line));
    came_rest[came_rest.len() - end..].iter().for_each(|line| put(' ', line));
    text
}

/// Words that stand for ids: the first word is 1.
#[derive(Default)]
struct Words(Vec<String>);

impl Words {
    fn find(&self, word: &str) -> Option<u128> {
        Some(self.0.iter().position(|known| known == word)? as u128 + 1)
    }

    fn introduce(&mut self, word: &str) -> u128 {
        self.find(word).unwrap_or_else(|| {
            self.0.push(word.to_owned());
            self.0.len() as u128
        })
    }

    fn word(&self, id: u128) -> &str {
        &self.0[usize::try_from(id).unwrap() - 1]
    }
}

/// The words of a line that are not yet understood.
struct Line<'a>(Vec<&'a str>);

impl<'a> Line<'a> {
    fn next(&mut self, what: &str) -> Result<&'a str, String> {
        if self.0.is_empty() { Err(format!("{what} is missing")) } else { Ok(self.0.remove(0)) }
    }

    fn flag(&mut self, flag: &str) -> bool {
        let at = self.0.iter().position(|word| *word == flag);
        at.map(|at| self.0.remove(at)).is_some()
    }

    /// What is said as `name=…`.
    fn option(&mut self, name: &str) -> Option<&'a str> {
        let said = |word: &&'a str| word.strip_prefix(name)?.strip_prefix('=');
        let (at, value) = self.0.iter().enumerate().find_map(|(at, word)| Some((at, said(word)?)))?;
        self.0.remove(at);
        Some(value)
    }

    fn number(&mut self, name: &str, otherwise: u64) -> Result<u64, String> {
        self.option(name).map_or(Ok(otherwise), number)
    }

    /// Whose it is, if it is said as `by …`.
    fn owner(&mut self) -> Option<&'a str> {
        let at = self.0.iter().position(|word| *word == "by")?;
        let owner = *self.0.get(at + 1)?;
        self.0.drain(at..at + 2);
        Some(owner)
    }

    fn wait(&mut self) -> Wait {
        if self.flag("try") { Wait::Try } else { Wait::Queue }
    }

    fn done(self) -> Result<(), String> {
        self.0.first().map_or(Ok(()), |word| Err(format!("unknown word `{word}`")))
    }
}

fn number(word: &str) -> Result<u64, String> {
    word.parse().map_err(|_| format!("`{word}` is not a number"))
}

fn name(word: &str) -> Result<LockName, String> {
    LockName::parse(word).map_err(|error| error.to_string())
}

fn mode(word: &str) -> Result<Mode, String> {
    word.parse().map_err(|error: ModeError| error.to_string())
}

/// A table, and what its story calls everybody.
struct Story {
    table: Table,
    limits: Limits,
    sessions: Words,
    owners: Words,
    grants: Words,
    /// What was sent, with what the session had seen then: to be sent again, and to say what an answer is about.
    sent: BTreeMap<(SessionId, u64), (u64, Request)>,
    snapshots: Snapshots,
}

impl Story {
    fn new(snapshots: Snapshots) -> Self {
        let limits = Limits::default();
        Self {
            table: Table::new(limits),
            limits,
            sessions: Words::default(),
            owners: Words::default(),
            grants: Words::default(),
            sent: BTreeMap::new(),
            snapshots,
        }
    }

    /// Plays some lines. If one cannot be played, it says which.
    fn block(&mut self, lines: &[(usize, &str)]) -> Result<Vec<String>, (usize, String)> {
        let mut came = Vec::new();
        for (at, line) in lines.iter().filter(|(_, line)| !line.starts_with('#')) {
            // A table that panics does not end the test: whatever else is wrong is told too.
            let step = panic::catch_unwind(AssertUnwindSafe(|| self.step(line)));
            let step = step.unwrap_or_else(|_| Err("the table panics".to_owned()));
            came.extend(step.map_err(|what| (*at, format!("`{line}`: {what}")))?);
        }
        Ok(came)
    }

    /// Does what a line says, and tells what came of it.
    fn step(&mut self, line: &str) -> Result<Vec<String>, String> {
        let (head, items) = line.split_once(':').map_or((line, None), |(head, items)| (head, Some(items)));
        let mut line = Line(head.split_whitespace().collect());
        let verb = line.next("a command")?;
        if items.is_some() && verb != "all" {
            return Err("only `all` has items".to_owned());
        }
        let came = match verb {
            "open" => self.open(&mut line)?,
            "keep" => {
                let session = self.session(&mut line)?;
                self.apply(Command::KeepSession { session })?
            }
            "close" => {
                let session = self.session(&mut line)?;
                self.apply(Command::CloseSession { session })?
            }
            "expire" => {
                let (session, epoch) = (self.session(&mut line)?, number(line.next("an epoch")?)?);
                self.apply(Command::ExpireSession { session, epoch })?
            }
            "ack" => {
                let (session, number) = (self.session(&mut line)?, number(line.next("a number")?)?);
                self.apply(Command::Acknowledge { session, number })?
            }
            "end-delay" => {
                let grant = self.grant(&mut line)?;
                self.apply(Command::EndDelay { grant })?
            }
            "time" => {
                let mut came = self.apply(Command::AdvanceTime { to_ms: number(line.next("a time")?)? })?;
                came.push(format!("now {}", self.table.now_ms()));
                came
            }
            "limits" => self.limit(&mut line)?,
            "restore" => {
                self.restore()?;
                vec!["restored".to_owned()]
            }
            "again" => self.again(&mut line)?,
            "show" | "list" | "waits" | "sessions" | "delays" | "recall" | "token" => {
                self.look(verb, &mut line)?
            }
            _ => self.ask(verb, &mut line, items)?,
        };
        line.done()?;
        Ok(if came.is_empty() { vec!["nothing".to_owned()] } else { came })
    }

    fn apply(&mut self, command: Command) -> Result<Vec<String>, String> {
        let mut effects = Vec::new();
        self.table.apply(command, &mut effects);
        self.table.check().map_err(|what| format!("the table is not sound: {what}"))?;
        if self.snapshots == Snapshots::Always {
            self.restore()?;
        }
        Ok(effects.iter().flat_map(|effect| self.tell(effect)).collect())
    }

    fn restore(&mut self) -> Result<(), String> {
        let mut bytes = Vec::new();
        self.table.write_snapshot(&mut bytes).map_err(|error| error.to_string())?;
        let restored = Table::read_snapshot(bytes.as_slice()).map_err(|error| error.to_string())?;
        restored.check().map_err(|what| format!("the restored table is not sound: {what}"))?;
        if restored.state_hash() != self.table.state_hash() {
            return Err("the restored table has another hash".to_owned());
        }
        self.table = restored;
        Ok(())
    }

    fn session(&self, line: &mut Line<'_>) -> Result<SessionId, String> {
        let word = line.next("a session")?;
        let known = self.sessions.find(word).map(SessionId::from_u128);
        known.ok_or_else(|| format!("unknown session `{word}`"))
    }

    fn grant(&self, line: &mut Line<'_>) -> Result<GrantId, String> {
        let word = line.next("a grant")?;
        self.grants.find(word).map(GrantId::from_u128).ok_or_else(|| format!("unknown grant `{word}`"))
    }

    fn open(&mut self, line: &mut Line<'_>) -> Result<Vec<String>, String> {
        let (ttl_ms, label) = (line.number("ttl", 10_000)?, line.option("label"));
        let mut came = Vec::new();
        for word in std::mem::take(&mut line.0) {
            if word.contains('=') {
                return Err(format!("unknown word `{word}`"));
            }
            let session = SessionId::from_u128(self.sessions.introduce(word));
            let label = label.map(Into::into);
            came.extend(self.apply(Command::OpenSession { session, ttl_ms, label })?);
        }
        Ok(came)
    }

    fn limit(&mut self, line: &mut Line<'_>) -> Result<Vec<String>, String> {
        let limits = &mut self.limits;
        let all = [
            ("sessions", &mut limits.sessions),
            ("names", &mut limits.names),
            ("locks", &mut limits.locks_per_session),
            ("waiters", &mut limits.waiters_per_resource),
            ("items", &mut limits.items_per_request),
            ("answers", &mut limits.answers_per_session),
            ("name", &mut limits.name_bytes),
            ("label", &mut limits.label_bytes),
            ("value", &mut limits.value_bytes),
        ];
        for (name, limit) in all {
            *limit = u32::try_from(line.number(name, (*limit).into())?).map_err(|error| error.to_string())?;
        }
        self.apply(Command::SetLimits(self.limits))
    }

    /// A request of a session.
    fn ask(&mut self, verb: &str, line: &mut Line<'_>, items: Option<&str>) -> Result<Vec<String>, String> {
        if !["acquire", "all", "convert", "release", "cancel", "set", "remember", "break"].contains(&verb) {
            return Err(format!("unknown word `{verb}`"));
        }
        let session = self.session(line)?;
        let last = self.sent.keys().filter(|(whose, _)| *whose == session).map(|(_, number)| *number).max();
        let number = line.number("number", last.unwrap_or(0) + 1)?;
        let seen = line.number("seen", 0)?;
        let request = self.request(verb, line, items)?;
        // The first request of a number is the one that its answer is about.
        self.sent.entry((session, number)).or_insert_with(|| (seen, request.clone()));
        self.apply(Command::Request { session, number, seen, request })
    }

    fn again(&mut self, line: &mut Line<'_>) -> Result<Vec<String>, String> {
        let word = line.next("a request")?;
        let (session, asked) = word.split_once('#').ok_or_else(|| format!("`{word}` is not as `s1#1`"))?;
        let (session, number) = (self.session(&mut Line(vec![session]))?, number(asked)?);
        let sent = self.sent.get(&(session, number)).cloned();
        let (seen, request) = sent.ok_or_else(|| format!("unknown request `{word}`"))?;
        self.apply(Command::Request { session, number, seen, request })
    }

    fn request(&mut self, verb: &str, line: &mut Line<'_>, items: Option<&str>) -> Result<Request, String> {
        Ok(match verb {
            "acquire" => {
                let AcquireAll { owner, mut items, wait, label, lock_delay_ms, notify } =
                    self.several(line, None)?;
                let Item { grant, name, mode } = items.remove(0);
                Request::Acquire(Acquire { grant, name, mode, owner, wait, label, lock_delay_ms, notify })
            }
            "all" => Request::AcquireAll(self.several(line, Some(items.ok_or("the items are missing")?))?),
            "convert" => {
                let (wait, value) = (line.wait(), line.option("value").map(|value| value.to_owned().into()));
                Request::Convert { grant: self.grant(line)?, to: mode(line.next("a mode")?)?, wait, value }
            }
            "release" => {
                let value = line.option("value").map(|value| value.to_owned().into());
                Request::Release { grant: self.grant(line)?, value }
            }
            "cancel" => Request::Cancel { number: number(line.next("a number")?)? },
            "set" => {
                let grant = self.grant(line)?;
                Request::SetValue { grant, bytes: line.next("a value").unwrap_or("").to_owned().into() }
            }
            "remember" => {
                let (ago_ms, window_ms) = (line.number("ago", 0)?, line.number("window", 0)?);
                Request::Remember { grant: self.grant(line)?, ago_ms, window_ms }
            }
            "break" => {
                let name = name(line.next("a name")?)?;
                let how = match line.next("ask or force")? {
                    "ask" => Break::Ask,
                    "force" => Break::Force,
                    other => return Err(format!("`{other}` is neither `ask` nor `force`")),
                };
                Request::Break { name, how }
            }
            _ => return Err(format!("unknown word `{verb}`")),
        })
    }

    /// What one lock and several have in common. One has its item in the line itself.
    fn several(&mut self, line: &mut Line<'_>, items: Option<&str>) -> Result<AcquireAll, String> {
        let (owner, wait, notify) = (line.owner(), line.wait(), line.flag("notify"));
        let (label, lock_delay_ms) = (line.option("label").map(Into::into), line.number("delay", 0)?);
        let mut all = Vec::new();
        if items.is_none() {
            all.push(self.item(line)?);
        }
        for item in
            items.into_iter().flat_map(|items| items.split(',')).filter(|item| !item.trim().is_empty())
        {
            let mut words = Line(item.split_whitespace().collect());
            all.push(self.item(&mut words)?);
            words.done()?;
        }
        // Who is not named is an owner of its own, and is called like its grant.
        let first = all.first().map_or("", |first| self.grants.word(first.grant.as_u128()));
        let owner = OwnerId::from_u128(self.owners.introduce(owner.unwrap_or(first)));
        Ok(AcquireAll { owner, items: all, wait, label, lock_delay_ms, notify })
    }

    fn item(&mut self, line: &mut Line<'_>) -> Result<Item, String> {
        let grant = GrantId::from_u128(self.grants.introduce(line.next("a grant")?));
        Ok(Item { grant, name: name(line.next("a name")?)?, mode: mode(line.next("a mode")?)? })
    }

    /// What can be seen.
    fn look(&self, verb: &str, line: &mut Line<'_>) -> Result<Vec<String>, String> {
        Ok(match verb {
            "show" => {
                let found = self.table.inspect(&name(line.next("a name")?)?);
                found.iter().flat_map(|resource| self.tell_resource(resource)).collect()
            }
            "list" => {
                let found = self.table.list(line.next("a prefix").unwrap_or(""));
                found.iter().flat_map(|resource| self.tell_resource(resource)).collect()
            }
            "waits" => {
                let chain = self.table.waits_for(self.grant(line)?);
                let tell = |Link { waiter, behind }: &Link| {
                    format!("{}: {}", self.tell_waiting(waiter), self.tell_behind(behind))
                };
                chain.iter().map(tell).collect()
            }
            "sessions" => self.table.sessions().iter().map(|view| self.tell_session(view)).collect(),
            "delays" => {
                let delays = self.table.delays();
                delays.iter().map(|delay| format!("{}: {}", delay.name, self.tell_delay(delay))).collect()
            }
            "recall" => {
                let (name, window) = (name(line.next("a name")?)?, number(line.next("a window")?)?);
                let ago = self.table.recall(&name, window);
                ago.iter().map(|ago| format!("started {ago} ms ago")).collect()
            }
            _ => vec![format!("last token {}", self.table.last_token())],
        })
    }
}

/// What came out, in words.
impl Story {
    fn tell(&mut self, effect: &Effect) -> Vec<String> {
        let who = |session: &SessionId| self.sessions.word(session.as_u128()).to_owned();
        vec![match effect {
            Effect::Answer { session, number, outcome } => {
                return self.tell_answer(*session, *number, outcome);
            }
            Effect::SessionOpen { session, epoch } => format!("{} open, epoch {epoch}", who(session)),
            Effect::SessionRefused { session, why } => {
                format!("{} refused, {}: {why}", who(session), variant(&format!("{why:?}")))
            }
            Effect::SessionUnknown { session } => format!("{} unknown", who(session)),
            Effect::SessionEnded { session, end } => {
                let line = match end {
                    SessionEnd::Closed => format!("{} closed", who(session)),
                    SessionEnd::Expired => format!("{} expired", who(session)),
                };
                // Whoever opens it again begins anew.
                self.sent.retain(|(whose, _), _| whose != session);
                line
            }
            Effect::Lost { session, grant, reason } => {
                format!("{} lost {}, {reason:?}", who(session), self.grant_word(*grant))
            }
            Effect::LetGo { session, grant } => {
                format!("{} is asked to let go of {}", who(session), self.grant_word(*grant))
            }
            Effect::Wanted { session, grant, mode } => {
                format!("{} is told that {} is wanted in {mode}", who(session), self.grant_word(*grant))
            }
            Effect::Delay { grant, for_ms } => {
                format!("{} is dead and keeps its mode for {for_ms} ms", self.grant_word(*grant))
            }
        }]
    }

    fn tell_answer(&self, session: SessionId, number: u64, outcome: &Outcome) -> Vec<String> {
        let (_, request) = &self.sent[&(session, number)];
        let what = self.subject(request);
        let mut cycle = Vec::new();
        let line = match outcome {
            Ok(Answer::Queued { place }) => format!("queued {what}, {place} ahead"),
            Ok(Answer::Granted(granted)) => {
                let conversion = matches!(request, Request::Convert { .. });
                let done = if conversion { "converted" } else { "granted" };
                let value = match &granted.value {
                    // A conversion that gives something up does not tell it.
                    None if conversion => String::new(),
                    value => {
                        value.as_ref().map_or(", value not told".to_owned(), |value| tell_value(", ", value))
                    }
                };
                format!("{done} {what}, token {}{value}", granted.token)
            }
            Ok(Answer::GrantedAll(all)) => {
                let Request::AcquireAll(AcquireAll { items, .. }) = request else {
                    return vec!["several locks are granted to who asked for one".to_owned()];
                };
                assert_eq!(items.len(), all.len(), "each lock has its answer");
                let one = |(item, granted): (&Item, &Granted)| {
                    let value = granted.value.as_ref();
                    let value = value.map_or(" value not told".to_owned(), |value| tell_value(" ", value));
                    format!("{} token {}{value}", self.grant_word(item.grant), granted.token)
                };
                format!(
                    "granted all: {}",
                    items.iter().zip(all.iter()).map(one).collect::<Vec<_>>().join(", ")
                )
            }
            Ok(Answer::Released) => format!("released {what}"),
            Ok(Answer::Cancelled) => format!("cancelled {what}"),
            Ok(Answer::Written) => "written".to_owned(),
            Ok(Answer::Remembered) => "remembered".to_owned(),
            Ok(Answer::AlreadyStarted { ago_ms }) => format!("already started {ago_ms} ms ago"),
            Ok(Answer::Broken(grants)) => {
                let asked = matches!(request, Request::Break { how: Break::Ask, .. });
                let words: Vec<_> = grants.iter().map(|grant| self.grant_word(*grant)).collect();
                let words = if words.is_empty() { "nothing".to_owned() } else { words.join(", ") };
                format!("{} {words}", if asked { "marked" } else { "broke" })
            }
            Err(refusal) => {
                if let Refusal::Deadlock { cycle: members } = refusal {
                    cycle = members.iter().map(|member| format!("  {}", self.tell_waiting(member))).collect();
                }
                format!("refused {what}, {}: {refusal}", variant(&format!("{refusal:?}")))
            }
        };
        cycle.insert(0, format!("{}#{number} {line}", self.sessions.word(session.as_u128())));
        cycle
    }

    /// What a request is about.
    fn subject(&self, request: &Request) -> String {
        match request {
            Request::Acquire(acquire) => self.grant_word(acquire.grant).to_owned(),
            Request::AcquireAll(all) if all.items.is_empty() => "nothing".to_owned(),
            Request::AcquireAll(all) => {
                all.items.iter().map(|item| self.grant_word(item.grant)).collect::<Vec<_>>().join("+")
            }
            Request::Convert { grant, to, .. } => format!("{} to {to}", self.grant_word(*grant)),
            Request::Release { grant, .. }
            | Request::SetValue { grant, .. }
            | Request::Remember { grant, .. } => self.grant_word(*grant).to_owned(),
            Request::Cancel { number } => format!("#{number}"),
            Request::Break { name, .. } => name.to_string(),
        }
    }

    fn grant_word(&self, grant: GrantId) -> &str {
        self.grants.word(grant.as_u128())
    }

    /// A grant, and its owner if that has a word of its own.
    fn whose(&self, grant: GrantId, owner: OwnerId) -> String {
        let (grant, owner) = (self.grant_word(grant), self.owners.word(owner.as_u128()));
        if grant == owner { grant.to_owned() } else { format!("{grant} of {owner}") }
    }

    fn tell_waiting(&self, member: &CycleMember) -> String {
        let CycleMember { name, grant, owner, mode, label, place } = member;
        let whose = self.whose(*grant, *owner);
        format!("{whose} waits for {name} {mode}, {place} ahead{}", tell_label(", ", label.as_deref()))
    }

    fn tell_behind(&self, behind: &Behind) -> String {
        match behind {
            Behind::Holder(holder) => {
                format!("{} holds {}", self.whose(holder.grant, holder.owner), holder.mode)
            }
            Behind::Ahead(member) => {
                format!("{} is ahead, for {}", self.whose(member.grant, member.owner), member.mode)
            }
            Behind::Delay(delay) => self.tell_delay(delay),
            Behind::Itself => "its other locks are not free".to_owned(),
        }
    }

    fn tell_delay(&self, delay: &DelayView) -> String {
        let DelayView { grant, mode, for_ms, since_ms, .. } = delay;
        format!("{} is dead and keeps {mode} for {for_ms} ms, since {since_ms}", self.grant_word(*grant))
    }

    fn tell_session(&self, view: &SessionView) -> String {
        let SessionView { session, epoch, ttl_ms, label, locks } = view;
        let label = tell_label(" ", label.as_deref());
        let word = self.sessions.word(session.as_u128());
        format!("{word}{label}, epoch {epoch}, ttl {ttl_ms} ms, {locks} locks")
    }

    fn tell_resource(&self, resource: &ResourceView) -> Vec<String> {
        let mut lines = vec![resource.name.to_string()];
        for holder in &resource.holders {
            let mut line = format!(
                "  {} holds {}, token {}, {}, since {}{}",
                self.whose(holder.grant, holder.owner),
                holder.mode,
                holder.token,
                self.sessions.word(holder.session.as_u128()),
                holder.since_ms,
                tell_label(", ", holder.label.as_deref()),
            );
            if holder.lock_delay_ms > 0 {
                write!(line, ", delay {} ms", holder.lock_delay_ms).unwrap();
            }
            line += if holder.notify { ", notify" } else { "" };
            line += if holder.let_go { ", asked to let go" } else { "" };
            lines.push(line);
        }
        let converters = resource.converters.iter().map(|waiter| ("waits to convert to", waiter));
        let waiters = resource.waiters.iter().map(|waiter| ("waits for", waiter));
        for (does, waiter) in converters.chain(waiters) {
            let mut line = format!(
                "  {} {does} {}, {}#{}, since {}{}",
                self.whose(waiter.grant, waiter.owner),
                waiter.mode,
                self.sessions.word(waiter.session.as_u128()),
                waiter.number,
                waiter.since_ms,
                tell_label(", ", waiter.label.as_deref()),
            );
            if waiter.together > 1 {
                write!(line, ", one of {}", waiter.together).unwrap();
            }
            lines.push(line);
        }
        lines.extend(resource.delays.iter().map(|delay| format!("  {}", self.tell_delay(delay))));
        let value = tell_value("  ", &resource.value);
        if !value.is_empty() {
            lines.push(value);
        }
        lines.extend(resource.started_ago_ms.map(|ago| format!("  started {ago} ms ago")));
        lines
    }
}

/// The name of an error, without what is in it.
fn variant(debug: &str) -> &str {
    debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or(debug)
}

fn tell_label(before: &str, label: Option<&str>) -> String {
    label.map_or_else(String::new, |label| format!("{before}{label:?}"))
}

fn tell_value(before: &str, value: &Value) -> String {
    if *value == Value::default() {
        return String::new();
    }
    let doubt = if value.in_doubt { " in doubt" } else { "" };
    format!("{before}value {:?}{doubt}", String::from_utf8_lossy(&value.bytes))
}
