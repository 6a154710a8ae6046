//! Calls of etcd's API on one connection, by gRPC.
//!
//! Every call requires that the member has a leader. A call whose login has expired logs in again, and is repeated once.

use std::sync::{Arc, PoisonError, RwLock};

use futures_util::stream;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::mpsc;
use tonic::client::Grpc;

use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::api::{
    self, Delete, Deleted, Found, Get, GrantLease, LeaseGranted, LeaseId, LeaseKept, LeaseLives,
    LeaseRevoked, LogIn, LoggedIn, StatusOf, Txn, TxnAnswer, Watch, WatchAnswer,
};

/// The most bytes in one response: for a lock with very many waiters.
const LARGEST_ANSWER: usize = 256 << 20;

/// The number of requests that may wait on a stream.
const STREAM_BUFFER: usize = 100;

/// A user and its password.
pub(super) type Credentials = (String, String);

/// One connection, which is opened with the first call, and again after it breaks. Clones share it.
#[derive(Clone)]
pub(super) struct Client {
    channel: Channel,
    login: Option<Arc<Login>>,
}

struct Login {
    credentials: Credentials,
    token: RwLock<Option<AsciiMetadataValue>>,
    /// Held while a token is requested: one at a time.
    renewing: tokio::sync::Mutex<()>,
}

impl Login {
    fn token(&self) -> Option<AsciiMetadataValue> {
        self.token.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A stream in both directions.
pub(super) struct Calls<Q, A> {
    pub(super) requests: mpsc::Sender<Q>,
    pub(super) answers: Streaming<A>,
}

impl Client {
    /// Creates a client. Must be called on the runtime on which the connection is to live.
    pub(super) fn new(endpoint: &Endpoint, credentials: Option<Credentials>) -> Self {
        let login = credentials.map(|credentials| {
            Arc::new(Login { credentials, token: RwLock::default(), renewing: tokio::sync::Mutex::default() })
        });
        Self { channel: endpoint.connect_lazy(), login }
    }

    pub(super) const fn has_login(&self) -> bool {
        self.login.is_some()
    }

    /// Logs in, if there is a login.
    pub(super) async fn log_in(&self) -> Result<(), Status> {
        self.log_in_instead_of(self.token()).await
    }

    /// Logs in, unless another call has replaced this token already.
    async fn log_in_instead_of(&self, stale: Option<AsciiMetadataValue>) -> Result<(), Status> {
        let Some(login) = &self.login else { return Ok(()) };
        let _one_at_a_time = login.renewing.lock().await;
        if login.token() != stale {
            return Ok(());
        }
        let (name, password) = login.credentials.clone();
        let credentials = request(LogIn { name, password }, None);
        let logged_in: LoggedIn = self.unary("/etcdserverpb.Auth/Authenticate", credentials).await?;
        let token = logged_in.token.parse().map_err(|_| Status::internal("it gave a token that is none"))?;
        *login.token.write().unwrap_or_else(PoisonError::into_inner) = Some(token);
        Ok(())
    }

    pub(super) async fn get(&self, get: Get) -> Result<Found, Status> {
        self.call("/etcdserverpb.KV/Range", get).await
    }

    pub(super) async fn delete(&self, delete: Delete) -> Result<Deleted, Status> {
        self.call("/etcdserverpb.KV/DeleteRange", delete).await
    }

    pub(super) async fn txn(&self, txn: Txn) -> Result<TxnAnswer, Status> {
        self.call("/etcdserverpb.KV/Txn", txn).await
    }

    pub(super) async fn status(&self) -> Result<api::Status, Status> {
        self.call("/etcdserverpb.Maintenance/Status", StatusOf {}).await
    }

    pub(super) async fn grant_lease(&self, ttl: i64) -> Result<LeaseGranted, Status> {
        self.call("/etcdserverpb.Lease/LeaseGrant", GrantLease { ttl }).await
    }

    pub(super) async fn revoke_lease(&self, id: i64) -> Result<LeaseRevoked, Status> {
        self.call("/etcdserverpb.Lease/LeaseRevoke", LeaseId { id }).await
    }

    pub(super) async fn lease_lives(&self, id: i64) -> Result<LeaseLives, Status> {
        self.call("/etcdserverpb.Lease/LeaseTimeToLive", LeaseId { id }).await
    }

    /// Opens a stream of keep-alives, with the first one on it.
    pub(super) async fn keep_alive(&self, id: i64) -> Result<Calls<LeaseId, LeaseKept>, Status> {
        self.stream("/etcdserverpb.Lease/LeaseKeepAlive", LeaseId { id }).await
    }

    /// Opens a stream of watches, with the first one on it.
    pub(super) async fn watch(&self, watch: Watch) -> Result<Calls<Watch, WatchAnswer>, Status> {
        self.stream("/etcdserverpb.Watch/Watch", watch).await
    }

    async fn call<Q, A>(&self, path: &'static str, question: Q) -> Result<A, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let token = self.token();
        let answer = self.unary(path, request(question.clone(), token.clone())).await;
        if !self.needs_login(&answer) {
            return answer;
        }
        self.log_in_instead_of(token).await?;
        self.unary(path, request(question, self.token())).await
    }

    async fn stream<Q, A>(&self, path: &'static str, first: Q) -> Result<Calls<Q, A>, Status>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let token = self.token();
        let answer = self.stream_once(path, first.clone(), token.clone()).await;
        if !self.needs_login(&answer) {
            return answer;
        }
        self.log_in_instead_of(token).await?;
        self.stream_once(path, first, self.token()).await
    }

    fn token(&self) -> Option<AsciiMetadataValue> {
        self.login.as_ref()?.token()
    }

    /// Whether a call was refused because its login has expired.
    fn needs_login<A>(&self, answer: &Result<A, Status>) -> bool {
        self.login.is_some() && answer.as_ref().is_err_and(|status| status.code() == Code::Unauthenticated)
    }

    async fn stream_once<Q, A>(
        &self,
        path: &'static str,
        first: Q,
        token: Option<AsciiMetadataValue>,
    ) -> Result<Calls<Q, A>, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let (requests, sent) = mpsc::channel(STREAM_BUFFER);
        // etcd may send nothing, not even the start of a stream, before it has the first request.
        let _ = requests.try_send(first);
        let sent = stream::unfold(sent, |mut sent| async move { Some((sent.recv().await?, sent)) });
        let path = PathAndQuery::from_static(path);
        let mut grpc = self.ready().await?;
        let codec = ProstCodec::<Q, A>::default();
        let answers = grpc.streaming(request(Box::pin(sent), token), path, codec).await?.into_inner();
        Ok(Calls { requests, answers })
    }

    async fn unary<Q, A>(&self, path: &'static str, request: Request<Q>) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let path = PathAndQuery::from_static(path);
        let mut grpc = self.ready().await?;
        Ok(grpc.unary(request, path, ProstCodec::<Q, A>::default()).await?.into_inner())
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(LARGEST_ANSWER);
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        Ok(grpc)
    }
}

fn request<T>(message: T, token: Option<AsciiMetadataValue>) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("hasleader", AsciiMetadataValue::from_static("true"));
    if let Some(token) = token {
        request.metadata_mut().insert("token", token);
    }
    request
}
