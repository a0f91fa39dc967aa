"""A cell's verdict in sentences, shared by the page and the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from conformance.records import CellResult, Finding, Group, Judged, Limits, Precision, Thresholds
from conformance.report import figures
from conformance.report.verdict_styles import LOOKS
from conformance.shortening import clip


@dataclass(frozen=True, slots=True)
class Context:
    """What a cell's reasoning refers to: its worker's group and the same case elsewhere."""

    thresholds: Thresholds
    group: Group | None = None
    siblings: tuple[CellResult, ...] = ()


def number(value: float | None) -> str:
    """Format with three significant digits, with an exponent only if people would use one."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value == 0:
        return "0"
    if 0.001 <= abs(value) < 100_000:
        digits = max(0, 2 - math.floor(math.log10(abs(value))))
        text = f"{value:.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.2e}"


def times(value: float | None, *limits: float) -> str:
    """Format a multiple of the noise floor; never show it equal to a limit that it differs from."""
    if value is None:
        return "–"
    text = number(value)
    if math.isfinite(value) and any(text == number(limit) != str(value) for limit in limits):
        text = f"{value:.5g}"
    return f"{text}×"


def reasoning(cell: CellResult, context: Context) -> tuple[str, ...]:
    """Return why the cell has its verdict, one sentence each, the most important first."""
    sentences = [f"{cell.verdict.value}: {LOOKS[cell.verdict].meaning}."]
    if cell.reason:
        sentences.append(f"Found: {_ended(cell.reason)}")
    if cell.diagnosis:
        sentences.append(f"Diagnosis: {_ended(cell.diagnosis)}")
    sentences += _beside(cell)
    if cell.attribution:
        sentences.append(f"Culprit: {_ended(str(cell.attribution))}")
    sentences += [
        *_where(cell, context),
        *_gain(cell, context.thresholds.of(cell.precision)),
        *_passed(cell, context.thresholds.of(cell.precision)),
        *_relations(cell),
        *_elsewhere(cell, context.siblings),
    ]
    if cell.left:
        changed = ", ".join(cell.left)
        sentences.append(f"Its block changed {changed}: the cells after it ran in a fresh worker.")
    if cell.harness:
        sentences.append("The harness itself failed here: this is not scored as the product's.")
    if cell.expected:
        sentences.append(f"This is expected: {_ended(cell.expected)}")
    if cell.finding is Finding.STALE:
        sentences.append("known.yaml expects it not to pass: that gap is gone here.")
    return tuple(dict.fromkeys(sentence for sentence in sentences if sentence))


def _beside(cell: CellResult) -> Iterable[str]:
    """Yield what the other precision says; a refusal is quoted."""
    answer = cell.beside
    if answer is None:
        return
    subject = "it means" if answer.precision is Precision.FLOAT32 else "its numerics are"
    if answer.verdict.neutral:
        yield f"{answer.precision} was refused: {_ended(answer.reason)}"
    elif answer.verdict is not cell.verdict:
        yield f"In {answer.precision} {subject} {answer.verdict}: {_ended(answer.reason)}"


def _ended(text: str) -> str:
    text = text.strip()
    return text if not text or text[-1] in ".!?…:”\"'" else f"{text}."


def first_off(cell: CellResult) -> Judged | None:
    """Return the failing observation of the lowest layer, in the earliest step."""
    failing = [
        (site.step, site.layer, observation)
        for observation in cell.observations
        if observation.verdict.fails
        and (site := observation.place) is not None
        and site.layer is not None
    ]
    return min(failing, key=lambda entry: entry[:2], default=(0, 0, None))[2]


def _where(cell: CellResult, context: Context) -> Iterable[str]:
    failing = [observation for observation in cell.observations if observation.verdict.fails]
    if not failing:
        return
    yield (f"{len(failing)} of {len(cell.observations)} observations are off in {cell.precision}.")
    first = first_off(cell)
    site = first.place if first is not None else None
    if first is not None and site is not None:
        sentence = f"The first layer that is off is {site.layer} ({first.site})"
        bounds = figures.boundaries(context.group)
        if site.layer in bounds:
            sentence += ", the first layer of a pipeline stage"
        elif bounds:
            stage = sum(site.layer >= start for start in bounds if site.layer is not None)
            sentence += f", on pipeline stage {stage + 1} of {len(bounds) + 1}"
        yield f"{sentence}."
    if cell.worst_ratio is not None:
        limit = context.thresholds.of(cell.precision).far_max
        yield (
            f"The worst value is {times(cell.worst_ratio, limit)} the noise floor"
            f"{f' at {cell.worst_site}' if cell.worst_site else ''}; {times(limit)} is allowed."
        )


def _gain(cell: CellResult, limits: Limits) -> Iterable[str]:
    gains = [
        (observation.site, observation.gain)
        for observation in cell.observations
        if observation.gain is not None
    ]
    if not gains:
        return
    site, gain = max(gains, key=lambda pair: pair[1].off)
    room = max(limits.gain_tolerance, limits.gain_sigmas * gain.sigma)
    if abs(gain.g - 1) <= room:
        yield (
            f"The write landed at all of {len(gains)} places: its gain is within "
            f"{number(abs(gain.g - 1))} of 1."
        )
        return
    yield (
        f"The write's gain is furthest from 1 at {site}: "
        f"{number(gain.g)} ± {number(gain.sigma)} (1: it landed, 0: it had no effect), "
        f"off-axis {number(gain.h)} (limit {number(limits.off_axis)} and the noise)."
    )


def _passed(cell: CellResult, limits: Limits) -> Iterable[str]:
    """Yield how far a pass is from failing, and what would have failed."""
    if not cell.verdict.passes:
        return
    if cell.worst_ratio is not None and "noise" not in cell.reason:
        yield f"The worst value is {times(cell.worst_ratio)} the noise floor."
    sizes = detectable(cell)
    if sizes:
        yield (
            "An error would have been found from a relative size of "
            f"{percent(sizes[0])} (best place) to {percent(sizes[1])} (worst place)."
        )
    gains = [observation.gain for observation in cell.observations if observation.gain is not None]
    rooms = [max(limits.gain_tolerance, limits.gain_sigmas * gain.sigma) for gain in gains]
    if rooms and (room := min(rooms)) <= limits.gain_room:
        yield f"A write of another size would have been found from {percent(room)} of it."


def detectable(cell: CellResult) -> tuple[float, float] | None:
    """Return the smallest relative error that would have been found, at best and worst place."""
    sizes = [
        observation.smallest
        for observation in cell.observations
        if observation.smallest is not None
    ]
    return (min(sizes), max(sizes)) if sizes else None


def headline(cell: CellResult) -> str:
    """Return the most important line about a cell that did not pass."""
    text = clip(cell.diagnosis or cell.reason or "no reason was recorded")
    if cell.worst_ratio is not None and not cell.diagnosis and "noise" not in text:
        text += f" (worst {number(cell.worst_ratio)}× the noise floor)"
    return text


def line(cell: CellResult) -> str:
    """Summarize a cell in one line: how it failed, or what a pass would have found."""
    if not cell.verdict.passes:
        return headline(cell)
    sizes = detectable(cell)
    return f"finds errors from {percent(sizes[0])} to {percent(sizes[1])}" if sizes else ""


def percent(value: float) -> str:
    return f"{number(100 * value)} %"


def _relations(cell: CellResult) -> Iterable[str]:
    for relation in cell.relations:
        if not relation.holds:
            detail = f" ({relation.detail})" if relation.detail else ""
            yield f"A rule that needs no tolerance is broken: {relation.name}{detail}."


def _elsewhere(cell: CellResult, siblings: Iterable[CellResult]) -> Iterable[str]:
    failing = [sibling for sibling in siblings if sibling.backend != cell.backend]
    if failing and not cell.verdict.passes:
        columns = ", ".join(f"{sibling.verdict.value} on {sibling.backend}" for sibling in failing)
        yield f"The same case is {columns}."
