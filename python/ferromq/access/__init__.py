"""Access control of brokers and name servers: their users, and the requests that change them. Rust checks requests."""
