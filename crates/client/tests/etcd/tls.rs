//! `etcds:`, with certificates of an authority that nobody else knows.

use std::path::{Path, PathBuf};
use std::process::Command;

use tenure_testkit::{Certificates, Process, find_program, free_port};

use crate::{connect, refusal};

/// A server that speaks TLS, and asks its clients for certificates too if told so.
struct Tls {
    /// Kept for as long as it is needed.
    _etcd: Process,
    certificates: Certificates,
    port: u16,
}

impl Tls {
    fn start(asks_clients: bool) -> Self {
        let (certificates, port, peer_port) = (Certificates::make(), free_port(), free_port());
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| certificates.file(name).display().to_string();
        let (clients, peers) = (format!("https://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer_port}"));
        let mut command = Command::new(find_program("etcd").expect("etcd is installed"));
        command.arg("--data-dir").arg(folder.path().join("data")).args(["--name", "one", "--logger", "zap"]);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("one={peers}")]);
        command.args(["--cert-file", &path("server.pem"), "--key-file", &path("server.key")]);
        if asks_clients {
            command.args(["--client-cert-auth", "--trusted-ca-file", &path("ca.pem")]);
        }
        let mut etcd = Process::start("etcd by TLS", folder, command);
        etcd.wait_until_ready(|| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { _etcd: etcd, certificates, port }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.certificates.file(name)
    }

    fn url(&self, files: &[(&str, &Path)]) -> String {
        let options: Vec<_> =
            files.iter().map(|(option, path)| format!("{option}={}", path.display())).collect();
        format!("etcds://localhost:{}?{}", self.port, options.join("&"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_checked_by_its_authority() {
    let tls = Tls::start(false);
    let client = connect(&tls.url(&[("ca", &tls.file("ca.pem"))])).await;
    let guard = client.lock("a").acquire().await.unwrap();
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    let _ = guard.release().await.unwrap();

    let refused = refusal(&tls.url(&[])).await;
    assert_eq!(refused.matches("invalid peer certificate").count(), 1, "the reason: {refused}");
    assert!(refused.contains("?ca="), "{refused}");
    let refused = refusal(&tls.url(&[("ca", Path::new("/nowhere/ca.pem"))])).await;
    assert!(refused.contains("/nowhere/ca.pem"), "{refused}");
    let refused = refusal(&tls.url(&[("ca", &tls.file("server.key"))])).await;
    assert!(refused.contains("certificate"), "{refused}");
    let refused = refusal(&tls.url(&[("cert", &tls.file("client.pem"))])).await;
    assert!(refused.contains("`cert` and `key`"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_shows_its_own_certificate() {
    let tls = Tls::start(true);
    let (ca, cert, key) = (tls.file("ca.pem"), tls.file("client.pem"), tls.file("client.key"));
    let client = connect(&tls.url(&[("ca", &ca), ("cert", &cert), ("key", &key)])).await;
    drop(client.lock("a").acquire().await.unwrap());
    let refused = refusal(&tls.url(&[("ca", &ca)])).await;
    assert!(refused.contains(&format!("localhost:{}", tls.port)) && refused.contains("?cert="), "{refused}");
    assert_eq!(refused.matches("fatal alert").count(), 1, "the reason: {refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_speaks_tls_and_a_client_that_does_not_end_with_a_word() {
    let tls = Tls::start(false);
    let refused = refusal(&format!("etcd://localhost:{}?timeout_ms=2000", tls.port)).await;
    assert!(refused.contains(&format!("localhost:{}", tls.port)) && refused.contains("etcds:"), "{refused}");
    let open = tenure_testkit::Etcd::start();
    let refused = refusal(&format!(
        "etcds://localhost:{}?timeout_ms=2000&ca={}",
        open.port(),
        tls.file("ca.pem").display()
    ))
    .await;
    assert!(refused.contains(&format!("localhost:{}", open.port())), "{refused}");
}
