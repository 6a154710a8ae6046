//! What came out, in words.

use std::fmt::Write as _;

use tenure_table::{
    AcquireAll, Answer, Behind, Break, CycleMember, DelayView, Effect, GrantId, Granted, HeldView, Item,
    Outcome, OwnerId, Refusal, Request, ResourceView, SessionEnd, SessionId, SessionState, SessionView,
    Value, WaitingView,
};

use crate::story::Story;

impl Story {
    pub(crate) fn tell(&mut self, effect: &Effect) -> Vec<String> {
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
            Effect::Changed { session, name } => {
                format!("{} is told that the holders of {name} have changed", who(session))
            }
            Effect::RulesUnknown { version, known } => {
                format!("rules {version} are unknown, the newest are {known}")
            }
            Effect::Delay { grant, for_ms } => {
                format!("{} is dead and keeps its mode for {for_ms} ms", self.grant_word(*grant))
            }
        }]
    }

    pub(crate) fn tell_answer(&self, session: SessionId, number: u64, outcome: &Outcome) -> Vec<String> {
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
            Ok(Answer::Observed) => format!("observes {what}"),
            Ok(Answer::Unobserved) => format!("does not observe {what}"),
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
    pub(crate) fn subject(&self, request: &Request) -> String {
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
            Request::Break { name, .. } | Request::Observe { name } | Request::Unobserve { name } => {
                name.to_string()
            }
        }
    }

    pub(crate) fn grant_word(&self, grant: GrantId) -> &str {
        self.grants.word(grant.as_u128())
    }

    /// A grant, and its owner if that has a word of its own.
    pub(crate) fn whose(&self, grant: GrantId, owner: OwnerId) -> String {
        let (grant, owner) = (self.grant_word(grant), self.owners.word(owner.as_u128()));
        if grant == owner { grant.to_owned() } else { format!("{grant} of {owner}") }
    }

    pub(crate) fn tell_waiting(&self, member: &CycleMember) -> String {
        let CycleMember { name, grant, owner, mode, label, place } = member;
        let whose = self.whose(*grant, *owner);
        format!("{whose} waits for {name} {mode}, {place} ahead{}", tell_label(", ", label.as_deref()))
    }

    pub(crate) fn tell_behind(&self, behind: &Behind) -> String {
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

    pub(crate) fn tell_delay(&self, delay: &DelayView) -> String {
        let DelayView { grant, mode, for_ms, since_ms, .. } = delay;
        format!("{} is dead and keeps {mode} for {for_ms} ms, since {since_ms}", self.grant_word(*grant))
    }

    pub(crate) fn tell_session(&self, view: &SessionView) -> String {
        let SessionView { session, epoch, ttl_ms, label, locks } = view;
        let label = tell_label(" ", label.as_deref());
        let word = self.sessions.word(session.as_u128());
        format!("{word}{label}, epoch {epoch}, ttl {ttl_ms} ms, {locks} locks")
    }

    pub(crate) fn tell_state(&self, state: &SessionState) -> Vec<String> {
        let mut lines = vec![format!("epoch {}", state.epoch)];
        for HeldView { name, holder, wanted } in &state.held {
            let whose = self.whose(holder.grant, holder.owner);
            let let_go = if holder.let_go { ", asked to let go" } else { "" };
            let mut line = format!("  {whose} holds {name} {}, token {}{let_go}", holder.mode, holder.token);
            for mode in wanted {
                write!(line, ", wanted in {mode}").unwrap();
            }
            lines.push(line);
        }
        for WaitingView { name, waiter } in &state.waiting {
            let whose = self.whose(waiter.grant, waiter.owner);
            lines.push(format!("  #{}: {whose} waits for {name} {}", waiter.number, waiter.mode));
        }
        for (number, outcome) in &state.settled {
            let done = match outcome {
                Ok(answer) => variant(&format!("{answer:?}")).to_owned(),
                Err(refusal) => variant(&format!("{refusal:?}")).to_owned(),
            };
            lines.push(format!("  #{number}: {done}"));
        }
        lines.extend(state.observed.iter().map(|name| format!("  observes {name}")));
        lines
    }

    pub(crate) fn tell_resource(&self, resource: &ResourceView) -> Vec<String> {
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
pub(crate) fn variant(debug: &str) -> &str {
    debug.split(|c: char| !c.is_alphanumeric()).next().unwrap_or(debug)
}

pub(crate) fn tell_label(before: &str, label: Option<&str>) -> String {
    label.map_or_else(String::new, |label| format!("{before}{label:?}"))
}

pub(crate) fn tell_value(before: &str, value: &Value) -> String {
    if *value == Value::default() {
        return String::new();
    }
    let doubt = if value.in_doubt { " in doubt" } else { "" };
    format!("{before}value {:?}{doubt}", String::from_utf8_lossy(&value.bytes))
}
