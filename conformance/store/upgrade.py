"""Files of earlier versions → what the present records read (pure).

Until results/3 a column was a backend with the environment in its id (`vllm-pp1@old`) and
fields for what a run had added to it; plans, results and jobs of that time are brought up here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from conformance.records import SCHEMA

_BEFORE_COLUMNS = "conformance-results/2"


def upgraded(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """A plan, results or a job as they are written now; itself when it is up to date."""
    if not {"backends", "backend"} & document.keys():
        return document
    new = dict(document)
    if "backends" in new:
        new["columns"] = [_column(entry) for entry in new.pop("backends")]
    if "backend" in new:
        new["column"] = _column(new.pop("backend"))
    if new.get("schema") == _BEFORE_COLUMNS:
        new["schema"] = SCHEMA
    return new


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


#: What a run added to a backend, and what it was where nothing was added.
_ADDED: Mapping[str, Any] = {"of": "", "requirements": (), "untestable": ""}
