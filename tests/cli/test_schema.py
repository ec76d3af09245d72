"""`numerics schema`: the JSON Schema of a presets file."""

import pytest

from numerics.presets.schema import PresetFile
from tests.cli.conftest import Command


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_the_schema_of_a_file_is_printed(numerics: Command, arguments: tuple[str, ...]) -> None:
    found = numerics("schema", *arguments)
    assert found.code == 0
    assert found.json["$schema"].startswith("https://json-schema.org/")
    assert set(found.json["properties"]) == set(PresetFile.model_fields)
