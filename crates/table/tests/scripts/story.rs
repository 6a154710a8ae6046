//! A table, and what a script asks of it.

use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};

use tenure_table::{
    Acquire, AcquireAll, Break, Command, GrantId, Item, Limits, Link, OwnerId, Request, SessionId, Table,
};

use crate::Snapshots;
use crate::words::{Line, Words, mode, name, number};

/// A table, and what its story calls everybody.
pub(crate) struct Story {
    pub(crate) table: Table,
    pub(crate) limits: Limits,
    pub(crate) sessions: Words,
    pub(crate) owners: Words,
    pub(crate) grants: Words,
    /// What was sent, with what the session had seen then: to be sent again, and to say what an answer is about.
    pub(crate) sent: BTreeMap<(SessionId, u64), (u64, Request)>,
    pub(crate) snapshots: Snapshots,
}

impl Story {
    pub(crate) fn new(snapshots: Snapshots) -> Self {
        let limits = Limits::default();
        Self {
            table: Table::new(limits, 1),
            limits,
            sessions: Words::default(),
            owners: Words::default(),
            grants: Words::default(),
            sent: BTreeMap::new(),
            snapshots,
        }
    }

    /// Plays some lines. If one cannot be played, it says which.
    pub(crate) fn block(&mut self, lines: &[(usize, &str)]) -> Result<Vec<String>, (usize, String)> {
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
    pub(crate) fn step(&mut self, line: &str) -> Result<Vec<String>, String> {
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
            "rules" => {
                let version =
                    u32::try_from(number(line.next("a version")?)?).map_err(|error| error.to_string())?;
                let mut came = self.apply(Command::SetRules { version })?;
                came.push(format!("rules {}", self.table.rules()));
                came
            }
            "restore" => {
                self.restore()?;
                vec!["restored".to_owned()]
            }
            "again" => self.again(&mut line)?,
            "show" | "list" | "waits" | "sessions" | "session" | "delays" | "recall" | "token" => {
                self.look(verb, &mut line)?
            }
            _ => self.ask(verb, &mut line, items)?,
        };
        line.done()?;
        Ok(if came.is_empty() { vec!["nothing".to_owned()] } else { came })
    }

    pub(crate) fn apply(&mut self, command: Command) -> Result<Vec<String>, String> {
        let mut effects = Vec::new();
        self.table.apply(command, &mut effects);
        self.table.check().map_err(|what| format!("the table is not sound: {what}"))?;
        if self.snapshots == Snapshots::Always {
            self.restore()?;
        }
        Ok(effects.iter().flat_map(|effect| self.tell(effect)).collect())
    }

    pub(crate) fn restore(&mut self) -> Result<(), String> {
        let mut bytes = Vec::new();
        self.table.write_snapshot(&mut bytes).map_err(|error| error.to_string())?;
        let restored = Table::read_snapshot(bytes.as_slice(), 2).map_err(|error| error.to_string())?;
        restored.check().map_err(|what| format!("the restored table is not sound: {what}"))?;
        if restored.state_hash() != self.table.state_hash() {
            return Err("the restored table has another hash".to_owned());
        }
        self.table = restored;
        Ok(())
    }

    pub(crate) fn session(&self, line: &mut Line<'_>) -> Result<SessionId, String> {
        let word = line.next("a session")?;
        let known = self.sessions.find(word).map(SessionId::from_u128);
        known.ok_or_else(|| format!("unknown session `{word}`"))
    }

    pub(crate) fn grant(&self, line: &mut Line<'_>) -> Result<GrantId, String> {
        let word = line.next("a grant")?;
        self.grants.find(word).map(GrantId::from_u128).ok_or_else(|| format!("unknown grant `{word}`"))
    }

    pub(crate) fn open(&mut self, line: &mut Line<'_>) -> Result<Vec<String>, String> {
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

    pub(crate) fn limit(&mut self, line: &mut Line<'_>) -> Result<Vec<String>, String> {
        let limits = &mut self.limits;
        let all = [
            ("sessions", &mut limits.sessions),
            ("names", &mut limits.names),
            ("locks", &mut limits.locks_per_session),
            ("waiters", &mut limits.waiters_per_resource),
            ("observed", &mut limits.observed_per_session),
            ("observers", &mut limits.observers_per_resource),
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
    pub(crate) fn ask(
        &mut self,
        verb: &str,
        line: &mut Line<'_>,
        items: Option<&str>,
    ) -> Result<Vec<String>, String> {
        if ![
            "acquire",
            "all",
            "convert",
            "release",
            "cancel",
            "set",
            "remember",
            "break",
            "observe",
            "unobserve",
        ]
        .contains(&verb)
        {
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

    pub(crate) fn again(&mut self, line: &mut Line<'_>) -> Result<Vec<String>, String> {
        let word = line.next("a request")?;
        let (session, asked) = word.split_once('#').ok_or_else(|| format!("`{word}` is not as `s1#1`"))?;
        let (session, number) = (self.session(&mut Line(vec![session]))?, number(asked)?);
        let sent = self.sent.get(&(session, number)).cloned();
        let (seen, request) = sent.ok_or_else(|| format!("unknown request `{word}`"))?;
        self.apply(Command::Request { session, number, seen, request })
    }

    pub(crate) fn request(
        &mut self,
        verb: &str,
        line: &mut Line<'_>,
        items: Option<&str>,
    ) -> Result<Request, String> {
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
            "observe" => Request::Observe { name: name(line.next("a name")?)? },
            "unobserve" => Request::Unobserve { name: name(line.next("a name")?)? },
            _ => return Err(format!("unknown word `{verb}`")),
        })
    }

    /// What one lock and several have in common. One has its item in the line itself.
    pub(crate) fn several(&mut self, line: &mut Line<'_>, items: Option<&str>) -> Result<AcquireAll, String> {
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

    pub(crate) fn item(&mut self, line: &mut Line<'_>) -> Result<Item, String> {
        let grant = GrantId::from_u128(self.grants.introduce(line.next("a grant")?));
        Ok(Item { grant, name: name(line.next("a name")?)?, mode: mode(line.next("a mode")?)? })
    }

    /// What can be seen.
    pub(crate) fn look(&self, verb: &str, line: &mut Line<'_>) -> Result<Vec<String>, String> {
        Ok(match verb {
            "show" => {
                let found = self.table.inspect(&name(line.next("a name")?)?);
                found.iter().flat_map(|resource| self.tell_resource(resource)).collect()
            }
            "list" => {
                let after = line.option("after").map(name).transpose()?;
                let limit = usize::try_from(line.number("limit", 100)?).map_err(|error| error.to_string())?;
                let found = self.table.list(line.next("a prefix").unwrap_or(""), after.as_ref(), limit);
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
            "session" => {
                let state = self.table.session_state(self.session(line)?);
                state.iter().flat_map(|state| self.tell_state(state)).collect()
            }
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
