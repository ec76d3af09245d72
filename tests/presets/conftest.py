"""A user's file in a temporary folder, and the lines of the error that it causes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from numerics.errors import ConfigurationError
from numerics.presets.file import Catalog, load

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a user's file."""

    def written(text: str) -> Path:
        path = tmp_path / "my.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


@pytest.fixture
def loaded(write: Write) -> Callable[[str], Catalog]:
    """The catalog with a user's file of this text."""
    return lambda text: load(write(text))


@pytest.fixture
def problems(write: Write) -> Callable[[str], list[str]]:
    """The lines of the error about a user's file of this text, without the folder."""

    def found(text: str) -> list[str]:
        path = write(text)
        with pytest.raises(ConfigurationError) as caught:
            load(path)
        return [each.removeprefix(f"{path.parent}/") for each in str(caught.value).splitlines()]

    return found
