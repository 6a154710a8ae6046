//! Answers to requests: each is sent to its session, and stored until the client has acknowledged it.

use std::iter;

use crate::arena::Place;
use crate::brief::Brief;
use crate::resource::Resource;
use crate::session::Session;
use crate::table::Table;
use crate::{Answer, Effect, FencingToken, Granted, Outcome, SharedValue};

impl Table {
    /// Answers a request. Stores the answer unless the request queues, because then the final one follows.
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

    /// Answers that a lock is held. Faster than [`answer`](Self::answer), with the same result.
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

    /// Answers that a lock without a value is held.
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

    /// Answers that a lock was released.
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
        // Built in place: building the effect elsewhere, field by field, and then moving it stalls the processor.
        effects.extend(iter::once_with(|| Effect::Answer {
            session: session.id(),
            number,
            outcome: Ok(answer()),
        }));
    }
}
