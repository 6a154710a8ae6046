//! The servers' tree, as somebody sees it who knows nothing of Tenure.

use std::time::Duration;

use zookeeper_client::{Acl, Client, Error};

/// A session of the test's own.
pub(crate) struct Tree(Client);

impl Tree {
    pub(crate) async fn at(hosts: impl ToString) -> Self {
        Self::logged_in(hosts, None).await
    }

    /// As this user: `user:password`.
    pub(crate) async fn logged_in(hosts: impl ToString, user: Option<&str>) -> Self {
        let mut connector = Client::connector().with_session_timeout(Duration::from_mins(1));
        if let Some(user) = user {
            connector = connector.with_auth("digest", user.as_bytes());
        }
        Self(connector.connect(&hosts.to_string()).await.unwrap())
    }

    /// The names of the nodes below this one, in their order; none, if it is not there.
    pub(crate) async fn children(&self, path: &str) -> Vec<String> {
        self.0.sync("/").await.unwrap();
        let mut children = match self.0.list_children(path).await {
            Err(Error::NoNode) => Vec::new(),
            children => children.unwrap(),
        };
        children.sort();
        children
    }

    /// The path of the only node below this one.
    pub(crate) async fn only_child(&self, path: &str) -> String {
        let children = self.children(path).await;
        let [child] = &children[..] else { panic!("{path} has not one child: {children:?}") };
        format!("{path}/{child}")
    }

    pub(crate) async fn has(&self, path: &str) -> bool {
        self.0.sync("/").await.unwrap();
        self.0.check_stat(path).await.unwrap().is_some()
    }

    pub(crate) async fn data(&self, path: &str) -> String {
        String::from_utf8(self.0.get_data(path).await.unwrap().0).unwrap()
    }

    /// The session that a node goes with.
    pub(crate) async fn session_of(&self, path: &str) -> i64 {
        self.0.check_stat(path).await.unwrap().expect("it is there").ephemeral_owner
    }

    pub(crate) async fn acl_of(&self, path: &str) -> Vec<Acl> {
        self.0.get_acl(path).await.unwrap().0
    }

    pub(crate) async fn delete(&self, path: &str) {
        self.0.delete(path, None).await.unwrap();
    }
}
