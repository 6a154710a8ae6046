//! Servers that speak TLS, with certificates of an authority that nobody else knows.

use tenure::contract::within;
use tenure_testkit::Certificates;

use super::{Database, LONG, PATIENCE, connect, recipes, refusal};

/// The user whose name is in the client's certificate.
const USER: &str = "client";

/// What `tls`, `ca`, `cert` and `key` say in a URL, each as the name of a file.
fn options(certificates: &Certificates, files: &[&str]) -> String {
    let option = |name: &&str| {
        let (option, file) = name.split_once('=').unwrap();
        format!("&{option}={}", certificates.file(file).display())
    };
    files.iter().map(option).collect()
}

/// The URL of a recipe, by the name of this host.
fn url<D: Database>(server: &D, host: &str, recipe: &str, options: &str) -> String {
    let login = server.login(USER, &server.database()).replace("127.0.0.1", host);
    format!("{login}?recipe={recipe}{options}")
}

/// A server, and a user who is let in by TLS alone.
fn start<D: Database>(certificates: &Certificates, shows_certificate: bool) -> D {
    let mut server = D::start_with_tls(certificates);
    server.add_user_with_tls(USER, shows_certificate);
    for recipe in recipes::<D>() {
        for statement in tenure::migration(&server.recipe(recipe, "")).unwrap() {
            server.sql(&statement);
        }
    }
    server.let_use_tables(USER);
    server
}

/// Whatever connects, also for those who wait.
async fn is_used(url: &str) {
    let client = connect(url).await;
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    assert!(client.lock("a").try_acquire().await.unwrap().is_none(), "{url}");
    let _ = held.release().await.unwrap();
    let next = within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap();
    let _ = next.release().await.unwrap();
    client.close().await.unwrap();
}

pub(crate) async fn a_certificate_is_checked_by_its_authority_and_its_host<D: Database>() {
    let (certificates, strangers) = (Certificates::make(), Certificates::make());
    let server = start::<D>(&certificates, false);
    let ca = options(&certificates, &["ca=ca.pem"]);
    let other_ca = options(&strangers, &["ca=ca.pem"]);
    for recipe in recipes::<D>() {
        is_used(&url(&server, "localhost", recipe, &ca)).await;
        is_used(&url(&server, "localhost", recipe, &format!("{ca}&tls=verify"))).await;

        for unknown in ["&tls=verify", &other_ca] {
            let refused = refusal(&url(&server, "localhost", recipe, unknown)).await.to_string();
            assert!(refused.contains("unknown issuer") && refused.contains("?ca="), "{unknown}: {refused}");
        }
        let refused = refusal(&url(&server, "127.0.0.1", recipe, &ca)).await.to_string();
        assert!(refused.contains("another host") && refused.contains("localhost"), "{refused}");
        // Without TLS, this user is not let in.
        refusal(&url(&server, "localhost", recipe, "&tls=off")).await;
    }
}

/// If nothing is said, a connection is by TLS where the server speaks it, whoever that is.
pub(crate) async fn without_verification_no_certificate_is_looked_at<D: Database>() {
    let certificates = Certificates::make();
    let server = start::<D>(&certificates, false);
    for recipe in recipes::<D>() {
        is_used(&url(&server, "127.0.0.1", recipe, "")).await;
        is_used(&url(&server, "127.0.0.1", recipe, "&tls=prefer")).await;
    }
}

pub(crate) async fn a_file_that_is_missing_is_named<D: Database>() {
    let certificates = Certificates::make();
    let server = start::<D>(&certificates, false);
    let cert = options(&certificates, &["cert=client.pem"]);
    for recipe in recipes::<D>() {
        for options in ["&ca=/nowhere/file", &format!("{cert}&key=/nowhere/file")] {
            let refused = refusal(&url(&server, "localhost", recipe, options)).await.to_string();
            assert!(refused.contains("/nowhere/file"), "{options}: {refused}");
        }
    }
}

pub(crate) async fn a_client_shows_its_own_certificate<D: Database>() {
    let (certificates, strangers) = (Certificates::make(), Certificates::make());
    let server = start::<D>(&certificates, true);
    let ca = options(&certificates, &["ca=ca.pem"]);
    let own = options(&certificates, &["cert=client.pem", "key=client.key"]);
    let others = options(&strangers, &["cert=client.pem", "key=client.key"]);
    for recipe in recipes::<D>() {
        is_used(&url(&server, "localhost", recipe, &format!("{ca}{own}"))).await;
        is_used(&url(&server, "localhost", recipe, &own)).await;
        for options in [&ca, &format!("{ca}{others}")] {
            let refused = refusal(&url(&server, "localhost", recipe, options)).await.to_string();
            assert!(refused.contains("localhost:"), "{options}: {refused}");
        }
    }
}

pub(crate) async fn who_asks_for_tls_is_not_served_without<D: Database>() {
    let server = D::start();
    for recipe in recipes::<D>() {
        let refused = refusal(&server.recipe(recipe, "&tls=verify")).await.to_string();
        assert!(refused.contains("127.0.0.1:") && refused.contains("does not support TLS"), "{refused}");
    }
}
