//! The command, as its users have it: real processes, real terminals, real locks.

mod config;
mod connecting;
mod databases;
mod docs;
mod ending;
mod exits;
mod help;
mod leftovers;
mod nested;
mod once;
mod picture;
mod place;
mod redis;
mod shows;
mod terminal;
