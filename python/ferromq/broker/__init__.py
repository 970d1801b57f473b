"""The broker's control plane: `controller` is its life cycle, `rpc` lists the requests that it answers."""
