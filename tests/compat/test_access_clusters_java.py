"""Access control of whole clusters, with RocketMQ's servers: registrations that are signed, and users of ACL 1.0."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from java_processes import JavaBroker, JavaNameServer, access_options

import ferromq
from ferromq._ferromq import RemotingClient
from ferromq.config.namesrv import NameServerConfig
from ferromq.namesrv.server import NamesrvController
from ferromq.protocol.codes import RequestCode, ResponseCode

ROOT = ("root", "a long secret")
SERVERS = ("servers", "another secret")
JAVA_OPTIONS = {**access_options(ROOT, SERVERS), "migrateAuthFromV1Enabled": "true"}
PLAIN_ACL = """
globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: RocketMQ
  secretKey: 012345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC= SUB
  - topicE
  groupPerms:
  - groupA=DENY
  - groupB=PUB|SUB
- accessKey: rocketmq2
  secretKey: 12345678
  admin: true
- accessKey: RocketMQ
  secretKey: another
"""
MORE = "accounts: [{accessKey: of-another-file, secretKey: 1_0, topicPerms: [topicA=SUB]}]"


def ask(address: str, code: int, who: tuple[str, str] | None, fields: dict[str, str] | None = None) -> Any:
    """Send a request of a user."""
    with closing(RemotingClient(credentials=who)) as client:
        return client.call(address, code, fields or {}, timeout=20)


def users(address: str) -> list[Any]:
    """Return users and policies in a fixed order."""
    found = []
    for code, key in ((RequestCode.AUTH_LIST_USER, "username"), (RequestCode.AUTH_LIST_ACL, "subject")):
        answer = ask(address, code, ROOT)
        assert answer[0] == ResponseCode.SUCCESS, answer
        entries = sorted(json.loads(answer[3]), key=lambda entry: entry[key])
        found.append([{name: value for name, value in entry.items() if name != "password"} for entry in entries])
    return found


def test_a_java_broker_registers_signed_and_has_the_users_that_we_make_of_its_files(tmp_path: Path) -> None:
    """At a name server that refuses strangers; users and policies are those of RocketMQ's migration."""
    (tmp_path / "java" / "conf" / "acl").mkdir(parents=True)
    (tmp_path / "java" / "conf" / "plain_acl.yml").write_text(PLAIN_ACL)
    (tmp_path / "java" / "conf" / "acl" / "more.yml").write_text(MORE)
    checked = {"authentication_enabled": True, "authorization_enabled": True, "initial_user": ":".join(ROOT)}
    names = NamesrvController(
        NameServerConfig.from_options(
            {
                "listen": "127.0.0.1:0",
                "access_directory": str(tmp_path / "names"),
                "inner_credentials": ":".join(SERVERS),
                # The helper that waits for the broker signs nothing.
                "authentication_whitelist": "106",
                "authorization_whitelist": "106",
                **checked,
            }
        )
    )
    options = {"inner_credentials": ":".join(SERVERS), "plain_acl": str(tmp_path / "java" / "conf"), **checked}
    try:
        with (
            JavaBroker(tmp_path / "java", names.address, **JAVA_OPTIONS) as java,
            ferromq.embedded(tmp_path / "ours", **options) as ours,
        ):
            assert "broker-java" in str(names.routes.cluster_info())
            assert users(ours.remoting) == users(java.address)
            # The secret keys, too: Java takes the digits as they are written.
            for who in (("RocketMQ", "012345678"), ("of-another-file", "1_0")):
                for address in (ours.remoting, java.address):
                    code, remark, _, _ = ask(address, RequestCode.AUTH_LIST_USER, who)
                    assert code == ResponseCode.NO_PERMISSION
                    assert not {"secret", "signature"} & set(remark.split()), "refused for its rights alone"
    finally:
        names.close()


def test_rocketmqs_name_server_checks_nothing(tmp_path: Path) -> None:
    """With the same keys it takes a change of any client: what docs/access-control.md says of it."""
    with JavaNameServer(tmp_path, **JAVA_OPTIONS) as java:
        fields = {"namespace": "n", "key": "k", "value": "v"}
        assert ask(java.address, RequestCode.PUT_KV_CONFIG, None, fields)[0] == ResponseCode.SUCCESS
