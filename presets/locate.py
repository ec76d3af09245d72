"""Finds the line of a key in TOML text, which the parser does not keep. Read only once something is wrong."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import tomli

Key = tuple[str | int, ...]

TOKEN: Final = re.compile(
    r"""
    (?P<blank>[ \t]+|\#[^\n]*)
  | (?P<newline>\r?\n)
  | (?P<text>\"{3}(?:\\.|[^\\])*?\"{3,5} | '{3}.*?'{3,5} | "(?:\\.|[^"\\\n])*" | '[^'\n]*')
  | (?P<bare>[^\s\#"'\[\]{},=.]+)
  | (?P<mark>[\[\]{},=.])
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """A mark, a bare word, a quoted text or a line's end, and the line that it starts on."""

    kind: str
    text: str
    line: int


def lines(text: str) -> dict[Key, int]:
    """The line of every key and list element of valid TOML; of a table, that of its first mention."""
    return _Reader(text).read()


def line(key: Key, known: dict[Key, int]) -> int:
    """The line of a key, or of the nearest table around it; 1 if there is none."""
    while key and key not in known:
        key = key[:-1]
    return known.get(key, 1)


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._lines: dict[Key, int] = {}
        self._lists: dict[Key, int] = {}  # elements of each list of tables, [[...]]

    def read(self) -> dict[Key, int]:
        table: Key = ()
        while self._at < len(self._tokens):
            if self._accepts("["):
                many = self._accepts("[")
                table = self._header(self._names(), many=many)
                self._at += 2 if many else 1
            elif self._peek().kind == "newline":
                self._at += 1
            else:
                self._statement(table)
        return self._lines

    def _header(self, names: list[Token], *, many: bool) -> Key:
        table: Key = ()
        for place, name in enumerate(names, start=1):
            table = (*table, _unquoted(name))
            self._lines.setdefault(table, name.line)
            if many and place == len(names):
                self._lists[table] = self._lists.get(table, 0) + 1
            if table in self._lists:
                table = (*table, self._lists[table] - 1)
                self._lines.setdefault(table, name.line)
        return table

    def _statement(self, table: Key) -> None:
        key = table
        for name in self._names():
            key = (*key, _unquoted(name))
            self._lines.setdefault(key, name.line)
        self._at += 1  # the equals sign
        self._value(key)

    def _names(self) -> list[Token]:
        names = [self._next()]
        while self._accepts("."):
            names.append(self._next())
        return names

    def _value(self, key: Key) -> None:
        if self._accepts("["):
            index = 0
            while not self._closes("]"):
                self._lines[*key, index] = self._peek().line
                self._value((*key, index))
                index += 1
        elif self._accepts("{"):
            while not self._closes("}"):
                self._statement(key)
        else:  # numbers and dates are several tokens
            while self._at < len(self._tokens) and not self._ends_value(self._peek()):
                self._at += 1

    def _closes(self, mark: str) -> bool:
        while self._peek().kind == "newline" or self._peek().text == ",":
            self._at += 1
        return self._accepts(mark)

    @staticmethod
    def _ends_value(token: Token) -> bool:
        return token.kind == "newline" or (token.kind == "mark" and token.text in ",]}")

    def _accepts(self, mark: str) -> bool:
        found = self._at < len(self._tokens) and self._peek()[:2] == ("mark", mark)
        self._at += found
        return found

    def _peek(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        self._at += 1
        return self._tokens[self._at - 1]


def _tokens(text: str) -> Iterator[Token]:
    number = 1
    for match in TOKEN.finditer(text):
        if match.lastgroup != "blank":
            yield Token(match.lastgroup or "", match[0], number)
        number += match[0].count("\n")


def _unquoted(name: Token) -> str:
    if name.kind != "text":
        return name.text
    (key,) = tomli.loads(f"{name.text} = 0")
    return key
