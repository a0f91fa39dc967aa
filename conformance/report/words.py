"""A cell's verdict in sentences, shared by the page and the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from conformance.report import figures
from conformance.report.verdict_styles import LOOKS
from conformance.spec.records import CellResult, Finding, Gain, Group, Limits, Precision, Thresholds
from conformance.spec.shortening import clip


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
    limits = context.thresholds.of(cell.precision)
    sentences = [
        f"{cell.verdict.value}: {LOOKS[cell.verdict].meaning}.",
        _sentence("Found: ", cell.reason),
        _sentence("Diagnosis: ", cell.diagnosis),
        _beside(cell),
        _sentence("Culprit: ", str(cell.attribution or "")),
        *_where(cell, context, limits),
        _gain(cell, limits),
        *_passed(cell, limits),
        *_relations(cell),
        _elsewhere(cell, context.siblings),
    ]
    if cell.left:
        changed = ", ".join(cell.left)
        sentences.append(f"Its block changed {changed}: the cells after it ran in a fresh worker.")
    if cell.harness:
        sentences.append("The harness itself failed here: this is not scored as the product's.")
    sentences.append(_sentence("This is expected: ", cell.expected))
    if cell.finding is Finding.STALE:
        sentences.append("known.yaml expects it not to pass: that gap is gone here.")
    return tuple(dict.fromkeys(filter(None, sentences)))


def _sentence(begin: str, text: str) -> str:
    """Return a sentence that begins and ends so; "" without a text."""
    text = text.strip()
    if not text:
        return ""
    return f"{begin}{text}" if text[-1] in ".!?…:”\"'" else f"{begin}{text}."


def _beside(cell: CellResult) -> str:
    """Return what the other precision says; a refusal is quoted."""
    answer = cell.beside
    if answer is None:
        return ""
    if answer.verdict.neutral:
        return _sentence("", f"{answer.precision} was refused: {answer.reason}")
    if answer.verdict is cell.verdict:
        return ""
    subject = "it means" if answer.precision is Precision.FLOAT32 else "its numerics are"
    words = f"In {answer.precision} {subject} {answer.verdict}: {answer.reason}"
    return _sentence("", words)


def _where(cell: CellResult, context: Context, limits: Limits) -> Iterable[str]:
    """Yield how many observations are off, the first layer in the earliest step, and how far."""
    failing = [observation for observation in cell.observations if observation.verdict.fails]
    if not failing:
        return
    yield f"{len(failing)} of {len(cell.observations)} observations are off in {cell.precision}."
    places = [
        (site.step, site.layer, observation.site)
        for observation in failing
        if (site := observation.place) is not None and site.layer is not None
    ]
    if places:
        _, layer, name = min(places, key=lambda place: place[:2])
        sentence = f"The first layer that is off is {layer} ({name})"
        bounds = figures.boundaries(context.group)
        if layer in bounds:
            sentence += ", the first layer of a pipeline stage"
        elif bounds:
            stage = sum(layer >= start for start in bounds)
            sentence += f", on pipeline stage {stage + 1} of {len(bounds) + 1}"
        yield f"{sentence}."
    if cell.worst_ratio is not None:
        yield (
            f"The worst value is {times(cell.worst_ratio, limits.far_max)} the noise floor"
            f"{f' at {cell.worst_site}' if cell.worst_site else ''}; {times(limits.far_max)} is "
            "allowed."
        )


def _room(gain: Gain, limits: Limits) -> float:
    """Return how far this gain may be from 1."""
    return max(limits.gain_tolerance, limits.gain_sigmas * gain.sigma)


def _gain(cell: CellResult, limits: Limits) -> str:
    gains = [(judged.gain, judged.site) for judged in cell.observations if judged.gain is not None]
    if not gains:
        return ""
    gain, site = max(gains, key=lambda pair: pair[0].off)
    if abs(gain.g - 1) <= _room(gain, limits):
        return (
            f"The write landed at all of {len(gains)} places: its gain is within "
            f"{number(abs(gain.g - 1))} of 1."
        )
    return (
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
    if sizes := detectable(cell):
        yield (
            "An error would have been found from a relative size of "
            f"{percent(sizes[0])} (best place) to {percent(sizes[1])} (worst place)."
        )
    gains = [judged.gain for judged in cell.observations if judged.gain is not None]
    rooms = [_room(gain, limits) for gain in gains]
    if rooms and (room := min(rooms)) <= limits.gain_room:
        yield f"A write of another size would have been found from {percent(room)} of it."


def detectable(cell: CellResult) -> tuple[float, float] | None:
    """Return the smallest relative error that would have been found, at best and worst place."""
    sizes = [judged.smallest for judged in cell.observations if judged.smallest is not None]
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


def _elsewhere(cell: CellResult, siblings: Iterable[CellResult]) -> str:
    others = [each for each in siblings if each.backend != cell.backend]
    if not others or cell.verdict.passes:
        return ""
    columns = ", ".join(f"{each.verdict.value} on {each.backend}" for each in others)
    return f"The same case is {columns}."
