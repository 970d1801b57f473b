"""
Makes the administrator for asyncio of the synchronous one: each method calls its twin on a thread.

Requests are rare and short, and `admin` blocks. `sync_from_async.py` writes the result.
"""

import ast
from collections.abc import Iterator

WORDS = {
    "Thread-safe": "Each call runs on a thread; one that is cancelled goes on until it ends by itself",
    "on the thread of the call": "on a worker thread, not that of the event loop",
    "Use it in a `with`, or call `close`": "Use it in an `async with`, or await `close`",
}
"""What differs in docstrings."""

_HEAD = '''"""
The administrator for asyncio.

Requests are rare and short, so each call runs on a thread.
"""

import asyncio
from collections.abc import AsyncIterator
from ferromq.admin import Admin as BlockingAdmin
'''
_TAIL = '''
    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._admin.closed

    def __repr__(self) -> str:
        return repr(self._admin).replace("<", "<aio.", 1)

    def _repr_html_(self) -> str:
        return self._admin._repr_html_().replace("Admin", "aio.Admin", 1)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
'''


def asynchronous(text: str) -> str:
    """Return the module for asyncio, before `WORDS` and before it is formatted."""
    lines, module = text.splitlines(), ast.parse(text)
    imports = [node for node in module.body if isinstance(node, ast.Import | ast.ImportFrom)]
    admin = next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Admin")
    made = [ast.unparse(node) for node in imports]
    made += ['\n__all__ = ["Admin"]\n\n', "\n".join(lines[admin.lineno - 1 : admin.body[0].end_lineno])]
    for method in admin.body:
        if isinstance(method, ast.FunctionDef) and _is_public(method):
            made += ["", *_method(method, lines)]
    return _HEAD + "\n".join(made) + "\n" + _TAIL


def _is_public(method: ast.FunctionDef) -> bool:
    is_property = any(isinstance(each, ast.Name) and each.id == "property" for each in method.decorator_list)
    return method.name == "__init__" or not (is_property or method.name.startswith("_"))


def _method(method: ast.FunctionDef, lines: list[str]) -> Iterator[str]:
    """Yield signature and docstring as they are, and the call."""
    has_docstring = ast.get_docstring(method) is not None
    body = method.body[1] if has_docstring else method.body[0]
    head = "\n".join(lines[method.lineno - 1 : body.lineno - 1])
    arguments = [_given(each) for each in method.args.args[1:]]
    arguments += [f"{each.arg}={_given(each)}" for each in method.args.kwonlyargs]
    given = ", ".join(arguments)
    if method.name == "__init__":
        yield head
        yield f"        self._admin = BlockingAdmin({given})"
        return
    call = f"asyncio.to_thread(self._admin.{method.name}{', ' if given else ''}{given})"
    head = head.replace("    def ", "    async def ", 1).replace("-> Iterator[", "-> AsyncIterator[")
    yield head
    if "-> AsyncIterator[" in head:
        yield f"        found = await {call}"
        yield "        while (one := await asyncio.to_thread(next, found, None)) is not None:"
        yield "            yield one"
    else:
        yield f"        {'' if _returns_nothing(method) else 'return '}await {call}"


def _given(argument: ast.arg) -> str:
    """Return what the thread is given: it must not iterate over what belongs to the loop."""
    is_iterable = argument.annotation is not None and ast.unparse(argument.annotation).startswith("Iterable[")
    return f"list({argument.arg})" if is_iterable else argument.arg


def _returns_nothing(method: ast.FunctionDef) -> bool:
    return isinstance(method.returns, ast.Constant) and method.returns.value is None
