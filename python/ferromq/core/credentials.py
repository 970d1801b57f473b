"""
How a client signs its requests: HMAC-SHA1 with a secret key, as RocketMQ's access control has it.

gRPC and framed calls sign a time, remoting requests their fields and their body. In Rust it is `ferromq-protocol`'s
`signing`.
"""

import base64
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from ferromq.errors import ConfigError

ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE = "FERROMQ_ACCESS_KEY", "FERROMQ_SECRET_KEY"
DATE_TIME, AUTHORIZATION = "x-mq-date-time", "authorization"
_SEPARATORS = frozenset(" ,/=")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The name of a user and its secret key, which `repr` does not show."""

    access_key: str
    secret_key: str = field(repr=False)

    def authorization(self, date_time: str) -> str:
        """Return the metadata that goes with *date_time*."""
        signature = hmac.digest(self.secret_key.encode(), date_time.encode(), "sha1").hex().upper()
        return f"MQv2-HMAC-SHA1 Credential={self.access_key}, SignedHeaders={DATE_TIME}, Signature={signature}"

    def signed(self, fields: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return the fields of a remoting request with its signature."""
        signed = {**fields, "AccessKey": self.access_key}
        signed.pop("Signature", None)
        content = "".join(signed[name] for name in sorted(signed)).encode() + body
        signature = hmac.digest(self.secret_key.encode(), content, "sha1")
        return {**signed, "Signature": base64.b64encode(signature).decode()}

    def pair(self) -> tuple[str, str]:
        """Return both, for the Rust core."""
        return self.access_key, self.secret_key


def credentials_of(access_key: str | None, secret_key: str | None) -> Credentials | None:
    """
    Return the credentials of the arguments, or else of the environment; None without any.

    Raises `ConfigError` for one without the other, and for an access key that a header cannot carry.
    """
    if access_key is None and secret_key is None:
        access_key, secret_key = (os.environ.get(name) for name in (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE))
        names = ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
    else:
        names = "access_key", "secret_key"
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        raise ConfigError(f"{names[not secret_key]} is missing; {' and '.join(names)} belong together")
    if not access_key.isascii() or not access_key.isprintable() or _SEPARATORS & set(access_key):
        raise ConfigError(f"{names[0]} is {access_key!r}; it may have printable ASCII characters but blanks and , / =")
    return Credentials(access_key, secret_key)


def pair_of_environment() -> tuple[str, str] | None:
    """Return the credentials of the environment for the Rust core. Raises `ConfigError` for one without the other."""
    found = credentials_of(None, None)
    return None if found is None else found.pair()
