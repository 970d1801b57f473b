//! Fuzzes [`ferromq_fuzz::index`].

fn main() {
    afl::fuzz!(|data: &[u8]| ferromq_fuzz::index(data));
}
