//! The engine `file:`, on real directories, disks, users and processes.

mod contract;
mod faults;
mod nobody;
