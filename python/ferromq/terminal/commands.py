"""Ways out of errors, as commands in place of calls of the Python API."""

import re
from collections.abc import Sequence
from contextvars import ContextVar

_IN_COMMANDS: Sequence[tuple[str, str]] = (
    (r"choose one with (broker|cluster)=", r"choose one with --\1"),
    (r"\bgive (topic|resource)=", r"give --\1"),
    (r"\bgive queue_id=", "give --queue"),
    (r"\bgive one of to= (\([^)]*\)) and offset=", r"give one of --to \1 and --offset"),
    (r"\bconnect with namesrv=", "connect with --namesrv"),
    (r"\buntil=(.+?) is before since=(.+?) as until\b", r"--until \1 is before --since \2 as --until"),
    (r"\bgive Admin a longer timeout", "give a longer --timeout"),
    (r"\bwith create_topic\b", "with ferromq topic create"),
    (r"\ball the same with force\b", "all the same with --force"),
    (r"\bwith force=True \(--force\)", "with --force"),
    (r"\bset_queue_access\([^)]*\)", "set_queue_access in the program of the broker"),
    (r"\bresume_broker\(BROKER\)", "ferromq cluster undrain BROKER"),
    (r"\balter_(topic|group) changes it", r"ferromq \1 alter changes it"),
    (r"\balter_topic\(\"([^\"]*)\", message_type=\"?([^\"')]*)\"?\)", r"ferromq topic alter \1 --type \2"),
    (r"\bupdate_acl replaces it", "ferromq acl update replaces it"),
    (r"\bcreate_user\('([^']*)', SECRET\)", r"ferromq user create \1"),
    (r"\bupdate_user\('([^']*)'\)", r"ferromq user update \1"),
    (r"\btls=False speaks plaintext", "without --tls it speaks plaintext"),
    (r"\bsigned by none that tls= trusts", "signed by none that --tls or --tls-trust trusts"),
    (r"\bclients without tls=", "clients without --tls"),
    (r"\bleave tls= out", "leave --tls out"),
    (r"\btls=True trusts", "--tls trusts"),
    (r"\btls='([^']*)'", r"--tls-trust \1"),
    (r"\bTls\(server_name=\.\.\.\) names", "--tls-server-name names"),
    (r"\bferromq\.Admin\(\.\.\.\)\.take_out_broker\('([^']*)'\)", r"ferromq cluster remove \1"),
    (
        r"\b(?:ferromq\.Admin\(\.\.\.\)\.|connect\(\.\.\.\)\.admin\(\)\.)?create_(topic|group)\('([^']*)'\)",
        r"ferromq \1 create \2",
    ),
    (r"\bAdmin\(endpoint='([^']*)'\)", r"--endpoint \1"),
    (r"\b(?:ferromq\.)?Admin\('([^']*)'\)", r"--namesrv \1"),
)
"""Ways out as the Python API names them, and as commands do."""


_namespace = ContextVar("namespace", default="")


def use_namespace(namespace: str) -> None:
    """Name topics and groups in errors as the user of a namespace does, from now on in this context."""
    _namespace.set(namespace)


def in_commands(text: str) -> str:
    """
    Return the text of an error with commands and options in place of calls of the Python API.

    Commands name a topic or group of the namespace without it, as its user does.
    """
    namespace = _namespace.get()
    for call, command in _IN_COMMANDS:
        text = re.sub(call, command, text)
    if namespace:
        text = re.sub(rf"(\bferromq (?:topic|group) \w+ ){re.escape(namespace)}%", r"\1", text)
    return text
