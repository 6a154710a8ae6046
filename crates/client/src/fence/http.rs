//! Fencing for an HTTP service: a tower layer that passes a request on when its token has been accepted.
//!
//! The service is not called before the store has accepted the token. After any other result, the layer itself responds.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tenure_table::{FencingToken, LockName};
use tower_layer::Layer;
use tower_service::Service;

use super::error::FenceError;
use super::source::TokenSource;
use super::store::FenceStore;
use crate::telemetry;

/// The header that carries a token, in decimal digits.
pub const HEADER: HeaderName = HeaderName::from_static("fencing-token");

/// The default time limit for the store.
const TIMEOUT: Duration = Duration::from_secs(5);

type ResourceOf = dyn Fn(&Parts) -> String + Send + Sync;

/// Passes a request on to the service behind it only if its `Fencing-Token` is not stale.
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// use axum::Router;
/// use axum::routing::put;
/// use tenure::fence::{FenceLayer, SqlFence};
///
/// let fence = SqlFence::new();
/// fence.create_table(&mut pool.acquire().await?).await?;
///
/// let app: Router = Router::new()
///     .route("/orders/{id}", put(async || "written"))
///     .layer(FenceLayer::new(fence.store(pool)));
/// # Ok(())
/// # }
/// ```
///
/// | the request's token | the response |
/// | --- | --- |
/// | not older than the newest of its resource | the service's |
/// | older | 412 Precondition Failed, with `error: "stale_token"` and the newest |
/// | missing | 428 Precondition Required, `missing_token`; with [`allow_missing`](Self::allow_missing) the service's |
/// | not a number, several, or too large for the store | 400 Bad Request, `malformed_token` |
/// | any, for a resource that is not a valid name | 400 Bad Request, `malformed_resource` |
/// | any, while the store does not answer | 503 Service Unavailable, `store_unavailable` |
///
/// The layer's own responses have a JSON body: `error`, `message`, and where known `resource`, `token`, `newest`.
///
/// # What it cannot do
///
/// **Check and write are two steps here.** An accepted request can be delayed between the layer and the data, while a newer token is
/// accepted and its write done. The older write then comes last, and remains. The window is the service's time for one request. It does
/// not grow with the pause of a client, against which fencing protects.
///
/// Where not a single such write may happen, check at the data: the service finds what was accepted in the request's extensions, as
/// [`Accepted`], and can pass it to `SqlFence::guard` in its own transaction.
///
/// The layer fences every request, also a GET: apply it to the routes that write.
#[derive(Clone)]
pub struct FenceLayer {
    store: Arc<dyn FenceStore>,
    resource_of: Arc<ResourceOf>,
    missing: Missing,
    timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Refused,
    Allowed,
}

/// What the fence has accepted. The layer adds it to the extensions of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The resource.
    pub resource: LockName,
    /// The token.
    pub token: FencingToken,
}

/// Lets a service check once more, at its data.
impl TokenSource for &Accepted {
    fn resource_and_token(&self) -> Result<(LockName, FencingToken), FenceError> {
        Ok((self.resource.clone(), self.token))
    }
}

impl FenceLayer {
    /// Creates a fence on this store. The resource of a request is the path of its URL, percent-decoded, as the layer sees it: axum's
    /// `Router::nest`, for instance, removes the first part of the path for the layers inside.
    pub fn new(store: impl FenceStore) -> Self {
        Self {
            store: Arc::new(store),
            resource_of: Arc::new(path),
            missing: Missing::Refused,
            timeout: TIMEOUT,
        }
    }

    /// Determines the resource of a request with this function, which must return one name for all requests that write to the same data.
    /// The name has 1 to 512 bytes and no control characters, like a lock's.
    ///
    /// ```
    /// # use tenure::fence::{FenceLayer, MemoryStore};
    /// let layer = FenceLayer::new(MemoryStore::new()).resource(|_request| "the-ledger".to_owned());
    /// ```
    #[must_use]
    pub fn resource(mut self, of: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.resource_of = Arc::new(of);
        self
    }

    /// Passes on requests that have no token at all, without fencing them. A token that is sent is still checked. This is for a
    /// transition in which not all clients send tokens yet.
    #[must_use]
    pub const fn allow_missing(mut self) -> Self {
        self.missing = Missing::Allowed;
        self
    }

    /// Sets the time limit for the store, after which the response is 503: 5 seconds by default. It needs the timers of tokio.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Returns what is accepted, or why the request is refused.
    async fn check(&self, request: &Parts) -> Result<Option<Accepted>, Refusal> {
        let Some(token) = token_of(request)? else {
            return match self.missing {
                Missing::Allowed => Ok(None),
                Missing::Refused => Err(Refusal::missing()),
            };
        };
        let resource = LockName::parse((self.resource_of)(request)).map_err(FenceError::Resource);
        let resource = resource.map_err(|error| Refusal::of(None, token, &error))?;
        match tokio::time::timeout(self.timeout, self.store.accept(&resource, token)).await {
            Ok(Ok(())) => Ok(Some(Accepted { resource, token })),
            Ok(Err(error)) => {
                telemetry::fenced_off(&resource, token, &error);
                Err(Refusal::of(Some(&resource), token, &error))
            }
            Err(late) => {
                let error = FenceError::NoAnswer { resource: resource.clone(), cause: late.into() };
                telemetry::fenced_off(&resource, token, &error);
                Err(Refusal::of(Some(&resource), token, &error))
            }
        }
    }
}

impl fmt::Debug for FenceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceLayer")
            .field("missing", &self.missing)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Decoded, since a router treats two spellings of a path as one. Invalid UTF-8 becomes one replacement text: one fence for two resources
/// is safe, two fences for one are not.
fn path(request: &Parts) -> String {
    percent_decode_str(request.uri.path()).decode_utf8_lossy().into_owned()
}

fn token_of(request: &Parts) -> Result<Option<FencingToken>, Refusal> {
    let mut values = request.headers.get_all(HEADER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Refusal::malformed("there are several Fencing-Token headers: send one".to_owned()));
    }
    // Only digits: Rust's parser would also accept `+7`.
    let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(number) => Ok(Some(FencingToken::new(number))),
        None => Err(Refusal::malformed(format!(
            "the Fencing-Token {value:?} is not a number from 0 to {}: send the token of the lock's guard in decimal digits",
            u64::MAX
        ))),
    }
}

/// A refusal, as the client sees it.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    body: Body,
}

#[derive(Debug, Serialize)]
struct Body {
    error: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<FencingToken>,
    #[serde(skip_serializing_if = "Option::is_none")]
    newest: Option<FencingToken>,
}

impl Refusal {
    const fn new(status: StatusCode, error: &'static str, message: String) -> Self {
        Self { status, body: Body { error, message, resource: None, token: None, newest: None } }
    }

    fn missing() -> Self {
        let message = "this request needs a Fencing-Token header, with the token of the lock's guard";
        Self::new(StatusCode::PRECONDITION_REQUIRED, "missing_token", message.to_owned())
    }

    const fn malformed(message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed_token", message)
    }

    fn of(resource: Option<&LockName>, token: FencingToken, error: &FenceError) -> Self {
        let mut refusal = match error {
            FenceError::Stale { .. } => {
                Self::new(StatusCode::PRECONDITION_FAILED, "stale_token", error.to_string())
            }
            FenceError::TooLarge { .. } => Self::malformed(error.to_string()),
            FenceError::Resource(_) => {
                Self::new(StatusCode::BAD_REQUEST, "malformed_resource", error.to_string())
            }
            // Internal errors are for the service's own log.
            _ => {
                let message = "whether this token is stale cannot be found out now: nothing was written, so send the request again later, with the same token";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_unavailable", message.to_owned())
            }
        };
        refusal.body.resource = resource.map(ToString::to_string);
        refusal.body.token = Some(token);
        if let FenceError::Stale { newest, .. } = error {
            refusal.body.newest = Some(*newest);
        }
        refusal
    }

    fn into_response<B: From<String>>(self) -> Response<B> {
        let text = serde_json::to_string(&self.body).expect("texts and numbers can be written as JSON");
        let mut response = Response::new(B::from(text));
        *response.status_mut() = self.status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = FenceService<S>;

    fn layer(&self, inner: S) -> FenceService<S> {
        FenceService { fence: self.clone(), inner }
    }
}

/// A service behind a fence, made by [`FenceLayer`]. The body of its responses must be convertible from a `String`, as the bodies of axum
/// and of `http-body-util` are.
#[derive(Clone, Debug)]
pub struct FenceService<S> {
    fence: FenceLayer,
    inner: S,
}

impl<S, RequestBody, ResponseBody> Service<Request<RequestBody>> for FenceService<S>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>> + Clone + Send + 'static,
    S::Future: Send,
    RequestBody: Send + 'static,
    ResponseBody: From<String>,
{
    type Response = Response<ResponseBody>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        // The instance that was polled ready must be called; its clone may not be ready yet.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let fence = self.fence.clone();
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            match fence.check(&parts).await {
                Ok(accepted) => {
                    if let Some(accepted) = accepted {
                        parts.extensions.insert(accepted);
                    }
                    inner.call(Request::from_parts(parts, body)).await
                }
                Err(refusal) => Ok(refusal.into_response()),
            }
        })
    }
}
