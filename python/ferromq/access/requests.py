"""Requests 3001 to 3010: users and their policies, as RocketMQ's access control has them."""

from collections.abc import Callable
from typing import Any

from ferromq._ferromq import Request
from ferromq.access.users import (
    SUPER,
    BadAccess,
    User,
    UserTable,
    policies_from_json,
    subject_name,
)
from ferromq.config.access import AccessConfig
from ferromq.protocol import java_json
from ferromq.protocol.codes import RequestCode, ResponseCode
from ferromq.protocol.remoting import Answer, Handler, failure, success

_FOR_SUPER_USERS = "only a super user may create, change or delete a super user"


class AccessRequests:
    """
    Answers requests 3001 to 3010, while access control is on.

    With authorization, policies decided already who may send them; without it, super users alone may. Passwords are
    answered to super users, if the option says so, and never logged.
    """

    def __init__(self, table: UserTable | None, options: AccessConfig) -> None:
        self._table = table
        self._options = options

    def handlers(self) -> dict[RequestCode, Handler]:
        """Return the function for each request."""
        return {
            RequestCode.AUTH_CREATE_USER: self._guarded(self._create_user),
            RequestCode.AUTH_UPDATE_USER: self._guarded(self._update_user),
            RequestCode.AUTH_DELETE_USER: self._guarded(self._delete_user),
            RequestCode.AUTH_GET_USER: self._guarded(self._get_user),
            RequestCode.AUTH_LIST_USER: self._guarded(self._list_users),
            RequestCode.AUTH_CREATE_ACL: self._guarded(self._put_acl),
            RequestCode.AUTH_UPDATE_ACL: self._guarded(self._put_acl),
            RequestCode.AUTH_DELETE_ACL: self._guarded(self._delete_acl),
            RequestCode.AUTH_GET_ACL: self._guarded(self._get_acl),
            RequestCode.AUTH_LIST_ACL: self._guarded(self._list_acls),
        }

    def _guarded(self, answer: Callable[[Request, UserTable, bool], Answer]) -> Handler:
        def handle(request: Request) -> Answer:
            if self._table is None:
                why = "access control is off; start the server with authentication_enabled (authenticationEnabled)"
                return failure(ResponseCode.SYSTEM_ERROR, why)
            user = self._table.get(request.user or "")
            is_super = user is not None and user.is_super
            if not is_super and not self._options.authorization_enabled:
                return failure(ResponseCode.NO_PERMISSION, "only a super user may see and change users and policies")
            try:
                return answer(request, self._table, is_super)
            except _BlankName:
                return failure(ResponseCode.INVALID_PARAMETER, "The username is blank")
            except BadAccess as error:
                return failure(ResponseCode.NO_PERMISSION, str(error))

        return handle

    def _create_user(self, request: Request, table: UserTable, is_super: bool) -> Answer:
        name, content = _named(request), _body(request)
        if _text(content, "userType").lower() == SUPER.lower() and not is_super:
            return failure(ResponseCode.SYSTEM_ERROR, _FOR_SUPER_USERS)
        table.create(name, _text(content, "password"), _text(content, "userType"), _text(content, "userStatus"))
        return success()

    def _update_user(self, request: Request, table: UserTable, is_super: bool) -> Answer:
        name, content = _named(request), _body(request)
        if _text(content, "userType").lower() == SUPER.lower() and not is_super:
            return failure(ResponseCode.SYSTEM_ERROR, _FOR_SUPER_USERS)
        _check_super(table.get(name), is_super=is_super)
        table.update(name, _text(content, "password"), _text(content, "userType"), _text(content, "userStatus"))
        return success()

    def _delete_user(self, request: Request, table: UserTable, is_super: bool) -> Answer:
        name = _named(request)
        _check_super(table.get(name), is_super=is_super)
        table.delete(name)
        return success()

    def _get_user(self, request: Request, table: UserTable, is_super: bool) -> Answer:
        name = _named(request)
        user = table.get(name)
        return success(body=b"" if user is None else java_json.dumps(self._shown(user, is_super=is_super)))

    def _list_users(self, request: Request, table: UserTable, is_super: bool) -> Answer:
        holds = request.fields.get("filter", "").strip()
        users = [self._shown(user, is_super=is_super) for user in table.all() if holds in user.name]
        return success(body=java_json.dumps(users) if users else b"")

    def _shown(self, user: User, *, is_super: bool) -> dict[str, Any]:
        return user.to_json(with_secret=is_super and self._options.show_passwords)

    def _put_acl(self, request: Request, table: UserTable, is_super: bool) -> Answer:
        content = _body(request)
        name = subject_name(_text(content, "subject") or request.fields.get("subject", ""))
        _check_super(table.get(name), is_super=is_super)
        table.put_policies(name, policies_from_json(content))
        return success()

    def _delete_acl(self, request: Request, table: UserTable, is_super: bool) -> Answer:
        name = subject_name(request.fields.get("subject", ""))
        _check_super(table.get(name), is_super=is_super)
        table.delete_policies(name, request.fields.get("policyType"), request.fields.get("resource"))
        return success()

    def _get_acl(self, request: Request, table: UserTable, _is_super: bool) -> Answer:
        name = subject_name(request.fields.get("subject", ""))
        user = table.get(name)
        if user is None:
            raise BadAccess(f"there is no user {name}")
        found = user.policies_to_json()
        return success(body=b"" if found is None else java_json.dumps(found))

    def _list_acls(self, request: Request, table: UserTable, _is_super: bool) -> Answer:
        subject, resource = (request.fields.get(key, "").strip() for key in ("subjectFilter", "resourceFilter"))
        found = [
            # As in RocketMQ, a subject that contains the filter for resources is shown whole.
            acl
            for user in table.all()
            if subject in f"User:{user.name}"
            and (acl := user.policies_to_json("" if resource in f"User:{user.name}" else resource)) is not None
        ]
        return success(body=java_json.dumps(found) if found else b"")


class _BlankName(Exception):  # noqa: N818 (an answer, not a failure of ours)
    """A request names no user."""


def _named(request: Request) -> str:
    name = request.fields.get("username", "")
    if not name:
        raise _BlankName
    return name


def _check_super(user: User | None, *, is_super: bool) -> None:
    if user is not None and user.is_super and not is_super:
        raise BadAccess(_FOR_SUPER_USERS)


def _body(request: Request) -> dict[str, Any]:
    try:
        return java_json.loads_object(request.body)
    except ValueError as error:
        # The content may have a password.
        raise BadAccess("the body of the request is no JSON object") from error


def _text(content: dict[str, Any], name: str) -> str:
    value = content.get(name)
    if value is not None and not isinstance(value, str):
        raise BadAccess(f"{name} is no text")
    return value or ""
