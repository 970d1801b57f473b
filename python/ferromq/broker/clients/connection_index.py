"""Where clients are: the groups of each client of each connection, so that the end of one looks at its own alone."""

Key = tuple[int, str]
"""A client: its connection and its id. A connection may carry several, and an id may be on two for a moment."""


class ConnectionIndex:
    """The groups clients are in, by connection. Not locked; whoever shares it does that."""

    def __init__(self) -> None:
        self._groups: dict[int, dict[str, set[str]]] = {}

    def __contains__(self, connection: int) -> bool:
        return connection in self._groups

    def put(self, key: Key, group: str) -> None:
        """Note that a client is in a group."""
        connection, client_id = key
        self._groups.setdefault(connection, {}).setdefault(client_id, set()).add(group)

    def discard(self, key: Key, group: str) -> None:
        """Note that a client is not in a group any more."""
        connection, client_id = key
        clients = self._groups.get(connection, {})
        clients.get(client_id, set()).discard(group)
        if not clients.get(client_id):
            clients.pop(client_id, None)
        if not clients:
            self._groups.pop(connection, None)

    def groups(self, key: Key) -> list[str]:
        """Return the groups a client is in."""
        connection, client_id = key
        return list(self._groups.get(connection, {}).get(client_id, ()))

    def of(self, connection: int) -> dict[str, list[Key]]:
        """Return the clients of a connection, by group."""
        found: dict[str, list[Key]] = {}
        for client_id, groups in self._groups.get(connection, {}).items():
            for group in groups:
                found.setdefault(group, []).append((connection, client_id))
        return found
