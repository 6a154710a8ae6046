//! Completions and manual pages, generated from the definitions of the command line.

use std::io;
use std::path::Path;

use clap::CommandFactory;
use clap_mangen::Man;

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::exit::{Failure, OK};
use crate::say::print;

pub(crate) fn completions(args: &CompletionsArgs) -> Result<u8, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tenure", &mut text);
    print(&String::from_utf8_lossy(&text))
}

pub(crate) fn man(args: &ManArgs) -> Result<u8, Failure> {
    let Some(folder) = &args.folder else {
        let mut page = Vec::new();
        Man::new(Cli::command()).render(&mut page).map_err(|error| Failure::system("the manual", error))?;
        return print(&String::from_utf8_lossy(&page));
    };
    write_pages(folder).map_err(|error| Failure::system(&folder.display().to_string(), error))?;
    Ok(OK)
}

/// Writes `tenure.1`, `tenure-run.1` and so on.
fn write_pages(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Cli::command(), folder)
}
