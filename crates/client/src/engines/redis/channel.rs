//! The channel on which Redis notifies this client's waiters.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;

use super::fault::Fault;
use super::handed::WakeMessage;
use super::link::Link;
use crate::engines::notifications::{ListenError, NotificationListener, Source};
use crate::random;

#[derive(Debug)]
pub(super) struct Channel {
    link: Arc<Link>,
    limit: Duration,
    /// The client's name in the queue.
    client: String,
}

impl Channel {
    pub(super) fn new(link: Arc<Link>, limit: Duration) -> Self {
        Self { link, limit, client: random::grant_id().to_string() }
    }
}

impl Source for Channel {
    type Message = WakeMessage;

    async fn listen(&self, listener: &NotificationListener<Self>) -> Result<(), ListenError> {
        let channel = format!("tenure:wake:{}", self.client);
        let subscribed = self.link.subscribe(self.limit, &channel).await;
        let failed = |fault: Fault| ListenError { message: fault.error.to_string(), retry_soon: false };
        let mut messages = subscribed.map_err(failed)?;
        listener.opened(&self.client);
        let mut published = messages.on_message();
        while let Some(message) = published.next().await {
            listener.wake_by(message.get_payload_bytes());
        }
        Ok(())
    }
}

impl NotificationListener<Channel> {
    /// Wakes the waiter that a message is for. A waiter that no longer waits is withdrawn, together with what the message grants.
    pub(super) fn wake_by(&self, payload: &[u8]) {
        let Ok(text) = str::from_utf8(payload) else { return };
        let (grant, message) = text.split_once(' ').unwrap_or((text, ""));
        if let Ok(grant) = grant.parse() {
            self.wake(grant, WakeMessage::parse(message));
        }
    }
}
