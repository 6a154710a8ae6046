//! What a name is, whatever a database's collation makes of texts.

use tenure::LockName;

use super::{Database, LONG, connect, recipes};

pub(crate) async fn names_are_compared_byte_by_byte<D: Database>() {
    let server = D::start();
    let longest = "ü".repeat(LockName::MAX_BYTES / 2);
    let nearly = format!("{}x", "ü".repeat(LockName::MAX_BYTES / 2 - 1));
    // One é is a letter, and one an e with an accent after it.
    let names =
        ["a", "A", "a ", " a", "\u{e9}", "e\u{301}", "ß", "ss", "a'; --", "a\\", "%", &nearly, &longest];
    for recipe in recipes::<D>() {
        let client = connect(&server.recipe(recipe, "&connections=20")).await;
        let mut guards = Vec::new();
        for name in names {
            let guard = client.lock(name).ttl(LONG).try_acquire().await.unwrap();
            guards.push(guard.unwrap_or_else(|| panic!("{recipe}: `{name}` meets another name")));
        }
        for name in names {
            let again = client.lock(name).try_acquire().await.unwrap();
            assert!(again.is_none(), "{recipe}: `{name}` is not the name that it was");
        }
        let mut listed: Vec<_> =
            client.list("").await.unwrap().into_iter().map(|info| info.name.to_string()).collect();
        let mut expected = names.map(str::to_owned);
        listed.sort();
        expected.sort();
        assert_eq!(listed, expected, "{recipe}");
        let (lower, upper) = (client.list("a").await.unwrap(), client.list("A").await.unwrap());
        assert_eq!((lower.len(), upper.len()), (4, 1), "{recipe}");
        for guard in guards {
            let _ = guard.release().await.unwrap();
        }
    }
}
