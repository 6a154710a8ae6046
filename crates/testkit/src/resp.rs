//! One connection to Redis, and just enough of its protocol to ask and to read an answer.
//!
//! Written by hand so that the kit does not judge a client library by means of that same library, and so
//! that a test can send a request without waiting for its answer.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::iter;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::wait::DEFAULT_LIMIT;

/// A connection to Redis, or to a [`Proxy`](crate::Proxy) before it.
#[derive(Debug)]
pub struct RedisConnection {
    stream: BufReader<TcpStream>,
}

impl RedisConnection {
    /// Connects; an answer may then take 60 seconds, unless [`set_limit`](Self::set_limit) says otherwise.
    pub fn open(addr: SocketAddr) -> io::Result<Self> {
        Self::open_within(DEFAULT_LIMIT, addr)
    }

    pub(crate) fn open_within(limit: Duration, addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, limit)?;
        stream.set_nodelay(true)?;
        let connection = Self { stream: BufReader::new(stream) };
        connection.set_limit(limit)?;
        Ok(connection)
    }

    /// How long [`receive`](Self::receive) waits for bytes before it fails with [`io::ErrorKind::WouldBlock`].
    pub fn set_limit(&self, limit: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(limit))
    }

    /// Sends a command and reads its answer.
    pub fn command(&mut self, words: &[&str]) -> io::Result<String> {
        self.send(words)?;
        self.receive()
    }

    /// Sends a command without waiting for the answer.
    pub fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let strings = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
        let request: String = iter::once(format!("*{}\r\n", words.len())).chain(strings).collect();
        self.stream.get_mut().write_all(request.as_bytes())
    }

    /// Reads one answer: a nil as `(nil)`, an array as its elements with a line for each.
    ///
    /// An error that Redis answers is an [`io::ErrorKind::Other`] with the text of Redis.
    pub fn receive(&mut self) -> io::Result<String> {
        read_answer(&mut self.stream)
    }
}

fn read_answer(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = line.trim_end_matches("\r\n");
    let not_redis =
        || io::Error::new(io::ErrorKind::InvalidData, format!("not an answer of Redis: {line:?}"));
    let (kind, rest) = line.split_at_checked(1).ok_or_else(not_redis)?;
    match kind {
        "+" | ":" => Ok(rest.to_owned()),
        "-" => Err(io::Error::other(rest.to_owned())),
        "$" | "*" if rest == "-1" => Ok("(nil)".to_owned()),
        "$" => read_bulk(stream, rest.parse().map_err(|_| not_redis())?),
        "*" => {
            let count: usize = rest.parse().map_err(|_| not_redis())?;
            let elements: io::Result<Vec<String>> = (0..count).map(|_| read_answer(stream)).collect();
            Ok(elements?.join("\n"))
        }
        _ => Err(not_redis()),
    }
}

fn read_bulk(stream: &mut impl Read, length: usize) -> io::Result<String> {
    let mut bytes = vec![0; length + "\r\n".len()];
    stream.read_exact(&mut bytes)?;
    bytes.truncate(length);
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(bytes: &str) -> io::Result<String> {
        read_answer(&mut bytes.as_bytes())
    }

    #[test]
    fn every_kind_of_answer_is_read() {
        assert_eq!(answer("+PONG\r\n").unwrap(), "PONG");
        assert_eq!(answer(":7\r\n").unwrap(), "7");
        assert_eq!(answer("$5\r\na\r\nbc\r\n").unwrap(), "a\r\nbc");
        assert_eq!(answer("$-1\r\n").unwrap(), "(nil)");
        assert_eq!(answer("*2\r\n$1\r\na\r\n*1\r\n:1\r\n").unwrap(), "a\n1");
        assert_eq!(answer("-ERR no such thing\r\n").unwrap_err().to_string(), "ERR no such thing");
    }

    #[test]
    fn a_closed_connection_and_a_stranger_are_told_apart() {
        assert_eq!(answer("").unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(answer("\r\n").unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(answer("HTTP/1.1 400\r\n").unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
