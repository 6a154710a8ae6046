//! What stands between `//` and the options of a server's URL: `user:password@host:port,host:port/path`.

use percent_encoding::percent_decode_str;

/// Who logs in, and where.
#[derive(Clone)]
pub(super) struct Authority {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// Host and port of each server.
    pub(super) hosts: Vec<(String, u16)>,
    /// What comes after the first `/`, decoded.
    pub(super) path: String,
}

/// What stands there is not repeated in an error, since it may be a password.
pub(super) const ENCODE: &str = " (in a password, `/` is written `%2F`, `?` `%3F`, `@` `%40`, `:` `%3A`)";

impl Authority {
    /// Takes it apart, or says what is wrong.
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

    /// The hosts as text that is the same for the same servers, in whatever order they are named.
    pub(super) fn place(&self) -> String {
        let mut hosts: Vec<_> =
            self.hosts.iter().map(|(host, port)| shown(&host.to_lowercase(), *port)).collect();
        hosts.sort();
        hosts.join(",")
    }
}

/// Whether the system says that there is no such host, and not only that no name server answers.
pub(super) fn is_unknown_host(said: &str) -> bool {
    said.contains("failed to lookup address")
        && !said.contains("Temporary failure")
        // The same in musl's words.
        && !said.contains("Try again")
}

fn decoded(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| percent_decode_str(text).decode_utf8_lossy().into_owned())
}

/// Both, or what is wrong beside that.
fn host_and_port(text: &str, default_port: u16) -> Result<(String, u16), &'static str> {
    const PORT: &str = ": the port is not a number from 1 to 65535";
    // An IPv6 address stands in brackets, since it has colons of its own.
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

/// A host and a port as they stand in a URL.
pub(super) fn shown(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// How long one request may take.
pub(super) fn timeout_ms(value: &str) -> Result<std::time::Duration, String> {
    let limit = value.parse().ok().filter(|ms| (1..=60_000).contains(ms));
    let limit = limit.ok_or_else(|| format!("`timeout_ms` is from 1 to 60000, and not `{value}`"))?;
    Ok(std::time::Duration::from_millis(limit))
}
