//! A network that fails, for the contract: a proxy before each server.

use std::net::SocketAddr;

use tenure::contract::Network;
use tenure_testkit::Proxy;

pub(crate) struct Proxies {
    each: Vec<Proxy>,
    /// A URL with these hosts.
    url: fn(&str) -> String,
}

impl Proxies {
    /// Before these servers, for such a URL with the hosts in it.
    pub(crate) fn before(servers: impl IntoIterator<Item = SocketAddr>, url: fn(&str) -> String) -> Self {
        Self { each: servers.into_iter().map(Proxy::to).collect(), url }
    }
}

impl Network for Proxies {
    fn address(&self) -> String {
        let hosts: Vec<_> = self.each.iter().map(|proxy| proxy.addr().to_string()).collect();
        (self.url)(&hosts.join(","))
    }

    fn cut(&self) {
        self.each.iter().for_each(Proxy::cut);
    }

    fn heal(&self) {
        self.each.iter().for_each(Proxy::heal);
    }

    fn sever(&self) {
        self.each.iter().for_each(Proxy::sever);
    }

    fn lose_answers(&self, lost: bool) {
        self.each.iter().for_each(|proxy| proxy.drop_answers(lost));
    }
}
