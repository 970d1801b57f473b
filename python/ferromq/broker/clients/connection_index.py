"""An index from connections to their clients' groups, so that closing one looks at its own clients alone."""

ClientKey = tuple[int, str]
"""Connection and client id. A connection may carry several clients; an id may briefly be on two connections."""


class ConnectionIndex:
    """The groups of clients, by connection. Not thread-safe."""

    def __init__(self) -> None:
        self._groups: dict[int, dict[str, set[str]]] = {}

    def __contains__(self, connection: int) -> bool:
        return connection in self._groups

    def put(self, key: ClientKey, group: str) -> None:
        """Add a client to a group."""
        connection, client_id = key
        self._groups.setdefault(connection, {}).setdefault(client_id, set()).add(group)

    def discard(self, key: ClientKey, group: str) -> None:
        """Remove a client from a group."""
        connection, client_id = key
        clients = self._groups.get(connection, {})
        clients.get(client_id, set()).discard(group)
        if not clients.get(client_id):
            clients.pop(client_id, None)
        if not clients:
            self._groups.pop(connection, None)

    def groups(self, key: ClientKey) -> list[str]:
        """Return the groups of a client."""
        connection, client_id = key
        return list(self._groups.get(connection, {}).get(client_id, ()))

    def of(self, connection: int) -> dict[str, list[ClientKey]]:
        """Return the clients of a connection, by group."""
        found: dict[str, list[ClientKey]] = {}
        for client_id, groups in self._groups.get(connection, {}).items():
            for group in groups:
                found.setdefault(group, []).append((connection, client_id))
        return found
