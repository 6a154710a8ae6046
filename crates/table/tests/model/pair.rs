//! The table and the model, side by side: they are told the same, and must say and show the same.

use std::fmt::Debug;

use tenure_table::{Command, LockName, ResourceView, SessionView, StateHash, Table};

use crate::invariants::Watch;
use crate::model::Model;
use crate::strategy::{Act, lines, shorter};

/// How closely a pair is looked at after each step. What is not looked at costs no time.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Look {
    /// Effects alone.
    Effects,
    /// All that can be seen.
    Everything,
}

pub(crate) struct Pair {
    pub(crate) model: Model,
    pub(crate) table: Table,
    names: Vec<LockName>,
    watch: Watch,
    hash: StateHash,
    look: Look,
}

impl Pair {
    pub(crate) fn new(model: Model, names: &[LockName], seed: u64, look: Look) -> Self {
        let table = Table::new(*model.limits(), seed);
        let hash = table.state_hash();
        Self { model, table, names: names.to_vec(), watch: Watch::default(), hash, look }
    }

    /// Does one thing to both. The error says what is different.
    pub(crate) fn step(&mut self, act: &Act) -> Result<(), String> {
        match act {
            Act::Apply(command) => self.apply(command)?,
            Act::Restore => self.restore()?,
        }
        if self.look == Look::Everything { self.look() } else { Ok(()) }
    }

    fn apply(&mut self, command: &Command) -> Result<(), String> {
        let before = (self.look == Look::Everything).then(|| self.model.clone());
        let expected = self.model.apply(command);
        let mut effects = Vec::new();
        self.table.apply(command.clone(), &mut effects);
        if effects != expected {
            return Err(format!(
                "the effects are\n{}and the model has\n{}",
                lines(&effects),
                lines(&expected)
            ));
        }
        if let Some(before) = before {
            let hash = self.table.state_hash();
            match (before == self.model, hash == self.hash) {
                (true, false) => return Err("nothing has changed but the hash".to_owned()),
                (false, true) => return Err("something has changed, and not the hash".to_owned()),
                _ => self.hash = hash,
            }
        }
        Ok(())
    }

    fn restore(&mut self) -> Result<(), String> {
        let snapshot = |table: &Table| {
            let mut bytes = Vec::new();
            table.write_snapshot(&mut bytes).map_err(|error| error.to_string())?;
            Ok::<_, String>(bytes)
        };
        let bytes = snapshot(&self.table)?;
        let restored = Table::read_snapshot(&bytes[..], 7)
            .map_err(|error| format!("the snapshot is refused: {error}"))?;
        same("hash of the restored table", &restored.state_hash(), &self.table.state_hash())?;
        if snapshot(&restored)? != bytes {
            return Err("the restored table's snapshot has other bytes".to_owned());
        }
        self.table = restored;
        Ok(())
    }

    /// Compares all that can be seen, and looks for what must never be.
    pub(crate) fn look(&mut self) -> Result<(), String> {
        let Self { model, table, .. } = self;
        for name in &self.names {
            same("resource", &table.inspect(name), &model.inspect(name))?;
            for window_ms in [0, 20, u64::MAX] {
                same("last start", &table.recall(name, window_ms), &model.recall(name, window_ms))?;
            }
        }
        let resources = table.list("", None, usize::MAX);
        same("list", &resources, &model.list(""))?;
        same("list of a/", &table.list("a/", None, usize::MAX), &model.list("a/"))?;
        same("list in pages", &in_pages(table), &resources)?;
        let sessions = table.sessions();
        same("sessions", &sessions, &model.sessions())?;
        for SessionView { session, .. } in &sessions {
            same("state of a session", &table.session_state(*session), &model.session_state(*session))?;
        }
        same("delays", &table.delays(), &model.delays())?;
        same("last token", &table.last_token(), &model.last_token())?;
        same("time", &table.now_ms(), &model.now_ms())?;
        same("limits", table.limits(), model.limits())?;
        table.check()?;
        self.watch.look(&resources, &sessions, table.last_token())?;
        crate::chains::look(table, &resources)
    }
}

/// All resources, two at a time.
fn in_pages(table: &Table) -> Vec<ResourceView> {
    let mut all = Vec::<ResourceView>::new();
    loop {
        let after = all.last().map(|last| last.name.clone());
        let page = table.list("", after.as_ref(), 2);
        let last = page.len() < 2;
        all.extend(page);
        if last {
            return all;
        }
    }
}

fn same<T: PartialEq + Debug>(what: &str, table: &T, model: &T) -> Result<(), String> {
    if table == model {
        return Ok(());
    }
    Err(format!("the {what} is\n  {}\nand the model has\n  {}", shorter(table), shorter(model)))
}
