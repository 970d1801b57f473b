//! Fuzzes [`ferromq_fuzz::recovery`].

fn main() {
    afl::fuzz!(|data: &[u8]| ferromq_fuzz::recovery(data));
}
