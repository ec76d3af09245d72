"""Every key of a TOML text is found on its line."""

import json

import pytest
import tomli
from hypothesis import given
from hypothesis import strategies as st

from numerics.presets.locate import Key, line, lines

TEXT = """\
# a comment with [brackets] = "quotes"
top.level = 1  # a dotted key

[plain]
number = 1979-05-27 07:32:00
inline = { first = [1, { deep = "]}#" }], "quoted.key" = 1.5, dotted.key = true }
several = [
  "one",  # ] "
  '''two
     lines''',

  { inner = 'it' },
]

[ "quoted:table" . sub ]
text = \"\"\"
[not.a.table]
x = 1 \\\"\"\"
\"\"\"
after = inf

[[rows]]
name = 1
[[rows]]
name = 2
[rows.table]
key = "\\u0041"
[[rows.list]]
key = 1
"""

EXPECTED: dict[Key, int] = {
    ("top",): 2,
    ("top", "level"): 2,
    ("plain",): 4,
    ("plain", "number"): 5,
    ("plain", "inline"): 6,
    ("plain", "inline", "first"): 6,
    ("plain", "inline", "first", 0): 6,
    ("plain", "inline", "first", 1): 6,
    ("plain", "inline", "first", 1, "deep"): 6,
    ("plain", "inline", "quoted.key"): 6,
    ("plain", "inline", "dotted"): 6,
    ("plain", "inline", "dotted", "key"): 6,
    ("plain", "several"): 7,
    ("plain", "several", 0): 8,
    ("plain", "several", 1): 9,
    ("plain", "several", 2): 12,
    ("plain", "several", 2, "inner"): 12,
    ("quoted:table",): 15,
    ("quoted:table", "sub"): 15,
    ("quoted:table", "sub", "text"): 16,
    ("quoted:table", "sub", "after"): 20,
    ("rows",): 22,
    ("rows", 0): 22,
    ("rows", 0, "name"): 23,
    ("rows", 1): 24,
    ("rows", 1, "name"): 25,
    ("rows", 1, "table"): 26,
    ("rows", 1, "table", "key"): 27,
    ("rows", 1, "list"): 28,
    ("rows", 1, "list", 0): 28,
    ("rows", 1, "list", 0, "key"): 29,
}


def test_every_kind_of_key_is_on_its_line() -> None:
    assert lines(TEXT) == EXPECTED


def test_windows_line_ends_count_once() -> None:
    assert lines(TEXT.replace("\n", "\r\n")) == EXPECTED


def test_a_table_is_where_it_is_mentioned_first() -> None:
    known = lines("[a.b]\nx = 1\n[a]\ny = 2\n")
    assert known["a",] == 1
    assert known["a", "y"] == 4


def test_a_table_of_dotted_keys_is_where_it_is_mentioned_first() -> None:
    known = lines("[t]\na.x = 1\na.y = 2\n")
    assert [known["t", *key] for key in (("a",), ("a", "x"), ("a", "y"))] == [2, 2, 3]


@pytest.mark.parametrize(
    ("key", "number"),
    [
        (("plain", "several", 1), 9),
        (("plain", "several", 7), 7),  # not there: the list
        (("plain", "absent", "deeper"), 4),  # not there: the table
        (("absent",), 1),
        ((), 1),
    ],
)
def test_a_key_that_is_missing_is_where_it_would_belong(key: Key, number: int) -> None:
    assert line(key, lines(TEXT)) == number


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=6)
scalars = st.integers(0, 9) | names
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))


@given(st.lists(st.tuples(names, values), max_size=4, unique_by=lambda pair: pair[0]))
def test_all_keys_of_any_text_are_found(statements: list[tuple[str, object]]) -> None:
    expected: dict[Key, int] = {}
    written: list[str] = []
    for name, value in statements:
        start = 1 + "\n".join(written).count("\n") + bool(written)
        text = _written(value, ("t", name), start, expected)
        expected["t", name] = start
        written.append(f"{json.dumps(name, ensure_ascii=False)} = {text}")
    text = "\n".join(["[t]", *written])
    tomli.loads(text)
    assert {key: number - 1 for key, number in lines(text).items() if len(key) > 1} == expected


def _written(value: object, key: Key, number: int, expected: dict[Key, int]) -> str:
    """TOML of a value, each list element on its own line; notes the lines of the keys within."""
    if isinstance(value, list):
        text = "["
        for index, element in enumerate(value):
            text += "\n"
            expected[*key, index] = number + text.count("\n")
            text += _written(element, (*key, index), number + text.count("\n"), expected) + ","
        return text + "]"
    if isinstance(value, dict):
        parts: list[str] = []
        for name, inner in value.items():
            before = "".join(parts).count("\n")
            expected[*key, name] = number + before
            parts.append(
                f"{json.dumps(name, ensure_ascii=False)} = {_written(inner, (*key, name), number + before, expected)}"
            )
        return "{" + ", ".join(parts) + "}"
    return json.dumps(value, ensure_ascii=False)
