//! A client that is cut off from all of its servers.

use tenure_testkit::EtcdCluster;

use crate::partition::{self, Servers};

#[tokio::test(flavor = "multi_thread")]
async fn a_short_cut_costs_nothing() {
    let addrs = &EtcdCluster::shared().addrs();
    let url = |hosts: &str| format!("etcd://{hosts}?prefix=short-cut/&timeout_ms=3000");
    partition::a_short_cut_costs_nothing(Servers { addrs, url }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_cut_ends_belief_before_the_next_is_let_in() {
    let addrs = &EtcdCluster::shared().addrs();
    let url = |hosts: &str| format!("etcd://{hosts}?prefix=long-cut/&timeout_ms=3000");
    partition::a_long_cut_ends_belief_before_the_next_is_let_in(Servers { addrs, url }).await;
}
