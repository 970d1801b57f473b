"""The parameters of a pipeline's command, as click has them. Workers of Spark import pipelines without click."""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import click


class Parameters:
    """Collects parameters; takes the attributes that click takes."""

    def __init__(self) -> None:
        self.all: list[click.Parameter] = []

    def option(self, *names: str, choices: Sequence[str] = (), **attributes: Any) -> None:
        """Add an option; with *choices* it takes no other value."""
        if choices:
            attributes["type"] = importlib.import_module("click").Choice(choices)
        self.all.append(importlib.import_module("click").Option(names, **attributes))

    def argument(self, name: str, **attributes: Any) -> None:
        """Add an argument."""
        self.all.append(importlib.import_module("click").Argument([name], **attributes))
