"""Tells local paths from URLs, and opens the file system of a URL with fsspec."""

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ferromq.errors import ConfigError

_LOCAL_SCHEMES = {"", "file", "local"}


def local_path(path: str) -> Path | None:
    """Return *path* if it is local; None for a URL."""
    scheme, separator, rest = path.partition(":")
    if not separator or len(scheme) == 1 or not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9+.-]*", scheme):
        return Path(path)
    if scheme.lower() in _LOCAL_SCHEMES:
        return Path(unquote(urlsplit(path).path))
    return None if rest.startswith("//") or "::" in path else Path(path)


def file_system(url: str, storage_options: Mapping[str, Any]) -> tuple[Any, str]:
    """
    Return the file system of *url*, and the path there.

    Raises ModuleNotFoundError with the pip command if fsspec or a package it needs is missing, and ConfigError for a
    URL that fsspec does not know.
    """
    scheme = url.partition(":")[0]
    line = f"pip install 'fsspec[{scheme}]'"
    try:
        core = importlib.import_module("fsspec.core")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"path {url!r} needs fsspec, which is not installed: {line}", name="fsspec"
        ) from error
    try:
        filesystem, path = core.url_to_fs(url, **storage_options)
    except ImportError as error:
        raise ModuleNotFoundError(f"path {url!r} needs more of fsspec ({error}): {line}", name=scheme) from error
    except ValueError as error:
        raise ConfigError(f"fsspec says of {url!r}: {error}") from error
    return filesystem, path
