//! Fuzzes [`ferromq_fuzz::remoting`].

fn main() {
    afl::fuzz!(|data: &[u8]| {
        ferromq_fuzz::remoting(data);
    });
}
