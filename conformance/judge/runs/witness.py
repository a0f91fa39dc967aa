"""Check that a second implementation agrees with the float32 reference of a model.

The reference is transformers' modelling code. vLLM defines most families itself; if its float32
log-probabilities, without nnsight, are the same, two implementations confirm the reference. A
family that vLLM runs through transformers' code is not confirmed; if the two differ, either may be
wrong.

`confirmed.json` has an entry for each model that vLLM's own definition confirmed in an earlier run:
the definition and some of the reference's log-probabilities. If today's reference has the same
numbers, it is confirmed too, and an engine that differs from it by itself deviates, even in a run
without a correct column. `scripts/confirmations.py RUN` writes the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from conformance.errors import ConformanceError
from conformance.judge.cell.measures.metrics import ROUNDING
from conformance.runner.planning.jobs import REFERENCE
from conformance.runner.store import RunFolder, gathered_in
from conformance.spec.builtin.engine_alone import GENERATED
from conformance.spec.generated_tokens import by_member, in_precision
from conformance.spec.records import (
    FLOAT32_LIMITS,
    Column,
    Confirmation,
    Model,
    Precision,
    Site,
    Status,
    Witness,
    from_json,
    record,
)

#: Prefix of the model classes through which vLLM runs transformers' own code.
_BACKEND = "Transformers"
_CASE = f"{GENERATED.name}.all"
FILE = Path(__file__).with_name("confirmed.json")
#: How many numbers of each row of log-probabilities are kept.
_KEPT = 16


def find_confirmation(run: RunFolder, model: Model, columns: Sequence[Column]) -> Confirmation:
    """Return what columns with another implementation say about a model's reference."""
    testimonies = [_testimony(run, model, column) for column in columns if column.engine != "hf"]
    ranks = (Witness.DISAGREES, Witness.CONFIRMED, Witness.SHARED, Witness.UNKNOWN)
    nobody = Confirmation(Witness.UNKNOWN, "no column with another implementation ran in float32")
    return min(testimonies, key=lambda one: ranks.index(one.witness), default=nobody)


def explain_trust(run: RunFolder, model: Model, columns: Sequence[Column], accused: Column) -> str:
    """Return why the reference is trusted over the accused column, "" if it is not.

    There are three reasons, in this order. The accused column runs transformers' code, as the
    reference does. A column with its own definition of the model agrees with the reference on the
    first logits after each prompt; this can be the accused column, if it only fails later. A column
    agreed with the same reference in an earlier run.
    """
    group = run.group(model.id, gathered_in(accused.id, Precision.FLOAT32))
    definition = str(group.identity.get("model", "")) if group else ""
    if accused.engine == "hf" or definition.startswith(_BACKEND):
        return f"{accused.id} runs transformers' own code, as the reference is"
    for column in columns:
        testimony = _testimony(run, model, column) if column.engine != "hf" else None
        if testimony is not None and testimony.witness is Witness.CONFIRMED:
            return f"{column.id} stands behind the reference: {testimony.words}"
    return find_earlier(model, first_reference_logits(run, model))


def first_reference_logits(run: RunFolder, model: Model) -> Mapping[str, Tensor]:
    """Return the reference's log-probabilities after each prompt, by site."""
    known = by_member(run.observations(model.id, REFERENCE.id, _CASE)).get("truth", {})
    return {site: known[site] for site in _first_logits(known, known)}


def _testimony(run: RunFolder, model: Model, column: Column) -> Confirmation:
    folder = gathered_in(column.id, Precision.FLOAT32)
    group = run.group(model.id, folder)
    if group is None:
        return Confirmation(Witness.UNKNOWN, f"{column.id} did not run in float32")
    if group.status is not Status.OK:
        return Confirmation(Witness.UNKNOWN, f"{column.id} in float32: {group.reason}")
    definition = str(group.identity.get("model", ""))
    if definition.startswith(_BACKEND):
        words = f"{column.id} runs transformers' own code ({definition})"
        return Confirmation(Witness.SHARED, words)
    members = by_member(run.observations(model.id, REFERENCE.id, _CASE))
    known = members.get("truth", {})
    observed = run.observations(model.id, folder, _CASE)
    sites = list(_first_logits(known, observed))
    if not sites:
        return Confirmation(Witness.UNKNOWN, f"{column.id} generated nothing by itself in float32")
    ways = [values for name, values in members.items() if in_precision(name, Precision.FLOAT32)]
    distance = max(_relative(observed[site], known[site]) for site in sites)
    between = max(
        (_relative(way[site], known[site]) for way in ways for site in sites), default=0.0
    )
    floor = max(between, ROUNDING[Precision.FLOAT32])
    agrees = distance <= FLOAT32_LIMITS.k_max * floor
    words = (
        f"vLLM's {definition} is {distance:.1e} from transformers' in float32, where "
        f"transformers' own ways differ by {floor:.1e} ({len(sites)} prompts)"
    )
    witness = Witness.CONFIRMED if agrees else Witness.DISAGREES
    return Confirmation(witness, words, distance, floor, len(sites))


def _first_logits(reference: Mapping[str, Tensor], observed: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield the log-probabilities after each prompt, whose context is the same on both sides."""
    for name, value in reference.items():
        site = Site.parse(name)
        if site.name != "logits" or site.step or name not in observed:
            continue
        if observed[name].shape == value.shape:
            yield name


def _relative(value: Tensor, reference: Tensor) -> float:
    """Return the distance of two rows of log-probabilities, relative to the second's spread."""
    value, reference = value.double(), reference.double()
    return float(
        (value - reference).norm() / (reference - reference.mean()).norm().clamp_min(1e-30)
    )


@record()
class Confirmed:
    """Part of a reference, by site, that vLLM's class `definition` confirmed.

    `distance` and `floor` are those of `conformance.spec.records.Confirmation`.
    """

    model: str
    architecture: str
    definition: str
    versions: Mapping[str, str]
    distance: float
    floor: float
    truth: Mapping[str, tuple[float, ...]]


@record()
class Ledger:
    entries: tuple[Confirmed, ...]


def excerpt(rows: Mapping[str, Tensor]) -> dict[str, tuple[float, ...]]:
    """Return evenly spaced numbers of each row."""
    return {site: tuple(_spread(row).tolist()) for site, row in sorted(rows.items())}


def _spread(row: Tensor) -> Tensor:
    flat = row.flatten().double()
    return flat[torch.linspace(0, len(flat) - 1, _KEPT).long()]


@cache
def ledger(path: Path = FILE) -> Mapping[str, Confirmed]:
    """Load the entries by model. Raises ConformanceError if the file is damaged."""
    try:
        known = from_json(Ledger, path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConformanceError(f"damaged: {error}", path=path) from error
    return {entry.model: entry for entry in known.entries}


def find_earlier(model: Model, reference: Mapping[str, Tensor]) -> str:
    """Return who confirmed this reference in an earlier run, "" if nobody did."""
    entry = ledger().get(model.id)
    if entry is None or entry.architecture != model.architecture or not entry.truth:
        return ""
    limit = FLOAT32_LIMITS.k_max * entry.floor
    for site, known in entry.truth.items():
        kept = torch.tensor(known, dtype=torch.float64)
        if site not in reference or _relative(_spread(reference[site]), kept) > limit:
            return ""
    by = ", ".join(f"{name} {version}" for name, version in entry.versions.items())
    return (
        f"an earlier run confirmed this reference ({entry.definition} with {by}, "
        f"{entry.distance:.1e} from it)"
    )
