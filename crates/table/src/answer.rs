//! How a request is answered: told to its session, and kept until that has heard it.

use std::iter;

use crate::arena::Place;
use crate::brief::Brief;
use crate::resource::Resource;
use crate::session::Session;
use crate::table::Table;
use crate::{Answer, Effect, FencingToken, Granted, Outcome, SharedValue};

impl Table {
    /// Answers a request, for the last time unless it queues.
    pub(crate) fn answer(
        &mut self,
        session: Place<Session>,
        number: u64,
        outcome: Outcome,
        effects: &mut Vec<Effect>,
    ) {
        let session = &mut self.sessions[session];
        if !matches!(outcome, Ok(Answer::Queued { .. })) {
            session.memory.keep(number, Brief::of(&outcome));
        }
        effects.push(Effect::Answer { session: session.id(), number, outcome });
    }

    /// Answers that a lock is held. As [`answer`](Self::answer) would, in a shorter way.
    pub(crate) fn answer_granted(
        &mut self,
        session: Place<Session>,
        number: u64,
        resource: Place<Resource>,
        token: FencingToken,
        effects: &mut Vec<Effect>,
    ) {
        let here = &self.resources[resource];
        if here.has_value() {
            let granted = Granted { token, value: Some(here.value()) };
            self.answer(session, number, Ok(Answer::Granted(granted)), effects);
        } else {
            self.answer_granted_new(session, number, token, effects);
        }
    }

    /// Answers that a lock is held of which nobody wrote a value.
    pub(crate) fn answer_granted_new(
        &mut self,
        session: Place<Session>,
        number: u64,
        token: FencingToken,
        effects: &mut Vec<Effect>,
    ) {
        let granted = || Answer::Granted(Granted { token, value: Some(SharedValue::default()) });
        self.answer_briefly(session, number, Brief::Granted(token), granted, effects);
    }

    /// Answers that a lock is free.
    pub(crate) fn answer_released(
        &mut self,
        session: Place<Session>,
        number: u64,
        effects: &mut Vec<Effect>,
    ) {
        self.answer_briefly(session, number, Brief::Released, || Answer::Released, effects);
    }

    fn answer_briefly(
        &mut self,
        session: Place<Session>,
        number: u64,
        brief: Brief,
        answer: impl FnOnce() -> Answer,
        effects: &mut Vec<Effect>,
    ) {
        let session = &mut self.sessions[session];
        session.memory.keep(number, brief);
        // Made where it is to lie: what is made elsewhere, field by field, and moved at once makes the processor wait.
        effects.extend(iter::once_with(|| Effect::Answer {
            session: session.id(),
            number,
            outcome: Ok(answer()),
        }));
    }
}
