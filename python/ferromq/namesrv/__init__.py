"""The name server: `route_info` knows the routes, `kv_config` the key-value table, `server` speaks for both."""
