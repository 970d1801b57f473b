"""The broker in its cluster: registration, name servers, routes, role, replication of metadata."""
