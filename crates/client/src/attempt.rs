//! The request for one grant: repeated while the engine cannot be reached, and withdrawn if it does not end with the grant.

use std::sync::Arc;

use crate::background::Background;
use crate::engine::{AcquireRequest, Granted};
use crate::error::{AcquireError, OperationError};
use crate::hold::Hold;
use crate::wait::{LastAnswer, WaitUntil, Waiting};

/// Asks the engine for a grant. With an error, nothing of the request is left behind, or the client goes on to withdraw it.
pub(crate) async fn acquire(
    background: Arc<Background>,
    hold: Arc<Hold>,
    request: AcquireRequest,
    wait: WaitUntil,
) -> Result<Granted, AcquireError> {
    let (name, cancel) = (&request.name, &request.cancel);
    let waiting = Waiting { clock: &*background.clock, name, wait, cancel };
    let ask =
        |wait, cancel| background.engine.clone().acquire(AcquireRequest { wait, cancel, ..request.clone() });
    let LastAnswer { answer, times } = waiting.ask(ask).await;
    if times > 1 {
        hold.note_unanswered();
    }
    let error = match answer {
        Ok(granted) => return Ok(granted),
        Err(error) => error,
    };
    if error.is_outage() {
        // The caller does not wait for an engine that does not answer.
        background.withdraw_in_background(hold.grant());
    } else if hold.may_arrive() || cancel.is_cancelled() || !matches!(error, AcquireError::Busy { .. }) {
        background.withdraw(hold.grant()).await;
    }
    Err(match (error, wait) {
        (AcquireError::Busy { name }, WaitUntil::At { waited, .. }) => {
            AcquireError::TimedOut { name, waited }
        }
        (error, _) => error,
    })
}
