//! `tenure migrate`: the tables of the engines that need some.

use tenure::ConnectError;
use tenure::blocking::Client;

use crate::args::MigrateArgs;
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
    // Whoever connects makes what is missing.
    Client::connect(url)?;
    say("the tables are there");
    Ok(OK)
}
