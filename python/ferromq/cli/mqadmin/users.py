"""The commands of `mqadmin` for users and policies of access control: requests 3001 to 3010."""

from typing import Any

from ferromq.cli.administration.output import Missing
from ferromq.cli.mqadmin.options import Command, Given, Option, may, must, one_of
from ferromq.cli.mqadmin.session import Session, java
from ferromq.errors import ServerError
from ferromq.protocol import java_json
from ferromq.protocol.codes import RequestCode

_USER = "{:<16}  {:<22}  {:<22}  {:<22}"
_POLICY = "{:<16}  {:<10}  {:<22}  {:<20}  {:<24}  {:<10}"


def create_user(session: Session, given: Given) -> None:
    """Create a user."""
    _put_user(session, given, RequestCode.AUTH_CREATE_USER, "create")


def update_user(session: Session, given: Given) -> None:
    """Change the password, the type or the status of a user."""
    _put_user(session, given, RequestCode.AUTH_UPDATE_USER, "update")


def _put_user(session: Session, given: Given, code: RequestCode, verb: str) -> None:
    values = {"password": given.get("p"), "userType": given.get("t"), "userStatus": given.get("s")}
    user = {"username": given["u"], **{name: value for name, value in values.items() if value is not None}}
    for address in session.targets(given, with_slaves=True):
        session.ask(address, code, {"username": given["u"]}, java_json.dumps(user))
        session.say(f"{verb} user to {address} success.")


def delete_user(session: Session, given: Given) -> None:
    """Delete a user."""
    for address in session.targets(given, with_slaves=True):
        session.ask(address, RequestCode.AUTH_DELETE_USER, {"username": given["u"]})
        session.say(f"delete user to {address} success.")


def get_user(session: Session, given: Given) -> None:
    """Print a user, as the first broker that has it tells it."""
    for address in session.targets(given):
        user = _found(session, address, RequestCode.AUTH_GET_USER, {"username": given.get("u")})
        if user is not None:
            _print_users(session, [user])
            return
    raise Missing(f"there is no user {given.get('u')}")


def list_users(session: Session, given: Given) -> None:
    """Print the users of a broker, or of the first one of a cluster that has some."""
    for address in session.targets(given):
        users = _listed(session, address, RequestCode.AUTH_LIST_USER, {"filter": given.get("f")})
        if users:
            _print_users(session, users)
            if "c" in given:
                session.say(f"get user from {address} success.")
            return


def copy_users(session: Session, given: Given) -> None:
    """Copy users of a broker to another one."""
    source, target = given["f"], given["t"]
    names: list[dict[str, object]] = [{"username": name} for name in given.words("u")]
    users = _of(session, source, names, RequestCode.AUTH_GET_USER, RequestCode.AUTH_LIST_USER)
    for user in users:
        if not user.get("password"):
            raise ServerError(
                f"{source} answers the user {user.get('username')} without its secret key, so nothing was copied; "
                "start that broker with show_passwords=true and ask as a super user, or create the user with createUser"
            )
    for user in users:
        name = {"username": user.get("username")}
        is_there = _found(session, target, RequestCode.AUTH_GET_USER, name) is not None
        code = RequestCode.AUTH_UPDATE_USER if is_there else RequestCode.AUTH_CREATE_USER
        session.ask(target, code, name, java_json.dumps(user))
        session.say(f"copy user of {user.get('username')} from {source} to {target} success.")


def create_policies(session: Session, given: Given) -> None:
    """Create a policy of a user, for several resources."""
    _put_policies(session, given, RequestCode.AUTH_CREATE_ACL, "create")


def update_policies(session: Session, given: Given) -> None:
    """Change the policy of a user for several resources."""
    _put_policies(session, given, RequestCode.AUTH_UPDATE_ACL, "update")


def _put_policies(session: Session, given: Given, code: RequestCode, verb: str) -> None:
    sources = {"sourceIps": given.words("i")} if "i" in given else {}
    entries = [
        {"resource": resource, "actions": given.words("a"), **sources, "decision": given["d"]}
        for resource in given.words("r")
    ]
    body = java_json.dumps({"subject": given["s"], "policies": [{"entries": entries}]})
    for address in session.targets(given, with_slaves=True):
        session.ask(address, code, {"subject": given["s"]}, body)
        session.say(f"{verb} acl to {address} success.")


def delete_policies(session: Session, given: Given) -> None:
    """Delete the policies of a user, or that for one resource."""
    fields = {"subject": given["s"], "resource": given.get("r")}
    for address in session.targets(given, with_slaves=True):
        session.ask(address, RequestCode.AUTH_DELETE_ACL, fields)
        session.say(f"delete acl to {address} success.")


def get_policies(session: Session, given: Given) -> None:
    """Print the policies of a user."""
    found = []
    for address in session.targets(given):
        policies = _found(session, address, RequestCode.AUTH_GET_ACL, {"subject": given.get("s")})
        if policies is not None:
            found.append(policies)
            _print_policies(session, [policies])
    if not found:
        raise Missing(f"there are no policies of {given.get('s')}")


def list_policies(session: Session, given: Given) -> None:
    """Print the policies of all users, or of those that the options allow."""
    fields: dict[str, object] = {"subjectFilter": given.get("s"), "resourceFilter": given.get("r")}
    for address in session.targets(given):
        found = _listed(session, address, RequestCode.AUTH_LIST_ACL, fields)
        if found:
            _print_policies(session, found)


def copy_policies(session: Session, given: Given) -> None:
    """Copy policies of a broker to another one."""
    source, target = given["f"], given["t"]
    names: list[dict[str, object]] = [{"subject": name} for name in given.words("s")]
    for policies in _of(session, source, names, RequestCode.AUTH_GET_ACL, RequestCode.AUTH_LIST_ACL):
        name = {"subject": policies.get("subject")}
        is_there = _found(session, target, RequestCode.AUTH_GET_ACL, name) is not None
        code = RequestCode.AUTH_UPDATE_ACL if is_there else RequestCode.AUTH_CREATE_ACL
        session.ask(target, code, name, java_json.dumps(policies))
        session.say(f"copy acl of {policies.get('subject')} from {source} to {target} success.")


def _found(session: Session, address: str, code: RequestCode, fields: dict[str, object]) -> dict[str, Any] | None:
    """Return a user or its policies; None without one."""
    return session.table(address, code, fields) or None


def _listed(session: Session, address: str, code: RequestCode, fields: dict[str, object]) -> list[dict[str, Any]]:
    def read(body: bytes) -> list[dict[str, Any]]:
        return [dict(each) for each in java_json.loads(body)]

    return session.decoded(address, code, read, session.ask(address, code, fields) or b"[]")


def _of(
    session: Session, source: str, names: list[dict[str, object]], get: RequestCode, every: RequestCode
) -> list[dict[str, Any]]:
    """Return what a broker has of the names, or of all. Raises `Missing` for a name that it does not have."""
    if not names:
        return _listed(session, source, every, {})
    found = []
    for fields in names:
        one = _found(session, source, get, fields)
        if one is None:
            raise Missing(f"{source} has nothing of {next(iter(fields.values()))}; nothing was copied")
        found.append(one)
    return found


def _print_users(session: Session, users: list[dict[str, Any]]) -> None:
    session.say(_USER.format("#UserName", "#Password", "#UserType", "#UserStatus"))
    for user in users:
        names = "username", "password", "userType", "userStatus"
        session.say(_USER.format(*(java(user.get(name)) for name in names)))


def _print_policies(session: Session, found: list[dict[str, Any]]) -> None:
    session.say(_POLICY.format("#Subject", "#PolicyType", "#Resource", "#Actions", "#SourceIp", "#Decision"))
    for each in found:
        subject, policies = java(each.get("subject")), each.get("policies") or ()
        if not policies:
            session.say(_POLICY.format(subject, "", "", "", "", ""))
        for policy in policies:
            for entry in policy.get("entries") or ():
                cells = (java(entry.get(name)) for name in ("resource", "actions", "sourceIps", "decision"))
                session.say(_POLICY.format(subject, java(policy.get("policyType")), *cells))


def _place(verb: str, kind: str, *, cluster: str | None = None) -> tuple[Option, ...]:
    """Return the options that name a broker or a cluster."""
    return one_of(
        may("b", "brokerAddr", f"{verb} {kind} which broker"),
        may("c", "clusterName", cluster or f"{verb} {kind} which cluster"),
    )


def _policy_options(verb: str) -> tuple[Option, ...]:
    return (
        *_place(verb, "acl to"),
        must("s", "subject", f"the subject of acl to {verb}."),
        must("r", "resources", f"the resources of acl to {verb}"),
        must("a", "actions", f"the actions of acl to {verb}"),
        must("d", "decision", f"the decision of acl to {verb}"),
        may("i", "sourceIp", f"the sourceIps of acl to {verb}"),
    )


COMMANDS = (
    Command(
        "createUser",
        "Create user to cluster.",
        create_user,
        (
            *_place("create", "user to"),
            must("u", "username", "the username of user to create."),
            must("p", "password", "the password of user to create"),
            may("t", "userType", "the userType of user to create"),
        ),
    ),
    Command(
        "updateUser",
        "Update user to cluster.",
        update_user,
        (
            *_place("update", "user to"),
            must("u", "username", "the username of user to update."),
            *one_of(
                may("p", "password", "the password of user to update"),
                may("t", "userType", "the userType of user to update"),
                may("s", "userStatus", "the userStatus of user to update"),
                group=2,
            ),
        ),
    ),
    Command(
        "deleteUser",
        "Delete user from cluster.",
        delete_user,
        (
            *_place("delete", "user from", cluster="delete acl from which cluster"),
            must("u", "username", "the username of user to delete."),
        ),
    ),
    Command(
        "getUser",
        "Get user from cluster.",
        get_user,
        (
            *_place("get", "user for", cluster="get user for specified cluster"),
            may("u", "username", "the username of user to get"),
        ),
    ),
    Command(
        "listUser",
        "List user from cluster.",
        list_users,
        (
            *_place("list", "user for", cluster="list user for specified cluster"),
            may("f", "filter", "the filter to list users"),
        ),
    ),
    Command(
        "copyUser",
        "Copy user to cluster.",
        copy_users,
        (
            may("u", "usernames", "the username list of user to copy."),
            must("f", "fromBroker", "the source broker that the users copy from"),
            must("t", "toBroker", "the target broker that the users copy to"),
        ),
    ),
    Command("createAcl", "Create acl to cluster.", create_policies, _policy_options("create")),
    Command("updateAcl", "Update acl to cluster.", update_policies, _policy_options("update")),
    Command(
        "deleteAcl",
        "Delete acl from cluster.",
        delete_policies,
        (
            *_place("delete", "acl from"),
            must("s", "subject", "the subject of acl to delete."),
            may("r", "resources", "the resources of acl to delete"),
        ),
    ),
    Command(
        "getAcl",
        "Get acl from cluster.",
        get_policies,
        (
            *_place("get", "acl for", cluster="get acl for specified cluster"),
            may("s", "subject", "the subject of acl to get"),
        ),
    ),
    Command(
        "listAcl",
        "List acl from cluster.",
        list_policies,
        (
            *one_of(
                may("b", "brokerAddr", "list acl for which broker."),
                may("c", "clusterName", "list acl for specified cluster."),
            ),
            may("s", "subject", "the subject of acl to filter."),
            may("r", "resource", "the resource of acl to filter."),
        ),
    ),
    Command(
        "copyAcl",
        "Copy acl to cluster.",
        copy_policies,
        (
            may("s", "subjects", "the subject list of acl to copy."),
            must("f", "fromBroker", "the source broker that the acls copy from"),
            must("t", "toBroker", "the target broker that the acls copy to"),
        ),
    ),
)
