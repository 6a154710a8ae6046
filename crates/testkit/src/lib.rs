//! Real servers, processes, disks and networks for Tenure's tests and benchmarks.
//!
//! What a lock promises shows only when something goes wrong. This kit makes it go wrong, on real
//! servers and on command: they are stopped, killed and paused, their clock is stepped, their network is
//! cut, their disk fills up.
//!
//! ```
//! use tenure_testkit::{Persistence, Proxy, Redis};
//!
//! let mut redis = Redis::builder().persistence(Persistence::AofAlways).start();
//! let proxy = Proxy::to(redis.addr());
//! let url = format!("redis://{}", proxy.addr()); // what the client under test is given
//! # let _ = url;
//!
//! redis.command(&["SET", "orders", "held"]);
//! proxy.cut(); // a partition: the client hears nothing, not even a reset
//! proxy.heal();
//! redis.kill(); // as `kill -9`
//! redis.restart();
//! assert_eq!(redis.command(&["GET", "orders"]), "held");
//! ```
//!
//! | to have | use |
//! | --- | --- |
//! | a Redis of one's own, or one for all tests of a run | [`Redis::start`], [`Redis::builder`], [`Redis::shared`] |
//! | a PostgreSQL or a MariaDB, in the same ways | [`Postgres`], [`MariaDb`] |
//! | a ZooKeeper or an etcd, in the same ways | [`ZooKeeper`], [`Etcd`] |
//! | three of these that are one | [`ZooKeeperCluster`], [`EtcdCluster`] |
//! | a pool between clients and a PostgreSQL | [`PgBouncer`] |
//! | certificates for servers that speak TLS, and for their clients | [`Certificates`] |
//! | to kill, pause or restart one of these | [`Server`] |
//! | any other server as a supervised child | [`Process`] |
//! | a free port | [`free_port`] |
//! | a network that is cut, severed, or loses answers | [`Proxy`] |
//! | a client whose packets are lost, and not only held back | [`Netns`] |
//! | a wall clock that jumps | [`Server::step_clock`], and [`Faketime`] for other servers |
//! | a terminal that somebody types on | [`Terminal`] |
//! | a disk that is full | [`SmallDisk`] |
//! | a program that is not root | [`unprivileged`] |
//! | to wait for something without a sleep | [`eventually`], [`eventually_within`] |
//! | to speak to Redis byte by byte | [`RedisConnection`] |
//!
//! Two rules hold everywhere. **Nothing is skipped silently**: where a program or a right is missing, the
//! test panics, and the message says what to do. **Nothing is left behind**: children die with the test
//! process, also when that is killed, and folders and mounts vanish when their owner is dropped.

mod certificates;
mod client;
mod cluster;
mod deadline;
mod disk;
mod etcd;
mod faketime;
mod family;
mod guard;
mod mariadb;
mod netns;
mod pgbouncer;
mod port;
mod postgres;
mod process;
mod program;
mod proxy;
mod redis;
mod resp;
mod server;
mod shared;
mod spawner;
mod sql;
mod terminal;
mod user;
mod wait;
mod zookeeper;

pub use certificates::Certificates;
pub use cluster::Cluster;
pub use disk::SmallDisk;
pub use etcd::{Etcd, EtcdBuilder, EtcdCluster, EtcdClusterBuilder};
pub use faketime::Faketime;
pub use mariadb::{MariaDb, MariaDbBuilder};
pub use netns::Netns;
pub use pgbouncer::{PgBouncer, Pooling};
pub use port::free_port;
pub use postgres::{Postgres, PostgresBuilder};
pub use process::Process;
pub use program::{MissingProgram, find_program};
pub use proxy::Proxy;
pub use redis::{Persistence, Redis, RedisBuilder};
pub use resp::RedisConnection;
pub use server::Server;
pub use shared::serve_a_run;
pub use terminal::Terminal;
pub use user::unprivileged;
pub use wait::{Condition, eventually, eventually_within};
pub use zookeeper::{ZooKeeper, ZooKeeperBuilder, ZooKeeperCluster, ZooKeeperClusterBuilder};
