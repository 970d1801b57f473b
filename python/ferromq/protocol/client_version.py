"""The names of RocketMQ's versions, by the ordinals of `MQVersion` that clients send."""

_FIRST, _AFTER_LAST = 212, 612
"""The ordinals of V4_0_0_SNAPSHOT and of what follows V5_9_9; a snapshot precedes each version."""
_OF_MAJOR, _OF_MINOR = 200, 20


def version_name(ordinal: int) -> str:
    """Return the name in lower case, such as `v5_5_0`; of older and newer versions `v3` and `higher_version`."""
    if ordinal < _FIRST:
        return "v3"
    if ordinal >= _AFTER_LAST:
        return "higher_version"
    major, rest = divmod(ordinal - _FIRST, _OF_MAJOR)
    minor, rest = divmod(rest, _OF_MINOR)
    patch, is_release = divmod(rest, 2)
    return f"v{4 + major}_{minor}_{patch}" + ("" if is_release else "_snapshot")
