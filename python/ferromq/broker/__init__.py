"""The broker's control plane: `rpc` is its table of contents, `controller` its life cycle."""
