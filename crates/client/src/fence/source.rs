//! The source of a write's token.

use tenure_table::{FencingToken, LockName};

use super::error::FenceError;
use crate::guard::Guard;

/// The resource and token of a fenced write: a guard, whose name and token belong together; or a pair, where the guard is elsewhere.
///
/// ```
/// # use tenure::fence::TokenSource;
/// # use tenure::{Client, FencingToken};
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let client = Client::connect("memory:").await?;
/// let guard = client.lock("orders/42").acquire().await?;
/// assert_eq!((&guard).resource_and_token()?.0.as_str(), "orders/42");
///
/// let sent = ("orders/42", FencingToken::new(7)); // with a request, for instance
/// assert_eq!(sent.resource_and_token()?.1.get(), 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait TokenSource {
    /// Returns the resource and the token.
    ///
    /// # Errors
    /// [`FenceError::NoToken`] if the guard's engine has no tokens, [`FenceError::Mode`] if the guard's mode is shared, and
    /// [`FenceError::Resource`] if the resource is not a valid lock name.
    fn resource_and_token(&self) -> Result<(LockName, FencingToken), FenceError>;
}

impl TokenSource for &Guard {
    fn resource_and_token(&self) -> Result<(LockName, FencingToken), FenceError> {
        let (resource, mode) = (self.name().clone(), self.mode());
        if !mode.may_write() {
            return Err(FenceError::Mode { resource, mode });
        }
        match self.token() {
            Some(token) => Ok((resource, token)),
            None => Err(FenceError::NoToken { resource }),
        }
    }
}

impl<R: AsRef<str>> TokenSource for (R, FencingToken) {
    fn resource_and_token(&self) -> Result<(LockName, FencingToken), FenceError> {
        Ok((LockName::parse(&self.0)?, self.1))
    }
}
