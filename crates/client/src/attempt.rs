//! The request for one grant: repeated while the engine cannot be reached, and withdrawn if it does not end with the grant.

use std::sync::Arc;

use crate::engine::{AcquireRequest, Granted};
use crate::error::{AcquireError, OperationError};
use crate::shared::Background;
use crate::wait::{Asked, WaitUntil, Waiting};

/// Asks the engine for a grant. With an error, nothing of the request is left behind, or the client goes on to withdraw it.
pub(crate) async fn acquire(
    background: Arc<Background>,
    request: AcquireRequest,
    wait: WaitUntil,
) -> Result<Granted, AcquireError> {
    let (name, cancel) = (&request.name, &request.cancel);
    let waiting = Waiting { clock: &*background.clock, name, wait, cancel };
    let ask = |waits, cancel| {
        background.engine.clone().acquire(AcquireRequest { waits, cancel, ..request.clone() })
    };
    let Asked { answer, times } = waiting.ask(ask).await;
    let error = match answer {
        Ok(granted) => return Ok(granted.repeated_if(times > 1)),
        Err(error) => error,
    };
    let grant = request.granted(None);
    if error.is_outage() {
        // The caller does not wait for an engine that does not answer.
        background.withdraw_in_background(grant);
    } else if times > 1 || !matches!(error, AcquireError::Busy { .. }) {
        background.withdraw(grant).await;
    }
    Err(match (error, wait) {
        (AcquireError::Busy { name }, WaitUntil::At { waited, .. }) => {
            AcquireError::TimedOut { name, waited }
        }
        (error, _) => error,
    })
}
