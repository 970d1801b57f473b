"""The options of `ferromq mqadmin`: RocketMQ's syntax, and the errors that its mqadmin prints."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferromq.cli.main import main
from ferromq.cli.mqadmin.app import COMMANDS
from ferromq.cli.mqadmin.options import UsageError, parse, usage
from ferromq.errors import ConfigError

WORDS = st.lists(
    st.sampled_from(
        ["-t", "-b", "-c", "-n", "-h", "-r", "--topic", "--top", "--topic=x", "-tx", "--", "-", "x", "-1", ""]
    )
    | st.text(max_size=5),
    max_size=8,
)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("topicRoute", "Missing required option: t"),
        ("topicRoute -t a -x", "Unrecognized option: -x"),
        ("topicRoute -t", "Missing argument for option: t"),
        ("topicRoute -n -t a", "Missing argument for option: n"),
        ("topicRoute --topic -l", "Missing argument for option: t"),
        ("topicRoute --nothing x -t a", "Unrecognized option: --nothing"),
        ("topicRoute -t a more", "Unrecognized argument: more"),
        (
            "updateTopic -t a",
            "Missing required option: [-b create topic to which broker, -c create topic to which cluster]",
        ),
        (
            "updateTopic -t a -b x -c y",
            "The option 'c' was specified but an option from this group has already been selected: 'b'",
        ),
        ("cloneGroupOffset -t a", "Missing required options: s, d"),
    ],
)
def test_wrong_options_are_told_in_rocketmqs_words(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the usage, and the exit code of wrong usage."""
    name, *rest = words.split()
    assert main(["mqadmin", name, *rest]) == 2
    printed = capsys.readouterr()
    assert printed.err == f"{told}\n"
    assert printed.out.startswith(f"usage: mqadmin {name} ")


@pytest.mark.parametrize("words", ["-t a b", "-ta", "-t=a", "--topic a", "--topic=a", "--top a", "-l -t a"])
def test_an_option_has_a_letter_and_a_name(words: str) -> None:
    """And takes its value from the next word, or from its own."""
    if words == "-t a b":
        assert parse(COMMANDS["topicRoute"], ["-t", " a b "])["t"] == "a b"
    else:
        assert parse(COMMANDS["topicRoute"], words.split())["t"] == "a"


def test_values_are_checked() -> None:
    """With the letter and the value in the error."""
    found = parse(COMMANDS["updateTopic"], ["-t", "a", "-b", "x", "-r", "many", "-o", "maybe", "-w", "-1"])
    assert found.number("w", 8) == -1
    with pytest.raises(ConfigError, match="-r is 'many'; a whole number is expected"):
        found.number("r", 8)
    with pytest.raises(ConfigError, match="-o is 'maybe'; true or false is expected"):
        found.truth("o", default=False)


@pytest.mark.parametrize("name", ["topicRoute", "updateTopic", "updateUser"])
@given(words=WORDS)
def test_any_words_are_options_or_a_usage_error(name: str, words: list[str]) -> None:
    """Nothing else is raised, and what is required is there."""
    try:
        found = parse(COMMANDS[name], words)
    except UsageError:
        return
    assert "h" in found or all(option.key in found for option in COMMANDS[name].options if option.is_required)


def test_all_commands_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a name, and by `help NAME` or `-h`, in any case of letters."""
    assert len(COMMANDS) == 52
    assert main(["mqadmin"]) == 0
    listed = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"   {name:<35} {command.help}\n" in listed
        for words in (["help", name], [name.upper(), "-h"]):
            assert main(["mqadmin", *words]) == 0
            assert capsys.readouterr().out == usage(command) + "\n"
    for words in (["nosuch"], ["help", "nosuch"]):
        assert main(["mqadmin", *words]) == 2
        assert "The sub command nosuch not exist" in capsys.readouterr().err


def test_a_command_without_an_address_says_how_to_give_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """Before it asks anything."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("FERROMQ_CONTEXTS", "FERROMQ_ENDPOINT", "NAMESRV_ADDR"):
        monkeypatch.delenv(name, raising=False)
    assert main(["mqadmin", "topicList"]) == 2
    assert "NAMESRV_ADDR" in capsys.readouterr().err
    assert main(["mqadmin", "topicList", "-n", "no address"]) == 2
    assert "no address" in capsys.readouterr().err


def test_other_commands_import_none_of_it() -> None:
    """It is loaded when it is used."""
    program = "import sys, ferromq.cli.main, ferromq.cli.servers; sys.exit('ferromq.cli.mqadmin' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
