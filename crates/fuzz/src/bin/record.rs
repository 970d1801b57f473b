//! Fuzzes [`ferromq_fuzz::record`].

fn main() {
    afl::fuzz!(|data: &[u8]| ferromq_fuzz::record(data));
}
