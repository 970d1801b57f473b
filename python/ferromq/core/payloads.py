"""
Typed payloads: how a producer encodes values as bodies, and a consumer decodes bodies as values.

No I/O. pydantic and msgspec are imported when a type needs them. The JSON of dataclasses, `TypedDict`s and msgspec's
own classes is msgspec's; a pydantic model has its own.
"""

import copy
import dataclasses
import importlib
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    Union,
    cast,
    get_args,
    get_origin,
    is_typeddict,
)

from ferromq._ferromq import Message, MessageView
from ferromq.errors import ConfigError, MessageTooLarge, Reject, RetryAfter, Undecodable
from ferromq.terminal.objects import html_of, short

if TYPE_CHECKING:
    from typing import Never

    from typing_extensions import TypeVar

    T = TypeVar("T", default=Never)
    V = TypeVar("V", default=bytes)
    M = TypeVar("M", bound=MessageView, default=MessageView)
else:
    from typing import TypeVar

    T = TypeVar("T")
    V = TypeVar("V")
    M = TypeVar("M", bound=MessageView)

CONTENT_TYPE = "contentType"
"""The property that names the format of a body. Spring's messages, so rocketmq-spring too, use this name."""
JSON = "application/json"
PIP_LINE = "pip install 'ferromq[typed]'"

_COMPOSED = (Union, UnionType, Annotated, Literal)
"""The origins of types that are made of others: `Order | None` and its like."""
_BUILTIN = (dict, list, str, int, float, bool, object)
"""Types that the standard library reads and writes as JSON."""

ZLIB = "zlib"
Compression = Literal["zlib", "lz4", "zstd"]
"""How bodies are compressed."""
MAX_DECOMPRESSED = 64 << 20
"""The largest body in bytes that ferromq's consumers decompress."""
COMPRESS_OVER = 4096
"""RocketMQ's producers compress bodies of more bytes than this."""

Encode = Callable[[V], bytes] | type[V]
"""A function of a value that returns a body, or a type whose values are written as JSON."""
Decode = Callable[[bytes], T] | type[T]
"""A function of a body that returns a value, or a type that is read from JSON."""


if TYPE_CHECKING:
    _View = MessageView  # it has all that a received message has
else:

    class _View:
        __slots__ = ()


class DecodedMessage(_View, Generic[T]):  # type: ignore[misc]
    """
    A received message and the value of its body; it has all that a `MessageView` has.

    Made by consumers with `decode`. `Consumer.ack` and its like take it as they take a `MessageView`.
    """

    __slots__ = ("message", "value")
    if not TYPE_CHECKING:
        __class__ = property(lambda _: MessageView)  # for `isinstance`; a class of the core cannot be inherited from

    def __init__(self, message: MessageView, value: T) -> None:
        self.message = message
        self.value = value

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return getattr(self.message, name)

        def __copy__(self) -> "DecodedMessage[T]":
            return DecodedMessage(self.message, self.value)

        def __deepcopy__(self, memo: dict[int, Any]) -> "DecodedMessage[T]":
            return DecodedMessage(self.message, copy.deepcopy(self.value, memo))

        def __reduce_ex__(self, protocol: Any) -> Any:
            return self.message.__reduce_ex__(protocol)  # raises

    def __repr__(self) -> str:
        return f"<DecodedMessage {self.message.message_id} of {self.message.topic}: {short(repr(self.value))}>"

    def _repr_html_(self) -> str:
        return html_of(self)


def plain(message: object) -> MessageView:
    """Return the message that a consumer received. Raises `TypeError` for anything else."""
    received = message.message if isinstance(message, DecodedMessage) else message
    if not isinstance(received, MessageView):
        raise TypeError(f"a received message is expected, not {received!r}")
    return received


def plain_all(messages: object) -> list[MessageView]:
    """Return the messages that a consumer received, of one or several. Raises `TypeError` for anything else."""
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Iterable):
        return [plain(messages)]
    return [message if type(message) is MessageView else plain(message) for message in messages]


def as_is(value: Message | bytes) -> Message | bytes:
    """Return a value that is sendable; a caller that recognizes this function need not call it for each of many."""
    return value


_OPTIONS = {
    "keys": "a str or an iterable of str",
    "tag": "a str",
    "properties": "a mapping of str to str",
    "message_group": "a str",
    "delivery_timestamp": "an aware datetime, or milliseconds since 1970",
    "delay": "a timedelta or seconds",
    "priority": "a whole number",
}
"""What the options of a message must be."""


def _with_options(body: bytes, options: Mapping[str, Any]) -> Message:
    """
    Return a message. Raises `TypeError` with the name of an option of a wrong type, which a bool is of each.

    Raises as `check_unicode`.
    """
    if bool in map(type, options.values()):
        _check_options(options)
    try:
        return Message(body, **options)
    except (TypeError, UnicodeEncodeError):
        _check_options(options)
        raise


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise `TypeError` for an option of a wrong type."""
    for name, value in options.items():
        check_unicode(name, value)
        try:
            if not isinstance(value, bool):
                Message(b"x", **{name: value})
                continue
        except TypeError:
            pass
        if name in _OPTIONS:
            raise TypeError(f"{name} must be {_OPTIONS[name]}, not {value!r}")


def check_unicode(name: str, value: object) -> None:
    """Raise `ConfigError` for a text, or a collection with one, that has surrogates, so no UTF-8."""
    texts: Iterable[object] = ()
    if isinstance(value, str):
        texts = (value,)
    elif isinstance(value, Collection):
        texts = (*value, *value.values()) if isinstance(value, Mapping) else value
    for text in texts:
        if not isinstance(text, str):
            continue
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{name} has the text {text!r:.80}, which is not valid UTF-8; correct it") from None


class Encoder(Generic[V]):
    """Makes the messages of a producer."""

    def __init__(
        self, encode: Encode[V] | None, compress: Compression | None = None, compress_over: int = COMPRESS_OVER
    ) -> None:
        if compress is not None and compress not in get_args(Compression):
            raise ConfigError(f"compress is {compress!r}; give 'zlib', 'lz4', 'zstd' or None")
        if not isinstance(compress_over, int) or isinstance(compress_over, bool) or compress_over < 0:
            raise ConfigError(f"compress_over is {compress_over!r}; it is a whole number of bytes, 0 or more")
        self._compress = compress
        self._compress_over = min(compress_over, MAX_DECOMPRESSED)
        self._encode = None if encode is None else _function(encode, "encode", _writer)
        self._properties = {CONTENT_TYPE: JSON} if encode is not None and _is_type(encode) else {}

    def message(self, value: Message | V, options: Mapping[str, Any]) -> Message:
        """Return the message of a value; one that is a `Message` is taken as it is, and brings its own options."""
        if isinstance(value, Message):
            given = [name for name, option in options.items() if option is not None]
            if given:
                raise TypeError(f"a Message brings its own {' and '.join(given)}")
            return value
        body = cast("bytes", value) if self._encode is None else self._encode(value)
        if self._properties:
            own = options.get("properties") or {}
            if isinstance(own, Mapping):  # the caller's own content type counts
                options = {**options, "properties": {**self._properties, **own}}
        return _with_options(body, options) if options else Message(body)

    def sendable(self, value: Message | V, options: Mapping[str, Any]) -> Message:
        """Return the message of a value as it is sent: with a compressed body, if the producer compresses."""
        message = self.message(value, options)
        if self._compress is None:
            return message
        if len(message.body) > MAX_DECOMPRESSED:
            raise MessageTooLarge(
                f"the body has {len(message.body)} bytes; consumers decompress at most {MAX_DECOMPRESSED}"
            )
        return message.compressed(self._compress, self._compress_over)

    def numbered(self) -> Callable[[Message | V], Message | bytes]:
        """Return a function that makes what a batch takes of each value; its errors note the number of the value."""
        if self._encode is None and self._compress is None:
            return cast("Callable[[Message | V], Message | bytes]", as_is)
        count = 0

        def sendable(value: Message | V) -> Message:
            nonlocal count
            try:
                message = self.sendable(value, {})
            except Exception as error:
                error.add_note(f"it is the error of message {count}")
                raise
            count += 1
            return message

        return sendable


class Decoder(Generic[T]):
    """Reads the bodies of a consumer's messages."""

    def __init__(self, decode: Decode[T] | None) -> None:
        self._decode = None if decode is None else _function(decode, "decode", _reader)

    @property
    def is_on(self) -> bool:
        """Whether callers are given other objects than the leased messages."""
        return self._decode is not None

    def value(self, message: MessageView) -> T:
        """
        Return the value of a body.

        Raises `Undecodable` with the error of the decoder, and `ConfigError` without a `decode`. `Reject` and
        `RetryAfter` of a decoder pass.
        """
        if self._decode is None:
            raise ConfigError("this consumer decodes no bodies: make it with decode=, a type or a function of bytes")
        try:
            return cast("T", self._decode(message.body))
        except (Reject, RetryAfter):
            raise
        except Exception as error:
            raise Undecodable(f"{type(error).__name__}: {error}") from error

    def given(self, message: MessageView) -> "DecodedMessage[T]":
        """Return what a handler, a loop or a receive is given. Raises as `value`."""
        if self._decode is None:
            return cast("DecodedMessage[T]", message)
        return DecodedMessage(message, self.value(message))


def _is_type(given: object) -> bool:
    return isinstance(given, type) or get_origin(given) is not None


def _function(
    given: Any, option: str, of_type: Callable[[Any, type[Any]], Callable[[Any], Any] | None]
) -> Callable[[Any], Any]:
    """Return the function of an `encode` or `decode`. Raises `ConfigError` for a type that has no JSON."""
    if _is_type(given):
        function = of_type(given, get_origin(given) or given)
        if function is not None:
            return function
    elif inspect.iscoroutinefunction(given):
        raise ConfigError(
            f"{option} is an asynchronous function, whose result would not be awaited; give one without async"
        )
    elif callable(given):
        return cast("Callable[[Any], Any]", given)
    name = getattr(given, "__qualname__", None) or repr(given)
    raise ConfigError(
        f"{option}={name} has no JSON: give a dataclass, a TypedDict, a pydantic model, a msgspec.Struct, a builtin "
        "type such as dict, a union of them, or a function of one argument"
    )


def _writer(kind: Any, plain_type: type[Any]) -> Callable[[Any], bytes] | None:
    """Return what writes values of a type as JSON; None if nothing does. It raises `TypeError` for other values."""
    write: Callable[[Any], bytes]
    if kind is object:
        return lambda value: _writer_of(type(value))(value)
    if _is_pydantic(kind):
        adapter = _adapter(kind)
        write = lambda value: adapter.dump_json(value, by_alias=True)  # noqa: E731
    elif kind in _BUILTIN:
        write = _json
    elif _is_structured(kind, plain_type):
        write = _msgspec(kind).encode
    else:
        return None
    wanted = _classes(kind)

    def checked(value: Any) -> bytes:
        if not isinstance(value, wanted):
            raise TypeError(f"this producer encodes {_name(kind)}, and was given a {type(value).__qualname__}")
        return write(value)

    return checked


def _classes(kind: Any) -> tuple[type[Any], ...]:
    """Return the classes of the values of a type."""
    plain_type = get_origin(kind) or kind
    if plain_type in _COMPOSED:
        # Of what is annotated, the first argument is the type.
        parts = get_args(kind)[:1] if plain_type is Annotated else get_args(kind)
        return tuple(each for part in parts for each in _classes(type(part) if plain_type is Literal else part))
    # A TypedDict is no class of its values.
    return (dict,) if is_typeddict(plain_type) else (int, float) if plain_type is float else (plain_type,)


def _writer_of(kind: type[Any]) -> Callable[[Any], bytes]:
    if issubclass(kind, (*_BUILTIN[:-1], type(None))):
        return _json
    found = _writer(kind, kind)
    if found is None:
        raise TypeError(f"a {kind.__qualname__} has no JSON: give the producer an encode function")
    return found


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _reader(kind: Any, plain_type: type[Any]) -> Callable[[bytes], Any] | None:
    """Return what reads values of a type from JSON; None if nothing does."""
    if _is_pydantic(kind):
        return cast("Callable[[bytes], Any]", _adapter(kind).validate_json)
    if kind in _BUILTIN:
        return lambda body: _of_type(json.loads(body), kind)
    if _is_structured(kind, plain_type):
        return cast("Callable[[bytes], Any]", _msgspec(kind).Decoder(kind).decode)
    return None


def _of_type(value: Any, kind: type[Any]) -> Any:
    """Return a value of JSON. Raises `TypeError` for another type; a whole number is a float, a boolean no number."""
    is_number = kind in {int, float} and not isinstance(value, bool)
    if kind is float and is_number and isinstance(value, int):
        return float(value)
    if not isinstance(value, kind) or (kind in {int, float} and not is_number):
        raise TypeError(f"the body is JSON of a {type(value).__name__}, not of a {kind.__name__}")
    return value


def _is_pydantic(kind: Any) -> bool:
    """Say whether it is a model or a dataclass of pydantic, or a container of them."""
    return hasattr(kind, "__pydantic_validator__") or any(map(_is_pydantic, get_args(kind)))


def _adapter(kind: Any) -> Any:
    return importlib.import_module("pydantic").TypeAdapter(kind)


def _is_structured(kind: Any, plain_type: type[Any]) -> bool:
    """Say whether it is a type that msgspec knows."""
    is_struct = hasattr(plain_type, "__struct_fields__") or dataclasses.is_dataclass(plain_type)
    is_made_of_others = get_origin(kind) is not None and plain_type in {dict, list, tuple, *_COMPOSED}
    return is_struct or is_made_of_others or is_typeddict(plain_type)


def _msgspec(kind: Any) -> Any:
    """
    Return `msgspec.json`, once it is known that it can read and write a type.

    Raises `ModuleNotFoundError` with the pip command if it is not installed, and `ConfigError` for a type with a field
    that has no JSON: with it each message would become a dead letter.
    """
    try:
        msgspec = importlib.import_module("msgspec")
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"the JSON of {_name(kind)} needs msgspec, which is not installed: {PIP_LINE}", name="msgspec"
        ) from None
    try:
        msgspec.json.schema(kind)
    except TypeError as error:
        raise ConfigError(f"{_name(kind)} has no JSON, give a function instead: {error}") from None
    return msgspec.json


def _name(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or repr(kind)
