//! `rediss:`, with certificates of an authority that nobody else knows.

use std::path::{Path, PathBuf};

use tenure_testkit::{Certificates, Redis, free_port};

use crate::{connect, refusal};

/// A server that speaks TLS, and asks its clients for certificates too if told so.
struct Tls {
    /// Kept for as long as it is needed.
    _redis: Redis,
    certificates: Certificates,
    port: u16,
}

impl Tls {
    fn start(asks_clients: &str) -> Self {
        let (certificates, port) = (Certificates::make(), free_port());
        let path = |name: &str| certificates.file(name).display().to_string();
        let redis = Redis::builder()
            .args(["--tls-port", &port.to_string(), "--tls-auth-clients", asks_clients])
            .args(["--tls-cert-file", &path("server.pem"), "--tls-key-file", &path("server.key")])
            .args(["--tls-ca-cert-file", &path("ca.pem")])
            .start();
        Self { _redis: redis, certificates, port }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.certificates.file(name)
    }

    fn url(&self, files: &[(&str, &Path)]) -> String {
        let options: Vec<_> =
            files.iter().map(|(option, path)| format!("{option}={}", path.display())).collect();
        format!("rediss://localhost:{}?{}", self.port, options.join("&"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_checked_by_its_authority() {
    let tls = Tls::start("no");
    let client = connect(&tls.url(&[("ca", &tls.file("ca.pem"))])).await;
    let guard = client.lock("a").acquire().await.unwrap();
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    let _ = guard.release().await.unwrap();

    let refused = refusal(&tls.url(&[])).await;
    assert!(refused.contains("certificate") && refused.contains("?ca="), "{refused}");
    let refused = refusal(&tls.url(&[("ca", Path::new("/nowhere/ca.pem"))])).await;
    assert!(refused.contains("/nowhere/ca.pem"), "{refused}");
    let refused = refusal(&tls.url(&[("cert", &tls.file("client.pem"))])).await;
    assert!(refused.contains("`cert` and `key`"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_shows_its_own_certificate() {
    let tls = Tls::start("yes");
    let (ca, cert, key) = (tls.file("ca.pem"), tls.file("client.pem"), tls.file("client.key"));
    let client = connect(&tls.url(&[("ca", &ca), ("cert", &cert), ("key", &key)])).await;
    drop(client.lock("a").acquire().await.unwrap());
    let refused = refusal(&tls.url(&[("ca", &ca)])).await;
    assert!(refused.contains(&format!("localhost:{}", tls.port)), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_speaks_tls_and_a_client_that_does_not_end_with_a_word() {
    let tls = Tls::start("no");
    let refused = refusal(&format!("redis://localhost:{}?timeout_ms=2000", tls.port)).await;
    assert!(refused.contains(&format!("localhost:{}", tls.port)), "{refused}");
}
