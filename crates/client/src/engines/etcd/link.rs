//! The connection to etcd: to one member at a time, for as long as it answers.
//!
//! Every request may be sent twice, since all its effects are conditional. A request that fails, or has no response for a while, is sent
//! again, to the next member if there are several, until its time is over. The client crate could spread requests over all members. But it
//! does not know which members answer, so a share of the requests would fail at each one that is dead or silent.
//!
//! Connections and their tasks live on the client's own runtime. A caller may wait for the response on any runtime.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tonic::Status;
use tonic::transport::{ClientTlsConfig, Endpoint};

use super::address::Address;
use super::api::{Delete, Found, Get, LeaseGranted, LeaseLives, Txn, TxnAnswer};
use super::fault::{Fault, What};
use super::keys::OWN_KEYS;
use super::rpc::{Client, Credentials};
use crate::clock::BootTime;
use crate::engine::EngineContext;
use crate::error::{ConnectError, EngineError};
use crate::random;

/// The time limit for connecting to one member.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// The interval between pings on a connection in use, and the time limit of an answer. etcd closes connections with more than one ping in 5
/// s.
const PING_EVERY: Duration = Duration::from_secs(6);
const PING_LIMIT: Duration = Duration::from_secs(3);

/// The shortest and the longest pause before a request is sent again.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// The shortest silence after which a member is given up for the next, if the time of the request allows for that.
const SHORTEST_ATTEMPT: Duration = Duration::from_secs(1);

/// The least age of a failing connection before another one is opened.
const YOUNGEST: Duration = Duration::from_millis(200);

pub(super) struct Link {
    context: EngineContext,
    /// The time limit of one request.
    limit: Duration,
    /// The endpoint of each member, and its name in messages.
    members: Vec<(Endpoint, String)>,
    login: Option<Credentials>,
    present: Mutex<Present>,
    /// The number of the present connection, for streams on it.
    turned: watch::Sender<u64>,
}

struct Present {
    member: usize,
    number: u64,
    connection: Option<Connection>,
}

/// The connection to one member.
pub(super) type Connection = Arc<Connected>;

pub(super) struct Connected {
    pub(super) number: u64,
    /// Host and port.
    pub(super) at: String,
    pub(super) client: Client,
    made: BootTime,
    /// The time of the last response on this connection.
    heard: Mutex<BootTime>,
    /// The outcome of the login, if there is one.
    login: Option<watch::Receiver<Option<Result<(), Fault>>>>,
}

/// A response, and whether its request was sent more than once.
pub(super) struct Answer<T> {
    pub(super) answer: T,
    pub(super) repeated: bool,
}

impl Link {
    pub(super) fn new(address: &Address, context: EngineContext) -> Result<Arc<Self>, ConnectError> {
        let tls = address.tls()?;
        let member = |(url, at): (String, String)| match endpoint(&url, tls.clone()) {
            Ok(endpoint) => Ok((endpoint, at)),
            Err(error) => Err(Fault::unusable(&at, &error).error),
        };
        let members = address.members().into_iter().map(member).collect::<Result<Vec<_>, _>>()?;
        // At random: the first member in a URL that many clients share would have all the load.
        let member = random::below(members.len());
        Ok(Arc::new(Self {
            context,
            limit: address.limit,
            members,
            login: address.login(),
            present: Mutex::new(Present { member, number: 0, connection: None }),
            turned: watch::Sender::new(0),
        }))
    }

    pub(super) const fn limit(&self) -> Duration {
        self.limit
    }

    fn now(&self) -> BootTime {
        self.context.clock.now()
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the present connection. It is opened with the first request.
    pub(super) fn connection(&self) -> Connection {
        let mut present = self.present();
        if let Some(connection) = &present.connection {
            return connection.clone();
        }
        let connection = Arc::new(self.connect(present.member, present.number));
        present.connection = Some(connection.clone());
        connection
    }

    fn connect(&self, member: usize, number: u64) -> Connected {
        let (endpoint, at) = &self.members[member];
        let client = {
            let _tasks_of = self.context.runtime.enter();
            Client::new(endpoint, self.login.clone())
        };
        let login = client.has_login().then(|| {
            let (send, state) = watch::channel(None);
            let (client, at) = (client.clone(), at.clone());
            // In a separate task: the first caller may be dropped.
            self.context.runtime.spawn(async move {
                let logged_in = client.log_in().await;
                send.send_replace(Some(logged_in.map_err(|error| Fault::of(&at, &error))));
            });
            state
        });
        let made = self.now();
        Connected { number, at: at.clone(), client, made, heard: Mutex::new(made), login }
    }

    /// Gives up this connection. Later requests go to the next member, or on a new connection to the only one.
    pub(super) fn turn_from(&self, connection: &Connected) {
        // When many requests find no leader, they do not each open a connection.
        if self.now() < connection.made + YOUNGEST {
            return;
        }
        let mut present = self.present();
        if present.number == connection.number {
            present.member = (present.member + 1) % self.members.len();
            present.number += 1;
            present.connection = None;
            self.turned.send_replace(present.number);
        }
    }

    /// Waits until another connection than this is the present one.
    pub(super) async fn turned_from(&self, connection: &Connected) {
        let mut turned = self.turned.subscribe();
        // `self` holds the sender, so this cannot fail.
        let _ = turned.wait_for(|number| *number != connection.number).await;
    }

    /// Returns the time for which a member may be silent.
    fn silence_limit(&self) -> Duration {
        let attempts = if self.members.len() == 1 { 2 } else { 3 };
        (self.limit / attempts).max(SHORTEST_ATTEMPT).min(self.limit)
    }

    /// Waits for a response until this time.
    pub(super) async fn until<T>(
        &self,
        ends: BootTime,
        asking: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let began = self.now();
        tokio::select! {
            biased;
            answer = asking => answer,
            () = self.context.clock.sleep_until(ends) => {
                let members: Vec<_> = self.members.iter().map(|(_, at)| at.as_str()).collect();
                Err(no_answer(&members.join(","), self.now().since(began)))
            }
        }
    }

    /// Makes one attempt on this connection. It ends if no response to any request arrives there for a while: a slow request may only have
    /// many others before it. After a failure, gives up the connection or logs in again if that may help.
    pub(super) async fn attempt<T>(
        &self,
        connection: &Connection,
        ends: BootTime,
        asking: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let began = self.now();
        let limit = self.silence_limit();
        let silence = async {
            loop {
                let silent_at = ends.min(connection.heard_at().max(began) + limit);
                if self.now() >= silent_at {
                    return;
                }
                self.context.clock.sleep_until(silent_at).await;
            }
        };
        let attempted = async {
            connection.logged_in().await?;
            asking.await
        };
        let fault = tokio::select! {
            biased;
            answer = attempted => match answer {
                Ok(answer) => {
                    connection.hears(self.now());
                    return Ok(answer);
                }
                Err(fault) => fault,
            },
            () = silence => no_answer(&connection.at, self.now().since(began)),
        };
        // A connection that breaks is opened again by itself; a silent one is not.
        let was_silent = self.now() >= connection.heard_at().max(began) + limit;
        if fault.what == What::OldLogin {
            // If this fails, the next request reports the reason.
            let _ = self.until(self.now() + limit, connection.renew_login()).await;
        } else if connection.login_failed()
            || was_silent
            || (fault.what.is_silence() && self.members.len() > 1)
        {
            self.turn_from(connection);
        }
        Err(fault)
    }

    /// Repeats a request until there is a response, or until the time of one request is over.
    async fn ask<T, F>(&self, request: impl Fn(Connection) -> F) -> Result<Answer<T>, Fault>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let ends = self.now() + self.limit;
        let (mut repeated, mut pause, mut before) = (false, FIRST_PAUSE, None);
        loop {
            let connection = self.connection();
            // Boxed, since calls are large, and waiters for a lock have none under way.
            let asking = Box::pin(async {
                request(connection.clone()).await.map_err(|error| Fault::of(&connection.at, &error))
            });
            let fault = match self.attempt(&connection, ends, asking).await {
                Ok(answer) => return Ok(Answer { answer, repeated }),
                Err(fault) => fault,
            };
            let is_final = !fault.what.is_silence() && fault.what != What::OldLogin;
            let has_no_other = self.members.len() == 1 && matches!(fault.error, EngineError::NotFound { .. });
            if is_final || has_no_other {
                return Err(fault.after(repeated));
            }
            repeated |= fault.what == What::NoAnswer;
            let go_on = self.now() + random::jittered(pause);
            if go_on >= ends {
                // An attempt that was cut short by the time limit says less than the one before it.
                let is_cut_short = self.now() >= ends;
                return Err(before.filter(|_| is_cut_short).unwrap_or(fault).after(repeated));
            }
            before = Some(fault);
            self.context.clock.sleep_until(go_on).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Connects, to check that this is possible and that etcd answers.
    pub(super) async fn reach(&self, prefix: &str) -> Result<(), Fault> {
        match self.ask(|connection| async move { connection.client.status().await }).await {
            Ok(Answer { answer, .. }) => examine(&self.connection().at, &answer.version)?,
            // A user without permission for this is trusted to know the server.
            Err(fault) if matches!(fault.error, EngineError::Denied { .. } | EngineError::Refused { .. }) => {
            }
            Err(fault) => return Err(fault),
        }
        self.get(Get::key(format!("{prefix}{OWN_KEYS}")).count_only()).await?;
        Ok(())
    }

    pub(super) async fn txn(&self, txn: Txn) -> Result<Answer<TxnAnswer>, Fault> {
        self.ask(|connection| {
            let txn = txn.clone();
            async move { connection.client.txn(txn).await }
        })
        .await
    }

    /// Deletes a key. Returns whether it existed.
    pub(super) async fn delete(&self, key: &str) -> Result<Answer<bool>, Fault> {
        self.ask(
            |connection| async move { Ok(connection.client.delete(Delete::key(key)).await?.deleted > 0) },
        )
        .await
    }

    pub(super) async fn get(&self, get: Get) -> Result<Found, Fault> {
        let asked = self.ask(|connection| {
            let get = get.clone();
            async move { connection.client.get(get).await }
        });
        Ok(asked.await?.answer)
    }

    /// Requests a new lease. If it is requested twice because a response was lost, the other one expires by itself.
    pub(super) async fn grant(&self, ttl: i64) -> Result<LeaseGranted, Fault> {
        Ok(self.ask(|connection| async move { connection.client.grant_lease(ttl).await }).await?.answer)
    }

    pub(super) async fn revoke(&self, id: i64) -> Result<(), Fault> {
        match self.ask(|connection| async move { connection.client.revoke_lease(id).await }).await {
            Err(fault) if fault.what != What::LeaseGone => Err(fault),
            _ => Ok(()),
        }
    }

    pub(super) async fn lease_lives(&self, id: i64) -> Result<LeaseLives, Fault> {
        Ok(self.ask(|connection| async move { connection.client.lease_lives(id).await }).await?.answer)
    }

    /// Drops the connection.
    pub(super) fn close(&self) {
        self.present().connection = None;
    }
}

/// Returns the endpoint of a member.
fn endpoint(url: &str, tls: Option<ClientTlsConfig>) -> Result<Endpoint, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(url.to_owned())?
        .connect_timeout(CONNECT_LIMIT)
        .http2_keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_LIMIT)
        // etcd closes an unused connection that sends pings.
        .keep_alive_while_idle(false);
    match tls {
        Some(tls) => endpoint.tls_config(tls),
        None => Ok(endpoint),
    }
}

fn no_answer(at: &str, waited: Duration) -> Fault {
    Fault::no_answer(format!(
        "{at} did not answer within {waited:.1?}: see whether it runs, and whether this host may reach it"
    ))
}

impl Connected {
    fn heard_at(&self) -> BootTime {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hears(&self, now: BootTime) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        *heard = now.max(*heard);
    }

    /// Waits until etcd has accepted the login.
    pub(super) async fn logged_in(&self) -> Result<(), Fault> {
        let Some(login) = &self.login else { return Ok(()) };
        let mut login = login.clone();
        let Ok(state) = login.wait_for(Option::is_some).await else {
            return Err(Fault::no_answer("the client was closed".to_owned()));
        };
        match state.as_ref().expect("this was waited for") {
            Ok(()) => Ok(()),
            Err(fault) => Err(fault.again()),
        }
    }

    fn login_failed(&self) -> bool {
        self.login.as_ref().is_some_and(|login| matches!(&*login.borrow(), Some(Err(_))))
    }

    /// Logs in again, if there is a login.
    pub(super) async fn renew_login(&self) -> Result<(), Fault> {
        self.client.log_in().await.map_err(|error| Fault::of(&self.at, &error))
    }
}

/// Refuses a version that is too old.
fn examine(at: &str, version: &str) -> Result<(), Fault> {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) if (major, minor) < (3, 4) => Err(Fault::refused(format!(
            "{at} is etcd {version}: version 3.4 or later is needed, in which who watches many keys says which is which"
        ))),
        _ => Ok(()),
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The login is left out.
        let members: Vec<_> = self.members.iter().map(|(_, at)| at).collect();
        f.debug_struct("Link").field("members", &members).finish_non_exhaustive()
    }
}
