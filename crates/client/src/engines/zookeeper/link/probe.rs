//! A check whether any server can be reached at all. The client crate retries until its time is over, even if no server can answer.

use futures_util::future::join_all;
use tokio::net::{TcpStream, lookup_host};

use crate::engines::authority::{is_unknown_host, shown};
use crate::engines::zookeeper::address::Address;
use crate::engines::zookeeper::fault::{NoServer, no_server};
use crate::error::EngineError;

/// Returns the reason if none of the servers can be reached, and `None` if one of them accepts a connection. Does not return while a server
/// is silent.
pub(super) async fn unreachable(address: &Address) -> Option<EngineError> {
    let reasons = join_all(address.servers().iter().map(|(host, port)| probe(host, *port))).await;
    Some(no_server(reasons.into_iter().collect::<Option<_>>()?))
}

async fn probe(host: &str, port: u16) -> Option<NoServer> {
    let addrs: Vec<_> = match lookup_host((host, port)).await {
        Ok(addrs) => addrs.collect(),
        Err(error) if is_unknown_host(&error.to_string()) => {
            return Some(NoServer::UnknownHost { host: host.to_owned(), error });
        }
        Err(error) => return Some(NoServer::NoConnection { at: shown(host, port), error }),
    };
    let error = TcpStream::connect(&addrs[..]).await.err()?;
    Some(NoServer::NoConnection { at: shown(host, port), error })
}
