//! `tenure migrate`: creates the tables of an engine that needs them.

use tenure::ConnectError;

use crate::args::MigrateArgs;
use crate::connection::with_client;
use crate::exit::{Failure, OK};
use crate::say::{print, say};

pub(crate) fn migrate(url: &str, args: &MigrateArgs) -> Result<u8, Failure> {
    let statements = tenure::migration(url).map_err(ConnectError::from)?;
    if statements.is_empty() {
        say("this engine needs no tables: there is nothing to do");
        return Ok(OK);
    }
    if args.print {
        return print(&format!("{};\n", statements.join(";\n\n")));
    }
    // A client creates missing tables when it connects.
    with_client(url, |_| Ok(()))?;
    say("the tables are there");
    Ok(OK)
}
