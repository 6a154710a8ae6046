//! A rate of one per key in a web service: at most one confirmation mail per user and minute, on all instances together.
//!
//! `cargo run --example rate_per_key [URL]`; without a URL and without `TENURE_URL` it uses `memory:`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use tenure::{AcquireError, Client, OncePerError, Turn, Wait};
use tokio::net::TcpListener;

type Error = Box<dyn std::error::Error + Send + Sync>;

const MINUTE: Duration = Duration::from_mins(1);

/// `POST /confirmation-mail/{user}`.
async fn confirmation_mail(State(locks): State<Client>, Path(user): Path<String>) -> (StatusCode, String) {
    let turn = locks.once_per(format!("confirmation-mail/{user}"), MINUTE).spread(Duration::ZERO);
    match turn.wait(Wait::Try).begin().await {
        Ok(Turn::Yours(run)) => {
            // The start is recorded. The mail is sent here, under the lock.
            let _ = run.succeeded().await; // a release that is not confirmed is repeated in the background
            (StatusCode::ACCEPTED, format!("a mail is sent to {user}\n"))
        }
        Ok(Turn::AlreadyRun { ago }) => {
            let seconds = MINUTE.saturating_sub(ago).as_secs_f64().ceil();
            (StatusCode::TOO_MANY_REQUESTS, format!("try again in {seconds} s\n"))
        }
        // Another request for the same user has the lock, and its start is not recorded yet.
        Err(error) if error.is_busy() => (StatusCode::TOO_MANY_REQUESTS, "try again in 60 s\n".to_owned()),
        Err(OncePerError::Acquire(AcquireError::Name(error))) => (StatusCode::BAD_REQUEST, error.to_string()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

/// An instance of the service, with a client of its own.
async fn instance(url: &str) -> Result<SocketAddr, Error> {
    let locks = Client::connect(url).await?;
    let service = Router::new().route("/confirmation-mail/{user}", post(confirmation_mail)).with_state(locks);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(address)
}

/// The status of a request for a mail.
async fn ask(address: SocketAddr, user: String) -> Result<u16, Error> {
    let asking = move || -> Result<u16, Error> {
        let mut connection = TcpStream::connect(address)?;
        write!(
            connection,
            "POST /confirmation-mail/{user} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )?;
        let mut response = String::new();
        connection.read_to_string(&mut response)?;
        print!("{user}: {}", response.split("\r\n\r\n").nth(1).unwrap_or_default());
        let status = response.split(' ').nth(1).ok_or("the response has no status")?;
        Ok(status.parse()?)
    };
    tokio::task::spawn_blocking(asking).await?
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("TENURE_URL").ok());
    let url = url.as_deref().unwrap_or("memory:rate-per-key");
    let instances = [instance(url).await?, instance(url).await?];
    // Each run of this example has users of its own, so that it can be repeated within a minute.
    let user = |name: &str| format!("{name}-{}", std::process::id());

    assert_eq!(ask(instances[0], user("ada")).await?, 202);
    assert_eq!(ask(instances[1], user("ada")).await?, 429, "the other instance knows of it");
    assert_eq!(ask(instances[1], user("bob")).await?, 202, "another key");

    // Eight requests at the same time, on both instances.
    let requests: Vec<_> =
        (0..8).map(|number| tokio::spawn(ask(instances[number % 2], user("carol")))).collect();
    let mut accepted = 0;
    for request in requests {
        accepted += u32::from(request.await?? == 202);
    }
    assert_eq!(accepted, 1);
    Ok(())
}
