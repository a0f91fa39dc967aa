"""Sampling: ids drawn with a seed are drawn again with the same seed, and ids that a block
chooses are those that the generation goes on with.

Logits and streams follow from the ids that were drawn or chosen.
"""

from conformance import scenario

SEED = 7
FORCED = (20, 21, 5, 90, 33)


def drawn(lm, case):
    """One seeded generation: its ids, logits and early streams by step."""
    at = case.layers["early"]
    with lm.trace(case.prompts[0], steps=case.steps, seed=SEED) as tracer:
        ids, logits, streams = [].save(), [].save(), [].save()
        for _ in tracer.iter[: case.steps]:
            streams.append({at: lm.layers[at].stream})
            logits.append(lm.logits)
            ids.append(lm.token)
    return ids, logits, streams


@scenario(
    layers={"early": "early"},
    options={"ids": ("drawn", "forced")},
    steps=len(FORCED),
    depends_on="engine",
)
def sampling(lm, case):
    if case.options["ids"] == "drawn":
        ids, logits, streams = drawn(lm, case)
        again, _, _ = drawn(lm, case)
        return [{"sampled": ids, "again": again, "logits": logits, "stream": streams}]

    at = case.layers["early"]
    with lm.trace(case.prompts[0], steps=case.steps) as tracer:
        logits, streams = [].save(), [].save()
        for step in tracer.iter[: case.steps]:
            streams.append({at: lm.layers[at].stream})
            logits.append(lm.logits)
            lm.force(FORCED[step])
        ids = lm.generated(tracer.result, case.steps).save()
    return [{"sampled": ids, "again": ids, "logits": logits, "stream": streams}]


@sampling.reference
def _(model, case):
    at = case.layers["early"]
    held = FORCED if case.options["ids"] == "forced" else ()
    run = model.run(case.prompts[0], steps=case.steps, held=held)
    streams = [{at: step[at]} for step in run.stream]
    return [{"sampled": run.tokens, "again": run.tokens, "logits": run.logits, "stream": streams}]
