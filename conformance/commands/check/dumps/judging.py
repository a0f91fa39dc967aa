"""Compare a dump's values with transformers, and identify what the wrong ones hold."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from conformance.commands.check.checked import Answered, CheckAnswer, Checked, CheckFinding
from conformance.commands.check.dumps.reading import Dump, order_of, resolve_states, site_name
from conformance.commands.check.gather import Asked, identity
from conformance.commands.check.values import compare
from conformance.commands.check.values.known_values import catalogue, identify
from conformance.runner.planning.jobs import REFERENCE
from conformance.runner.planning.named import DUMP
from conformance.runner.store import RunFolder
from conformance.spec.records import Precision, Site, Status

#: The largest relative distance at which a value computed in bf16 is identified.
_ROUNDED = 0.1

_MOST = 6


def judge_dump(dump: Dump, asked: Asked, run: RunFolder) -> Answered:
    """Return the answer for a dump: compare its values with transformers in float32, and if they
    differ, in bf16.
    """
    model, [file] = asked.model.id, asked.files
    results: dict[Precision, compare.Compared] = {}

    def say(answer: CheckAnswer, sentence: str, found: tuple[CheckFinding, ...] = ()) -> Answered:
        words = [f"{c.judgement.verdict}: {c.judgement.reason}" for c in results.values()]
        meaning, numerics = words or ("", "")
        names = str(dump.path), model, DUMP.id
        checked = Checked(*names, answer, sentence, found, meaning=meaning, numerics=numerics)
        evidence = tuple(compare.evidence_of(c, precision) for precision, c in results.items())
        return Answered(checked, file.name, evidence, (dump.ids,))

    outcome = run.outcome(model, REFERENCE.id, file.key)
    if outcome is None or outcome.harness:
        return say(CheckAnswer.HARNESS, outcome.reason if outcome else "transformers did not run")
    layers = int(identity(run, model).get("layers", 0))
    dump = resolve_states(dump, layers)
    if outcome.status is not Status.OK:
        reason = outcome.reason
        for name, place in dump.places.items():
            if int(place.partition(".")[2] or 0) >= layers > 0:
                reason = f"`{name}` is {place}, and the model has {layers} layers, from 0"
        return say(CheckAnswer.INVALID, reason)
    seen = run.observations(model, REFERENCE.id, file.key)
    results |= {precision: _compared(dump, seen, precision) for precision in Precision}
    rounded = results[Precision.BF16]
    if results[Precision.FLOAT32].passes:
        return say(CheckAnswer.SAME, "the same as transformers in float32")
    if rounded.passes or compare.numerics_only(rounded.judgement):
        sentence = "the same but for numerics: as far from float32 as transformers' own bf16 is"
        return say(CheckAnswer.NUMERICS, sentence)
    if rounded.judgement.harness:
        return say(CheckAnswer.HARNESS, rounded.judgement.reason)
    found = _found(dump, seen, rounded, str(identity(run, model).get("layer_list", "")))
    return say(CheckAnswer.DIFFERS, f"not the same: {found[0].words}", found)


def _compared(dump: Dump, seen: Mapping[str, Tensor], precision: Precision) -> compare.Compared:
    mine, at = {}, {}
    for name, place in dump.places.items():
        value, called = dump.values[name], site_name(place)
        # The adapter reads the last token's logits, so only these are compared.
        last = value.reshape(-1, value.shape[-1])[-1] if place == "logits" else value
        mine[str(Site(called))], at[called] = last, order_of(place)
    reference = {
        way: {site: value for site, value in values.items() if site in mine}
        for way, values in compare.select_runs(seen, precision).items()
    }
    ids = [list(dump.ids)], compare.prompt_ids(compare.layers(seen))
    prepared = compare.build_reference(reference, precision)
    return compare.compare(mine, prepared, ids, order=lambda site: at[site.name])


def _found(
    dump: Dump, seen: Mapping[str, Tensor], rounded: compare.Compared, layer_list: str
) -> tuple[CheckFinding, ...]:
    """Return what the wrong values hold, identified to the precision of bf16."""
    known = catalogue(seen, layer_list)
    names = {site_name(place): name for name, place in dump.places.items()}
    meant = {
        Site.parse(site).name: value
        for site, value in compare.select_runs(seen, Precision.FLOAT32)["truth"].items()
    }
    found = []
    for site in compare.wrong(rounded.judgement)[:_MOST]:
        name, place = names[site.name], dump.places[names[site.name]]
        value, reference = dump.values[name], meant[site.name]
        held = identify(value.float(), known, _ROUNDED)
        if compare.squeezed(value) != compare.squeezed(reference) and place != "logits":
            words = f"has shape {list(value.shape)}, and {place} is {list(reference.shape)}"
        elif held:
            words = f"holds {held.what()}, and {place} was expected"
        else:
            words = f"is nothing that transformers computes, and {place} was expected"
        found.append(CheckFinding(held.kind if held else "unknown", f"`{name}` {words}", name))
    return tuple(found)
