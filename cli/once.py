"""Commands whose options of one value are given once: of two values a parser would take the last, and say nothing."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from numerics.errors import ConfigurationError

Function = TypeVar("Function", bound=Callable[..., Any])


class OnceCommand(TyperCommand):
    """A command that refuses a second value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the base has it. Raises ConfigurationError naming both values."""
        _check(self, ctx, args)
        return super().parse_args(ctx, args)


class OnceGroup(TyperGroup):
    """The same for the options before a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the base has it. Raises ConfigurationError naming both values."""
        _check(self, ctx, args)
        return super().parse_args(ctx, args)


class App(typer.Typer):
    """Commands of which all are such."""

    def command(self, name: str | None = None, **given: Any) -> Callable[[Function], Function]:
        """As the base has it."""
        return super().command(name, **{"cls": OnceCommand, **given})


def _check(command: Any, ctx: Any, args: list[str]) -> None:
    if ctx.resilient_parsing:
        return  # a shell that completes is no place for messages
    _, _, order = command.make_parser(ctx).parse_args(args=list(args))
    for option, times in Counter(order).items():
        if times > 1 and option.param_type_name == "option" and not (option.multiple or option.is_flag):
            values = " and ".join(map(repr, _values(option.opts, args)))
            raise ConfigurationError(f"{option.opts[0]}: given {times} times, {values}; legal: once")


def _values(names: Sequence[str], args: Sequence[str]) -> list[str]:
    """As they were written: `--name VALUE` or `--name=VALUE`."""
    found: list[str] = []
    for place, word in enumerate(args):
        name, equals, value = word.partition("=")
        if name in names:
            found += [value] if equals else args[place + 1 : place + 2]
    return found
