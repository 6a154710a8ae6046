//! The request for one grant: repeated while the engine cannot be reached, and withdrawn if it does not end with the grant.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tenure_table::LockName;

use crate::background::Background;
use crate::engine::{AcquireRequest, Cancellation, Granted, Waits};
use crate::error::{AcquireError, OperationError};
use crate::hold::Hold;
use crate::wait::{LastAnswer, WaitUntil, Waiting};

/// Requests a grant from the engine. After an error, nothing of the request remains, or the client continues to withdraw it.
pub(crate) async fn acquire(
    background: Arc<Background>,
    hold: Arc<Hold>,
    request: AcquireRequest,
    wait: WaitUntil,
) -> Result<Granted, AcquireError> {
    let ask =
        |wait, cancel| background.engine.clone().acquire(AcquireRequest { wait, cancel, ..request.clone() });
    ask_engine(&background, &[hold], &request.name, &request.cancel, wait, ask).await
}

/// Requests several grants from the engine atomically.
pub(crate) async fn acquire_all(
    background: Arc<Background>,
    holds: Vec<Arc<Hold>>,
    requests: Vec<AcquireRequest>,
    cancel: Cancellation,
    wait: WaitUntil,
) -> Result<Vec<Granted>, AcquireError> {
    let ask = |wait, cancel: Cancellation| {
        let again =
            |request: &AcquireRequest| AcquireRequest { wait, cancel: cancel.clone(), ..request.clone() };
        background.engine.clone().acquire_all(requests.iter().map(again).collect())
    };
    let Some(first) = requests.first() else { return Ok(Vec::new()) };
    ask_engine(&background, &holds, &first.name, &cancel, wait, ask).await
}

async fn ask_engine<T>(
    background: &Arc<Background>,
    holds: &[Arc<Hold>],
    name: &LockName,
    cancel: &Cancellation,
    wait: WaitUntil,
    ask: impl Fn(Waits, Cancellation) -> BoxFuture<'static, Result<T, AcquireError>>,
) -> Result<T, AcquireError> {
    let waiting = Waiting { clock: &*background.clock, name, wait, cancel };
    let LastAnswer { answer, times } = waiting.ask(ask).await;
    if times > 1 {
        for hold in holds {
            hold.note_unanswered();
        }
    }
    let error = match answer {
        Ok(granted) => return Ok(granted),
        Err(error) => error,
    };
    for hold in holds {
        if error.is_outage() {
            // The caller does not wait for an engine that cannot be reached.
            background.withdraw_in_background(hold.grant());
        } else if hold.may_arrive() || cancel.is_cancelled() || !matches!(error, AcquireError::Busy { .. }) {
            background.withdraw(hold.grant()).await;
        }
    }
    Err(match (error, wait) {
        (AcquireError::Busy { name }, WaitUntil::At { waited, .. }) => {
            AcquireError::TimedOut { name, waited }
        }
        (error, _) => error,
    })
}
