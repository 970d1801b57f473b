"""What `encode` and `decode` accept, the JSON of each kind of type, and the errors."""

import copy
import dataclasses
import json
import sys
from typing import Annotated, Any, Literal, Optional, TypedDict

import msgspec
import pydantic
import pytest

import ferromq
from ferromq import ConfigError, Message, Undecodable
from ferromq.core.payloads import Decoder, Encoder


@dataclasses.dataclass
class Order:
    """A dataclass."""

    id: str
    quantity: int


class Item(msgspec.Struct):
    """A class of msgspec."""

    id: str
    quantity: int


class Model(pydantic.BaseModel):
    """A model of pydantic."""

    id: str
    quantity: int = pydantic.Field(gt=0)


@pydantic.dataclasses.dataclass
class Checked:
    """A dataclass of pydantic."""

    id: str
    quantity: int = pydantic.Field(gt=0)


class Row(TypedDict):
    """A typed dictionary."""

    id: str
    quantity: int


class Received:
    """As much of a received message as a decoder reads."""

    message_id, topic = "m", "orders"

    def __init__(self, body: bytes) -> None:
        self.body = body


def decoded(decode: Any, body: bytes) -> Any:
    """Return the value of a body."""
    return Decoder(decode).value(Received(body))  # type: ignore[arg-type]


VALUES = [
    (Order, Order("o", 3)),
    (Item, Item("o", 3)),
    (Model, Model(id="o", quantity=3)),
    (Checked, Checked("o", 3)),
    (Row, {"id": "o", "quantity": 3}),
    (dict, {"id": "o", "quantity": 3}),
]
IDS = [kind.__name__ for kind, _ in VALUES]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=IDS)
def test_values_of_a_type_travel_as_json(kind: Any, value: Any) -> None:
    """Each kind writes the same object, with its content type, and reads it again."""
    message = Encoder(kind).message(value, {"keys": "k"})
    assert json.loads(message.body) == {"id": "o", "quantity": 3}
    assert message.properties == {"contentType": "application/json"}
    assert message.keys == ("k",)
    assert decoded(kind, message.body) == value
    assert type(decoded(kind, message.body)) is type(value)
    assert Encoder(object).message(value, {}).body == message.body


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=IDS)
def test_containers_of_a_type_travel_as_json(kind: Any, value: Any) -> None:
    """A list of models is read by pydantic, another one by msgspec."""
    message = Encoder(list[kind]).message([value], {})
    assert json.loads(message.body) == [{"id": "o", "quantity": 3}]
    assert decoded(list[kind], message.body) == [value]


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=IDS)
def test_optional_types_travel_as_json(kind: Any, value: Any) -> None:
    """A union of models is read by pydantic, another one by msgspec; `None` is null."""
    for optional in (kind | None, Optional[kind], Annotated[kind | None, "why"]):  # noqa: UP045 (what is tested)
        encoder: Encoder[Any] = Encoder(optional)
        for each in (value, None):
            body = encoder.message(each, {}).body
            assert json.loads(body) == (None if each is None else {"id": "o", "quantity": 3})
            assert decoded(optional, body) == each
        with pytest.raises(TypeError, match="was given a str"):
            encoder.message("text", {})
        with pytest.raises(Undecodable):
            decoded(optional, b'"text"')


def test_other_unions_and_literals_travel_as_json() -> None:
    """As far as msgspec reads them; a union that it cannot tell apart is refused at the constructor."""
    union: Any = Order | int | list[str]
    for value in (Order("o", 3), 5, ["a"]):
        assert decoded(union, Encoder(union).message(value, {}).body) == value
    literal: Any = Literal["a", 1]
    assert decoded(literal, Encoder(literal).message("a", {}).body) == "a"
    with pytest.raises(ConfigError, match="has no JSON"):
        Decoder(Order | Row)


@pytest.mark.parametrize("kind", [kind for kind, _ in VALUES if kind is not dict], ids=IDS[:-1])
@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b'{"id": 1}', b'{"id": "o", "quantity": "many"}'])
def test_another_body_is_undecodable(kind: Any, body: bytes) -> None:
    """The error has the class and the text of the decoder's own, which is its cause."""
    with pytest.raises(Undecodable) as caught:
        decoded(kind, body)
    cause = caught.value.__cause__
    assert caught.value.reason == f"{type(cause).__name__}: {cause}"
    assert isinstance(caught.value, ferromq.Reject)


@pytest.mark.parametrize(
    ("kind", "body"),
    [(dict, b"[]"), (list, b"{}"), (str, b"1"), (int, b"true"), (int, b"1.5"), (float, b"false"), (bool, b"1")],
)
def test_json_of_another_builtin_type_is_undecodable(kind: Any, body: bytes) -> None:
    """A boolean is no number."""
    with pytest.raises(Undecodable, match="the body is JSON of a"):
        decoded(kind, body)


def test_a_whole_number_is_a_float_and_any_json_an_object() -> None:
    """As in Python."""
    assert (decoded(float, b"2"), type(decoded(float, b"2"))) == (2.0, float)
    assert decoded(object, b"[1, null]") == [1, None]


@pytest.mark.parametrize(("kind", "value"), [(Order, {"id": "o"}), (Model, Order("o", 3)), (dict, []), (list[int], {})])
def test_a_value_of_another_type_is_refused(kind: Any, value: Any) -> None:
    """Before it is sent."""
    with pytest.raises(TypeError, match="this producer encodes"):
        Encoder(kind).message(value, {})


def test_functions_are_called_with_each_value_and_body() -> None:
    """Bytes are a value, too; a content type is the caller's."""
    encoder = Encoder(lambda value: bytes(reversed(value)))
    message = encoder.message(b"abc", {"properties": {"contentType": "text/plain"}})
    assert (message.body, message.properties) == (b"cba", {"contentType": "text/plain"})
    assert encoder.message(b"abc", {}).properties == {}
    assert decoded(lambda body: body.decode().upper(), b"abc") == "ABC"


def test_a_message_is_sent_as_it_is_and_brings_its_options() -> None:
    """With and without an encoder."""
    given = Message(b"x", tag="t")
    for encoder in (Encoder(Order), Encoder[bytes](None)):
        assert encoder.message(given, {}) is given
        assert encoder.numbered()(given) is given
        with pytest.raises(TypeError, match="a Message brings its own keys"):
            encoder.message(given, {"keys": "k"})


def test_the_callers_content_type_counts() -> None:
    """For JSON with a schema of its own."""
    properties = {"contentType": "application/cloudevents+json", "a": "1"}
    assert Encoder(Order).message(Order("o", 3), {"properties": properties}).properties == properties


def test_what_a_decoder_raises_on_purpose_passes() -> None:
    """A schema that cannot be fetched now is no reason for a dead letter."""
    for wanted in (ferromq.RetryAfter(5), ferromq.Reject("no")):

        def decode(_: bytes, wanted: Exception = wanted) -> None:
            raise wanted

        with pytest.raises(type(wanted)) as caught:
            decoded(decode, b"x")
        assert caught.value is wanted


@dataclasses.dataclass
class Opaque:
    """Its field has no JSON."""

    socket: Exception


@pytest.mark.parametrize("kind", [Exception, Opaque, bytes, 3, "json", set[int]])
def test_a_type_without_json_is_refused_before_a_message_is_lost(kind: Any) -> None:
    """Else each message would become a dead letter."""
    for client in (ferromq.Producer, ferromq.Consumer):
        option = {"encode": kind} if client is ferromq.Producer else {"decode": kind}
        arguments = ("127.0.0.1:1",) if client is ferromq.Producer else ("127.0.0.1:1", "billing", "orders")
        with pytest.raises(ConfigError, match="has no JSON"):
            client(*arguments, **option)


def test_a_missing_library_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for a type that needs it."""
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(ModuleNotFoundError, match=r"Order needs msgspec.*: pip install 'ferromq\[typed\]'"):
        Decoder(Order)
    assert decoded(dict, b"{}") == {}


def test_a_consumer_without_decode_decodes_nothing() -> None:
    """It says how it would."""
    decoder: Decoder[Any] = Decoder(None)
    with pytest.raises(ConfigError, match="decode="):
        decoder.value(Received(b"{}"))  # type: ignore[arg-type]


def test_a_decoded_message_has_all_that_its_message_has() -> None:
    """Also a copy of it."""
    message = Decoder(dict).given(Received(b'{"a":1}'))  # type: ignore[arg-type]
    for each in (message, copy.copy(message)):
        assert (each.value, each.topic, each.body) == ({"a": 1}, "orders", b'{"a":1}')
        assert repr(each) == "<DecodedMessage m of orders: {'a': 1}>"
        assert isinstance(each, ferromq.MessageView)
        assert isinstance(each, ferromq.DecodedMessage)
        with pytest.raises(AttributeError):
            _ = each.no_such_name


def test_an_asynchronous_function_is_refused() -> None:
    """Its result would be a coroutine, and the message acknowledged."""

    async def convert(value: Any) -> Any:
        return value

    for make, option in ((Decoder, "decode"), (Encoder, "encode")):
        with pytest.raises(ConfigError, match=f"{option} is an asynchronous function"):
            make(convert)
