"""Writes docs/records.md and docs/records.schema.json from the declared fields.

python tests/contracts/make_records_doc.py
"""

import json
from pathlib import Path

from l2ul_fast.experiments import registry
from l2ul_fast.measure.records import FIELDS, SCHEMA

ROOT = Path(__file__).parents[2]
TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array"}
HEAD = f"""# Records

A run is a folder with `records.jsonl`, one JSON object per measured cell, and `run.json`, the environment. The fields
of schema {SCHEMA} are below; a field that does not apply is missing or null. Fields of the role *identity* tell cells
apart, those of the role *repeat* their repetitions: they serve resuming, `l2ul compare` and `l2ul reproduce`. Records
of older versions are read through one function, `l2ul_fast.measure.records.upgrade`. `records.schema.json` says the
same to programs. This page is generated: `python tests/contracts/make_records_doc.py`.
"""


def names(field):
    return " or ".join(TYPES[t] for t in field.types)


def table(fields):
    rows = ["| field | role | type | unit | better | meaning |", "| --- | --- | --- | --- | --- | --- |"]
    for name, field in fields.items():
        rows.append(f"| `{name}` | {field.role} | {names(field)} | {field.unit} | {field.better} | {field.help} |")
    return "\n".join(rows)


def page():
    parts = [HEAD, "## Fields of every experiment\n", table(FIELDS), ""]
    for experiment in registry.load().values():
        if experiment.fields:
            parts += [f"## {experiment.name}: {experiment.title}\n", table(experiment.fields), ""]
    return "\n".join(parts)


def schema():
    fields = dict(FIELDS)
    for experiment in registry.load().values():
        fields |= experiment.fields
    properties = {
        name: {"type": sorted({TYPES[t] for t in field.types} | {"null"}), "description": field.help}
        for name, field in fields.items()
    }
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One record of a run",
        "type": "object",
        "required": ["schema", "experiment"],
        "properties": properties,
    }
    return json.dumps(whole, indent=1) + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "records.md").write_text(page())
    (ROOT / "docs" / "records.schema.json").write_text(schema())
