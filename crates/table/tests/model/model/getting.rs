//! Getting locks, rules 8 to 17: at once, once more, in another mode, or by standing in line.

use bytes::Bytes;
use tenure_table::{
    Acquire, AcquireAll, Answer, FencingToken, GrantId, Granted, HolderView, Item, Mode, Outcome, Refusal,
    Wait,
};

use super::{Asker, Held, Kind, Model, Pending, Step, count};

impl Model {
    pub(super) fn acquire(&mut self, asker: Asker, acquire: &Acquire, step: &mut Step) -> Outcome {
        let Acquire { grant, name, mode, owner, wait, label, lock_delay_ms, notify } = acquire;
        self.check_label(label.as_ref())?;
        self.check_name(name)?;
        if let Ok(Held { name: same, holder, .. }) = self.held_by(asker.session, *grant)
            && (&same, holder.mode, holder.owner) == (name, *mode, *owner)
        {
            let value = Some(self.value(name).into());
            return Ok(Answer::Granted(Granted { token: holder.token, value }));
        }
        if self.in_use(*grant) {
            return Err(Refusal::GrantTaken);
        }
        self.check_locks(asker.session, 1)?;
        self.check_names(&[name])?;
        let pending = Pending {
            asker,
            order: 0,
            kind: Kind::One,
            owner: *owner,
            items: vec![Item { grant: *grant, name: name.clone(), mode: *mode }],
            label: label.clone(),
            lock_delay_ms: *lock_delay_ms,
            notify: *notify,
            since_ms: self.now_ms,
        };
        if self.holds(*owner, name) {
            return self.reenter(&pending, step);
        }
        if self.at_once(*owner, &pending.items[0]) {
            return Ok(self.grant(&pending, step));
        }
        if *wait == Wait::Try {
            return Err(Refusal::Busy { name: name.clone() });
        }
        self.check_waiters(name)?;
        self.queue(pending, step)
    }

    pub(super) fn acquire_all(&mut self, asker: Asker, all: &AcquireAll, step: &mut Step) -> Outcome {
        let AcquireAll { owner, items, wait, label, lock_delay_ms, notify } = all;
        if items.is_empty() {
            return Err(Refusal::NoNames);
        }
        let limit = self.limits.items_per_request;
        if count(items.len()) > limit {
            return Err(Refusal::TooManyItems { limit });
        }
        self.check_label(label.as_ref())?;
        for (i, item) in items.iter().enumerate() {
            self.check_name(&item.name)?;
            if items[..i].iter().any(|other| other.name == item.name) {
                return Err(Refusal::NamedTwice { name: item.name.clone() });
            }
            if self.in_use(item.grant) || items[..i].iter().any(|other| other.grant == item.grant) {
                return Err(Refusal::GrantTaken);
            }
        }
        self.check_locks(asker.session, items.len())?;
        self.check_names(&items.iter().map(|item| &item.name).collect::<Vec<_>>())?;
        if let Some(item) = items.iter().find(|item| self.holds(*owner, &item.name)) {
            return Err(Refusal::AlreadyHeld { name: item.name.clone() });
        }
        let pending = Pending {
            asker,
            order: 0,
            kind: Kind::All,
            owner: *owner,
            items: items.clone(),
            label: label.clone(),
            lock_delay_ms: *lock_delay_ms,
            notify: *notify,
            since_ms: self.now_ms,
        };
        let Some(busy) = items.iter().find(|item| !self.at_once(*owner, item)) else {
            return Ok(self.grant(&pending, step));
        };
        if *wait == Wait::Try {
            return Err(Refusal::Busy { name: busy.name.clone() });
        }
        for item in items {
            self.check_waiters(&item.name)?;
        }
        self.queue(pending, step)
    }

    pub(super) fn convert(
        &mut self,
        asker: Asker,
        grant: GrantId,
        to: Mode,
        wait: Wait,
        value: Option<&Bytes>,
        step: &mut Step,
    ) -> Outcome {
        let Held { name, holder, .. } = self.held_by(asker.session, grant)?;
        if self.conversion_of(grant).is_some() {
            return Err(Refusal::Converting);
        }
        let down = holder.mode.covers(to);
        if let Some(bytes) = value {
            if !down {
                return Err(Refusal::ValueOnTheWayUp);
            }
            self.check_write(holder.mode, bytes)?;
        }
        // Down is at once even beside a delay that an expired session of the same owner left.
        if down || self.compatible(holder.owner, &name, to) {
            if let Some(bytes) = value {
                self.write(&name, bytes);
            }
            if !down && !self.line(&name).is_empty() {
                step.recheck.insert((holder.owner, None));
            }
            step.serve_later(&name);
            return Ok(self.change_mode(grant, to, step));
        }
        if wait == Wait::Try {
            return Err(Refusal::Busy { name });
        }
        self.check_waiters(&name)?;
        let pending = Pending {
            asker,
            order: 0,
            kind: Kind::Convert,
            owner: holder.owner,
            items: vec![Item { grant, name, mode: to }],
            label: holder.label,
            lock_delay_ms: holder.lock_delay_ms,
            notify: holder.notify,
            since_ms: self.now_ms,
        };
        self.queue(pending, step)
    }

    /// The owner has the resource: whether it may have it once more, and the grant that comes of it.
    pub(super) fn reenter(&mut self, pending: &Pending, step: &mut Step) -> Outcome {
        let Item { name, mode, .. } = &pending.items[0];
        let own = || self.holders(name).filter(|holder| holder.owner == pending.owner);
        let Some(covering) = newest(own().filter(|holder| holder.mode.covers(*mode))) else {
            let held = newest(own()).unwrap().mode;
            return Err(Refusal::NotCovered { name: name.clone(), held, asked: *mode });
        };
        let token = covering.token;
        Ok(Answer::Granted(self.add_grant(pending, &pending.items[0], token, step)))
    }

    /// Grants all that is asked for, with new tokens.
    pub(super) fn grant(&mut self, pending: &Pending, step: &mut Step) -> Answer {
        let mut granted = Vec::new();
        for item in &pending.items {
            let token = self.next_token();
            granted.push(self.add_grant(pending, item, token, step));
        }
        match pending.kind {
            Kind::All => Answer::GrantedAll(granted.into()),
            Kind::One | Kind::Convert => Answer::Granted(granted.remove(0)),
        }
    }

    fn add_grant(&mut self, pending: &Pending, item: &Item, token: FencingToken, step: &mut Step) -> Granted {
        let holder = HolderView {
            grant: item.grant,
            owner: pending.owner,
            session: pending.asker.session,
            mode: item.mode,
            token,
            label: pending.label.clone(),
            since_ms: self.now_ms,
            lock_delay_ms: pending.lock_delay_ms,
            notify: pending.notify,
            let_go: false,
        };
        self.grants.push(Held { name: item.name.clone(), holder, died_ms: None });
        step.got.push(item.grant);
        Granted { token, value: Some(self.value(&item.name).into()) }
    }

    pub(super) fn change_mode(&mut self, grant: GrantId, to: Mode, step: &mut Step) -> Answer {
        let at = self.grants.iter().position(|held| held.holder.grant == grant).unwrap();
        let from = self.grants[at].holder.mode;
        if !from.covers(to) {
            self.grants[at].holder.token = self.next_token();
        }
        self.grants[at].holder.mode = to;
        step.got.push(grant);
        let value = to.covers(from).then(|| self.value(&self.grants[at].name).into());
        Answer::Granted(Granted { token: self.grants[at].holder.token, value })
    }

    fn next_token(&mut self) -> FencingToken {
        self.last_token += 1;
        FencingToken::new(self.last_token)
    }
}

fn newest<'a>(holders: impl Iterator<Item = &'a HolderView>) -> Option<&'a HolderView> {
    holders.max_by_key(|holder| (holder.token, holder.mode as u8))
}
