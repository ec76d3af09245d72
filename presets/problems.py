"""What is wrong with a presets file, one line a problem: file, line, key, what came, what is legal, the nearest name."""

from typing import NamedTuple

from pydantic import ValidationError


class Problem(NamedTuple):
    """One thing that is wrong, and the key that it is wrong about."""

    key: tuple[str | int, ...]
    message: str


def explain(error: ValidationError) -> list[Problem]:
    """The problems that a validation error stands for."""
    return [Problem(tuple(detail["loc"]), detail["msg"]) for detail in error.errors()]


def report(problems: list[Problem], path: str, text: str) -> str:
    """The lines of a ConfigurationError."""
    return "\n".join(f"{path}: {'.'.join(map(str, key))}: {message}" for key, message in problems)
