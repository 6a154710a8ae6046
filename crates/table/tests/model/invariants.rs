//! What must be true of every table at every time, whatever the rules do to get there. It looks at nothing but views, and at
//! what it saw of them a step before.

use std::collections::{BTreeMap, BTreeSet};

use tenure_table::{
    DelayView, FencingToken, GrantId, HolderView, LockName, Mode, OwnerId, ResourceView, SessionId,
    SessionView, WaiterView,
};

/// Watches a table, step after step.
#[derive(Default)]
pub(crate) struct Watch {
    last_token: u64,
    before: BTreeMap<LockName, ResourceView>,
    /// Whose the dead grants were.
    dead: BTreeMap<GrantId, OwnerId>,
    /// All that was ever held, by resource.
    past: BTreeMap<LockName, BTreeSet<(OwnerId, u8, FencingToken)>>,
}

impl Watch {
    /// Looks at the table after a step: at all resources that are held or waited for, and at all sessions.
    pub(crate) fn look(
        &mut self,
        resources: &[ResourceView],
        sessions: &[SessionView],
        last_token: FencingToken,
    ) -> Result<(), String> {
        if last_token.get() < self.last_token {
            return Err(format!("the last token fell from {} to {last_token}", self.last_token));
        }
        self.last_token = last_token.get();
        for resource in resources {
            self.holders_go_together(resource)?;
            self.tokens_rise(resource)?;
            self.lines_keep_their_order(resource)?;
            no_owner_waits_for_what_it_has(resource)?;
        }
        nobody_waits_in_vain(resources)?;
        nothing_is_left_of_closed_sessions(resources, sessions)?;
        nobody_waits_for_ever(resources)?;
        self.before = resources.iter().map(|resource| (resource.name.clone(), resource.clone())).collect();
        Ok(())
    }

    /// Holders of several owners are compatible. A delay is too, but for holders whose owner was the dead one's: it had another
    /// grant in another session.
    fn holders_go_together(&mut self, resource: &ResourceView) -> Result<(), String> {
        for (i, a) in resource.holders.iter().enumerate() {
            for b in &resource.holders[i + 1..] {
                if a.owner != b.owner && !a.mode.compatible_with(b.mode) {
                    return Err(format!("{a:?} and {b:?} stand together"));
                }
            }
        }
        let before = self.before.get(&resource.name);
        for delay in &resource.delays {
            let died = before.and_then(|before| before.holders.iter().find(|held| held.grant == delay.grant));
            if let Some(died) = died {
                self.dead.insert(delay.grant, died.owner);
            }
            let owner = self.dead.get(&delay.grant).copied();
            for held in resource.holders.iter().filter(|held| Some(held.owner) != owner) {
                if !held.mode.compatible_with(delay.mode) {
                    return Err(format!("{held:?} and {delay:?} stand together"));
                }
            }
        }
        Ok(())
    }

    /// What is held now and was not before has a larger token than whatever others held that conflicts with it.
    fn tokens_rise(&mut self, resource: &ResourceView) -> Result<(), String> {
        let past = self.past.entry(resource.name.clone()).or_default();
        for held in &resource.holders {
            if held.token.get() > self.last_token {
                return Err(format!("{held:?} has a token that was never given"));
            }
            let now = (held.owner, held.mode as u8, held.token);
            if past.contains(&now) {
                continue;
            }
            for (owner, mode, token) in &*past {
                let conflicts = !held.mode.compatible_with(Mode::ALL[usize::from(*mode)]);
                if *owner != held.owner && conflicts && *token >= held.token {
                    return Err(format!("{held:?} came after {token:?} of {owner:?}, in mode {mode}"));
                }
            }
        }
        past.extend(resource.holders.iter().map(|held| (held.owner, held.mode as u8, held.token)));
        Ok(())
    }

    /// Those who wait stay in their order, and new ones come last. Nobody is granted past somebody who still waits, unless its owner
    /// got the lock by another grant.
    fn lines_keep_their_order(&self, resource: &ResourceView) -> Result<(), String> {
        let Some(before) = self.before.get(&resource.name) else { return Ok(()) };
        for (old, new) in [(&before.converters, &resource.converters), (&before.waiters, &resource.waiters)] {
            let old: Vec<_> = old.iter().filter(|old| new.iter().any(|new| same(old, new))).collect();
            let kept = old.len() <= new.len() && old.iter().zip(new).all(|(old, new)| same(old, new));
            if !kept {
                return Err(format!(
                    "the line of {} was turned round: {old:?} is now {new:?}",
                    resource.name
                ));
            }
        }
        for (place, waiter) in before.waiters.iter().enumerate() {
            let Some(granted) = resource.holders.iter().find(|held| held.grant == waiter.grant) else {
                continue;
            };
            let re_entered = resource.holders.iter().any(|other| rests_on(granted, other));
            let passed = before.waiters[..place]
                .iter()
                .find(|ahead| resource.waiters.iter().any(|now| same(ahead, now)));
            let passed = passed.or(resource.converters.first());
            if let Some(passed) = passed.filter(|_| !re_entered) {
                return Err(format!("{granted:?} was granted past {passed:?}"));
            }
        }
        Ok(())
    }
}

/// Whether a grant is one by re-entrance that may rest on that other one.
fn rests_on(granted: &HolderView, other: &HolderView) -> bool {
    other.grant != granted.grant && other.owner == granted.owner && other.token == granted.token
}

fn same(a: &WaiterView, b: &WaiterView) -> bool {
    (a.session, a.number, a.grant) == (b.session, b.number, b.grant)
}

/// Rule 13.
fn no_owner_waits_for_what_it_has(resource: &ResourceView) -> Result<(), String> {
    for waiter in &resource.waiters {
        if resource.holders.iter().any(|held| held.owner == waiter.owner) {
            return Err(format!("{waiter:?} waits for {}, which its owner has", resource.name));
        }
    }
    Ok(())
}

/// Nothing waits that could be granted: it is not first in one of its lines, or it is not compatible there.
fn nobody_waits_in_vain(resources: &[ResourceView]) -> Result<(), String> {
    let mut hindered = BTreeMap::<(SessionId, u64), bool>::new();
    for resource in resources {
        for (place, waiter) in line(resource).enumerate() {
            let others = resource.holders.iter().filter(|held| held.owner != waiter.owner);
            let modes = others
                .map(|held| held.mode)
                .chain(resource.delays.iter().map(|delay: &DelayView| delay.mode));
            let here = place > 0 || modes.into_iter().any(|mode| !mode.compatible_with(waiter.mode));
            *hindered.entry((waiter.session, waiter.number)).or_default() |= here;
        }
    }
    match hindered.iter().find(|(_, hindered)| !**hindered) {
        Some((request, _)) => Err(format!("the request {request:?} waits for nothing")),
        None => Ok(()),
    }
}

fn nothing_is_left_of_closed_sessions(
    resources: &[ResourceView],
    sessions: &[SessionView],
) -> Result<(), String> {
    let mut locks = BTreeMap::<SessionId, u32>::new();
    for resource in resources {
        let held = resource.holders.iter().map(|held| held.session);
        for session in held.chain(resource.waiters.iter().map(|waiter| waiter.session)) {
            *locks.entry(session).or_default() += 1;
        }
        for converter in &resource.converters {
            let held = resource.holders.iter().find(|held| held.grant == converter.grant);
            if held.is_none_or(|held| (held.session, held.owner) != (converter.session, converter.owner)) {
                return Err(format!("{converter:?} converts nothing"));
            }
        }
    }
    for session in sessions {
        if session.locks != locks.remove(&session.session).unwrap_or(0) {
            return Err(format!("the locks of {session:?} are counted wrong"));
        }
    }
    if locks.is_empty() { Ok(()) } else { Err(format!("left of closed sessions: {locks:?}")) }
}

/// Follows everybody to everybody that it waits for: nobody is to come back to itself.
fn nobody_waits_for_ever(resources: &[ResourceView]) -> Result<(), String> {
    let mut edges = BTreeMap::<OwnerId, BTreeSet<OwnerId>>::new();
    for resource in resources {
        let mut ahead = Vec::new();
        for waiter in line(resource) {
            // Whose owner is further ahead is settled together with that one. A conversion is not.
            let tied = ahead.contains(&waiter.owner) && resource.waiters.contains(waiter);
            let conflicting = resource.holders.iter().filter(|held| !held.mode.compatible_with(waiter.mode));
            let waited_for = conflicting.map(|held| held.owner).chain(ahead.iter().copied());
            let others = waited_for.filter(|owner| !tied && *owner != waiter.owner);
            edges.entry(waiter.owner).or_default().extend(others);
            ahead.push(waiter.owner);
        }
    }
    // Who waits for nobody that waits can be left out; in the end only cycles are left.
    loop {
        let waiting: BTreeSet<OwnerId> = edges.keys().copied().collect();
        let count = edges.len();
        edges.retain(|_, to| to.iter().any(|owner| waiting.contains(owner)));
        if edges.is_empty() {
            return Ok(());
        }
        if edges.len() == count {
            return Err(format!("these wait for ever: {edges:?}"));
        }
    }
}

fn line(resource: &ResourceView) -> impl Iterator<Item = &WaiterView> {
    resource.converters.iter().chain(&resource.waiters)
}

/// That the watch sees what it watches for: views of a table that is right are made wrong in one way after the other.
#[test]
fn what_is_wrong_is_seen() {
    use tenure_table::{Acquire, Command, Limits, Request};

    let session = SessionId::from_u128(1);
    let mut model = crate::model::Model::new(Limits::default());
    model.apply(&Command::OpenSession { session, ttl_ms: 0, label: None });
    // 1 has `a` and waits for `b`, 2 has `b`, 3 waits for `a`, and so does 4.
    for (grant, name, owner) in [(1, "a", 1), (2, "b", 2), (3, "b", 1), (4, "a", 3), (5, "a", 4)] {
        let mut acquire = Acquire::new(GrantId::from_u128(grant), LockName::parse(name).unwrap(), Mode::Ex);
        acquire.owner = OwnerId::from_u128(owner);
        let number = u64::try_from(grant).unwrap();
        model.apply(&Command::request(session, number, Request::Acquire(acquire)));
    }
    let (views, sessions, token) = (model.list(""), model.sessions(), model.last_token());
    let look = |change: fn(&mut Vec<ResourceView>, &mut Vec<SessionView>, &mut FencingToken)| {
        let mut watch = Watch::default();
        watch.look(&views, &sessions, token).unwrap();
        let (mut views, mut sessions, mut token) = (views.clone(), sessions.clone(), token);
        change(&mut views, &mut sessions, &mut token);
        watch.look(&views, &sessions, token).err().unwrap_or_default()
    };
    let seen = [
        (look(|_, _, _| ()), ""),
        (look(|_, _, token| *token = FencingToken::new(1)), "the last token fell"),
        (look(|_, sessions, _| sessions.clear()), "left of closed sessions"),
        (look(|_, sessions, _| sessions[0].locks = 4), "counted wrong"),
        (look(|views, _, _| views[0].holders.clear()), "waits for nothing"),
        (look(|views, _, _| views[0].waiters.swap(0, 1)), "was turned round"),
        (look(|views, _, _| views[0].waiters[1].owner = OwnerId::from_u128(1)), "which its owner has"),
        (look(|views, _, _| views[0].waiters[1].owner = OwnerId::from_u128(2)), "these wait for ever"),
        (
            look(|views, _, _| {
                let other = views[1].holders[0].clone();
                views[0].holders.push(other);
            }),
            "stand together",
        ),
        (
            look(|views, _, _| {
                let passed = views[0].waiters.pop().unwrap();
                views[0].holders[0].grant = passed.grant;
                views[0].holders[0].token = FencingToken::new(2);
            }),
            "was granted past",
        ),
        (
            look(|views, _, _| {
                views[0].holders[0].owner = OwnerId::from_u128(5);
                views[0].holders[0].token = FencingToken::new(1);
            }),
            "came after",
        ),
        (
            look(|views, _, _| {
                let mut delay = views[0].clone();
                delay.delays.push(DelayView {
                    grant: GrantId::from_u128(9),
                    name: delay.name.clone(),
                    mode: Mode::Cr,
                    for_ms: 1,
                    since_ms: 0,
                });
                views[0] = delay;
            }),
            "stand together",
        ),
        (
            look(|views, _, _| {
                let converter = views[0].waiters.remove(0);
                views[0].converters.push(converter);
            }),
            "converts nothing",
        ),
    ];
    for (found, expected) in seen {
        assert!(found.contains(expected) && found.is_empty() == expected.is_empty(), "{expected}: {found}");
    }
}
