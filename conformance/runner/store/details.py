"""Judgements of single observations, in a Parquet file next to results.json.

results.json has the cells. The judgements of their observations are a hundred times larger and
rarely needed, so `observations.parquet` holds them, one row per observation. The results contain
the digest of their file. Runs of earlier versions have the judgements in results.json itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.errors import ConformanceError
from conformance.runner.store.files import replacing
from conformance.spec.cached_folder import file_digest
from conformance.spec.records import Answer, CellResult, Gain, Judged, Verdict

#: The file's name.
DETAILS = "observations.parquet"

_OWN, _BESIDE = "own", "beside"
_FLOATS = ("q_med", "q_max", "spread", "error", "floor", "smallest")
_COLUMNS = (
    *("site", "verdict", "message", *_FLOATS),
    *("ratios", "gain", "shape", "dtype", "extra"),
)


def write(cells: Sequence[CellResult], path: Path) -> tuple[tuple[CellResult, ...], str]:
    """Write the judgements of these cells' observations atomically.

    Return the cells without passing observations, and the file's digest. Failing ones also stay in
    their cell: they are few, and a gate reads them.
    """
    import pyarrow as pa
    from pyarrow import parquet

    rows = list(_rows(cells))
    names = rows[0].keys() if rows else ("cell", "of", "site")
    table = pa.table({name: _array(name, [row[name] for row in rows]) for name in names})
    with replacing(path) as part:
        parquet.write_table(table, part, compression="zstd")
        digest = file_digest(part)

    def failing(answer: CellResult | Answer | None) -> list[Judged]:
        return [one for one in (answer.observations if answer else ()) if not one.verdict.passes]

    return tuple(_with(cell, failing(cell), failing(cell.beside)) for cell in cells), digest


def read(cells: Sequence[CellResult], path: Path, digest: str) -> tuple[CellResult, ...]:
    """Return the cells with the judgements of all their observations.

    Raises ConformanceError if the file is absent, damaged or of another judgement.
    """
    remedy = f"judge the run again: conformance judge {path.parent.name}"
    from pyarrow import ArrowException, parquet

    try:
        if file_digest(path) != digest:
            raise ConformanceError("is not the one of results.json", path=path, remedy=remedy)
        columns = parquet.read_table(path, memory_map=False).to_pydict()
    except (OSError, ArrowException) as error:
        raise ConformanceError(f"cannot be read: {error}", path=path, remedy=remedy) from error
    found: dict[tuple[str, str], list[Judged]] = {}
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        found.setdefault((row["cell"], row["of"]), []).append(_parse_judged(row))
    return tuple(
        _with(cell, found.get((cell.id, _OWN), ()), found.get((cell.id, _BESIDE), ()))
        for cell in cells
    )


def _array(name: str, values: Sequence[Any]) -> Any:
    import pyarrow as pa

    if name in ("ratios", "gain"):
        return pa.array(values, pa.list_(pa.float64()))
    if name == "shape":
        return pa.array(values, pa.list_(pa.int64()))
    if name in _FLOATS:
        return pa.array(values, pa.float64())
    return pa.array(values, pa.string()).dictionary_encode()


def _rows(cells: Sequence[CellResult]) -> Iterator[dict[str, Any]]:
    for cell in cells:
        answers: list[tuple[str, CellResult | Answer]] = [(_OWN, cell)]
        answers += [(_BESIDE, cell.beside)] if cell.beside else []
        for of, answer in answers:
            for judged in answer.observations:
                gain = judged.gain
                yield {
                    "cell": cell.id,
                    "of": of,
                    **{name: getattr(judged, name) for name in _COLUMNS},
                    "verdict": judged.verdict.value,
                    "gain": gain and [gain.g, gain.h, gain.sigma, *gain.tokens],
                    "extra": json.dumps(dict(judged.extra), default=list) if judged.extra else "",
                }


def _parse_judged(row: Mapping[str, Any]) -> Judged:
    gain = row["gain"]
    parsed = {
        "verdict": Verdict(row["verdict"]),
        "gain": gain and Gain(gain[0], gain[1], gain[2], tuple(gain[3:])),
        "extra": json.loads(row["extra"]) if row["extra"] else {},
        "ratios": tuple(row["ratios"]),
        "shape": tuple(row["shape"]),
    }
    return Judged(**{**{name: row[name] for name in _COLUMNS}, **parsed})


def _with(cell: CellResult, own: Iterable[Judged], beside: Iterable[Judged]) -> CellResult:
    answer = cell.beside and replace(cell.beside, observations=tuple(beside))
    return replace(cell, observations=tuple(own), beside=answer)
