//! The servers that all test programs of a run share, for as long as this program's input lasts.

fn main() {
    tenure_testkit::serve_a_run();
}
