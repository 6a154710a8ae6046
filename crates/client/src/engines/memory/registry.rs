//! The stores of this process by name: the only state here that clients share implicitly.
//!
//! A name refers to a store for as long as that store is open somewhere, and to a new store after that. Links have separate names.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::ENGINE;
use super::server::{LinkId, Server, Time};
use crate::random;
use crate::url::{EngineUrl, UrlError};

static NAMES: Mutex<BTreeMap<String, (Weak<Server>, LinkId)>> = Mutex::new(BTreeMap::new());

fn names() -> MutexGuard<'static, BTreeMap<String, (Weak<Server>, LinkId)>> {
    // Each change of the map is one step, so a panic elsewhere leaves it consistent.
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the store that a URL names, and the link to it.
pub(super) fn find(url: &EngineUrl<'_>) -> Result<(Arc<Server>, LinkId), UrlError> {
    if let Some((option, _)) = url.options.first() {
        let option = option.clone();
        return Err(UrlError::UnknownOption { engine: ENGINE, option, known: "it has none" });
    }
    if !url.rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        return Err(UrlError::Location {
            url: format!("{}:{}", url.scheme, url.rest),
            message: "a name has letters, digits, `-`, `_` and `.`, as in memory:orders-test".to_owned(),
        });
    }
    if url.rest.is_empty() {
        return Ok((unnamed(Time::System), LinkId::DIRECT));
    }
    let mut names = names();
    if let Some((server, link)) = names.get(url.rest)
        && let Some(server) = server.upgrade()
    {
        return Ok((server, *link));
    }
    let server = Server::new(url.rest.to_owned(), Time::System);
    names.insert(url.rest.to_owned(), (Arc::downgrade(&server), LinkId::DIRECT));
    Ok((server, LinkId::DIRECT))
}

/// Creates a store under a unique name.
pub(super) fn unnamed(time: Time) -> Arc<Server> {
    let server = Server::new(drawn(), time);
    names().insert(server.name().to_owned(), (Arc::downgrade(&server), LinkId::DIRECT));
    server
}

/// Registers another link to a store under a new name, and returns the name.
pub(super) fn name_link(server: &Arc<Server>, link: LinkId) -> String {
    let name = drawn();
    names().insert(name.clone(), (Arc::downgrade(server), link));
    name
}

/// Removes the names of dropped stores. A store is dropped before this is called for it, so a store that was since created under the same
/// name is kept.
pub(super) fn forget_the_gone() {
    names().retain(|_, (server, _)| server.strong_count() > 0);
}

fn drawn() -> String {
    random::grant_id().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find_at(url: &str) -> Result<(Arc<Server>, LinkId), UrlError> {
        find(&EngineUrl::parse(url).unwrap())
    }

    #[test]
    fn a_name_means_one_store_for_as_long_as_it_is_open() {
        let (first, _) = find_at("memory:registry-test").unwrap();
        let (second, _) = find_at("memory:registry-test").unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        let (other, _) = find_at("memory:").unwrap();
        let (another, _) = find_at("memory:").unwrap();
        assert!(!Arc::ptr_eq(&other, &another), "without a name, each is one of its own");
        let by_its_place = find_at(&other.url()).unwrap().0;
        assert!(Arc::ptr_eq(&other, &by_its_place), "a place is a URL");
        drop((first, second));
        assert!(!names().contains_key("registry-test"), "a store that is gone leaves its name behind");
    }

    #[test]
    fn what_is_not_a_name_and_what_is_not_an_option_is_refused() {
        for url in ["memory://a", "memory:a/b", "memory:a%20b", "memory:ü"] {
            assert!(matches!(find_at(url), Err(UrlError::Location { .. })), "{url}");
        }
        assert!(matches!(find_at("memory:a?ttl=3"), Err(UrlError::UnknownOption { .. })));
    }
}
