//! The part of a server's URL between `//` and its options: `user:password@host:port,host:port/path`.

use percent_encoding::percent_decode_str;

/// The login and the hosts that a URL names.
#[derive(Clone)]
pub(super) struct Authority {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// Host and port of each server.
    pub(super) hosts: Vec<(String, u16)>,
    /// The text after the first `/`, decoded.
    pub(super) path: String,
}

/// The errors do not repeat the text of the URL, since it may contain a password.
pub(super) const ENCODE: &str = " (in a password, `/` is written `%2F`, `?` `%3F`, `@` `%40`, `:` `%3A`)";

impl Authority {
    /// Parses the text after the scheme, or returns a message about the first mistake in it.
    pub(super) fn parse(rest: &str, default_port: u16) -> Result<Self, String> {
        let rest = rest.strip_prefix("//").ok_or("the URL lacks its `//`")?;
        let (rest, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let hosts = hosts
            .split(',')
            .map(|host| {
                host_and_port(host, default_port)
                    .map_err(|why| format!("it does not name a host and a port{why}{ENCODE}"))
            })
            .collect::<Result<_, _>>()?;
        let path = decoded(path).unwrap_or_default();
        Ok(Self { user: decoded(user), password: decoded(password), hosts, path })
    }

    /// Returns the hosts in lower case and sorted: the same text for the same servers, in whatever order the URL names them.
    pub(super) fn place(&self) -> String {
        let mut hosts: Vec<_> =
            self.hosts.iter().map(|(host, port)| shown(&host.to_lowercase(), *port)).collect();
        hosts.sort();
        hosts.join(",")
    }
}

/// Whether the system's message says that the host does not exist, and not only that no name server answers.
pub(super) fn is_unknown_host(said: &str) -> bool {
    said.contains("failed to lookup address")
        && !said.contains("Temporary failure")
        // The same message in musl's wording.
        && !said.contains("Try again")
}

fn decoded(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| percent_decode_str(text).decode_utf8_lossy().into_owned())
}

/// Returns host and port, or the part of the error message that says more than the general text.
fn host_and_port(text: &str, default_port: u16) -> Result<(String, u16), &'static str> {
    const PORT: &str = ": the port is not a number from 1 to 65535";
    // An IPv6 address is written in brackets, since it contains colons.
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or("")?;
            (host, port.strip_prefix(':').or(port.is_empty().then_some("")).ok_or("")?)
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    let port = match port {
        "" => default_port,
        port => port.parse().ok().filter(|port| *port > 0).ok_or(PORT)?,
    };
    let host = decoded(host).filter(|host| !host.contains(char::is_whitespace)).ok_or("")?;
    Ok((host, port))
}

/// Formats a host and a port as in a URL.
pub(super) fn shown(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Parses the option `timeout_ms`: the time limit of one request.
pub(super) fn timeout_ms(value: &str) -> Result<std::time::Duration, String> {
    let limit = value.parse().ok().filter(|ms| (1..=60_000).contains(ms));
    let limit = limit.ok_or_else(|| format!("`timeout_ms` is from 1 to 60000, and not `{value}`"))?;
    Ok(std::time::Duration::from_millis(limit))
}
