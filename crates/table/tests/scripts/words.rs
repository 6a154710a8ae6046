//! The words of a script, and what they stand for.

use tenure_table::{LockName, Mode, ModeError, Wait};

/// Words that stand for ids: the first word is 1.
#[derive(Default)]
pub(crate) struct Words(Vec<String>);

impl Words {
    pub(crate) fn find(&self, word: &str) -> Option<u128> {
        Some(self.0.iter().position(|known| known == word)? as u128 + 1)
    }

    pub(crate) fn introduce(&mut self, word: &str) -> u128 {
        self.find(word).unwrap_or_else(|| {
            self.0.push(word.to_owned());
            self.0.len() as u128
        })
    }

    pub(crate) fn word(&self, id: u128) -> &str {
        &self.0[usize::try_from(id).unwrap() - 1]
    }
}

/// The words of a line that are not yet understood.
pub(crate) struct Line<'a>(pub(crate) Vec<&'a str>);

impl<'a> Line<'a> {
    pub(crate) fn next(&mut self, what: &str) -> Result<&'a str, String> {
        if self.0.is_empty() { Err(format!("{what} is missing")) } else { Ok(self.0.remove(0)) }
    }

    pub(crate) fn flag(&mut self, flag: &str) -> bool {
        let at = self.0.iter().position(|word| *word == flag);
        at.map(|at| self.0.remove(at)).is_some()
    }

    /// What is said as `name=…`.
    pub(crate) fn option(&mut self, name: &str) -> Option<&'a str> {
        let said = |word: &&'a str| word.strip_prefix(name)?.strip_prefix('=');
        let (at, value) = self.0.iter().enumerate().find_map(|(at, word)| Some((at, said(word)?)))?;
        self.0.remove(at);
        Some(value)
    }

    pub(crate) fn number(&mut self, name: &str, otherwise: u64) -> Result<u64, String> {
        self.option(name).map_or(Ok(otherwise), number)
    }

    /// Whose it is, if it is said as `by …`.
    pub(crate) fn owner(&mut self) -> Option<&'a str> {
        let at = self.0.iter().position(|word| *word == "by")?;
        let owner = *self.0.get(at + 1)?;
        self.0.drain(at..at + 2);
        Some(owner)
    }

    pub(crate) fn wait(&mut self) -> Wait {
        if self.flag("try") { Wait::Try } else { Wait::Queue }
    }

    pub(crate) fn done(self) -> Result<(), String> {
        self.0.first().map_or(Ok(()), |word| Err(format!("unknown word `{word}`")))
    }
}

pub(crate) fn number(word: &str) -> Result<u64, String> {
    word.parse().map_err(|_| format!("`{word}` is not a number"))
}

pub(crate) fn name(word: &str) -> Result<LockName, String> {
    LockName::parse(word).map_err(|error| error.to_string())
}

pub(crate) fn mode(word: &str) -> Result<Mode, String> {
    word.parse().map_err(|error: ModeError| error.to_string())
}
