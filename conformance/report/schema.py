"""The published JSON schema of results.json: the records' schema with every field described."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from ruamel.yaml import YAML

from conformance.spec import records

#: JSON has no numbers for these; records write them as strings.
NUMBER: Mapping[str, Any] = {
    "description": "A number; what JSON has no number for is one of three strings.",
    "anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}],
}


def descriptions() -> Mapping[str, Mapping[str, str]]:
    """Return record → field → description. A field without one fails the tests."""
    text = resources.files("conformance.report").joinpath("schema.yaml").read_text("utf-8")
    fields: Mapping[str, Mapping[str, str]] = YAML(typ="safe").load(text)
    return fields


def results_schema() -> str:
    """Return the schema as JSON text."""
    return json.dumps(_schema(), indent=2, ensure_ascii=False)


def _schema() -> dict[str, Any]:
    schema = records.adapter(records.Results).json_schema(mode="serialization")
    definitions = schema["$defs"]
    fields = descriptions()
    for name, part in {**definitions, "Results": schema}.items():
        for field, words in fields.get(name, {}).items():
            if field in part["properties"]:
                part["properties"][field]["description"] = words
    schema["properties"]["schema"]["const"] = records.SCHEMA
    definitions["Number"] = NUMBER
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_with_words_for_numbers(schema),
        "title": records.SCHEMA,
    }


def _with_words_for_numbers(part: Any) -> Any:
    """Replace every `number` of the schema by a reference to NUMBER."""
    if part is NUMBER:
        return part
    if isinstance(part, dict):
        schema = {key: _with_words_for_numbers(value) for key, value in part.items()}
        if schema.get("type") == "number":
            del schema["type"]
            schema["$ref"] = "#/$defs/Number"
        return schema
    if isinstance(part, list):
        return [_with_words_for_numbers(item) for item in part]
    return part
