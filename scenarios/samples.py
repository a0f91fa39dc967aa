"""Samples: several drawn for one prompt in one trace, where a block runs once for each of them.

What each run saved is that sample's: logits and streams follow from the ids that it drew.
"""

from conformance import scenario

SEED = 7
PROMPT = "The lamps along the harbour were lit before the last ferry"


@scenario(
    layers={"early": "early"},
    prompts=(PROMPT, PROMPT),
    steps=4,
    tier=lambda _: "scheduling",
    depends_on="engine",
)
def samples(lm, case):
    at = case.layers["early"]
    several = len(case.prompts)
    with lm.trace(case.prompts[0], steps=case.steps, seed=SEED, samples=several) as tracer:
        ids, logits, streams = [].save(), [].save(), [].save()
        for _ in tracer.iter[: case.steps]:
            streams.append({at: lm.layers[at].stream})
            logits.append(lm.logits)
            ids.append(lm.token)
    runs = zip(ids, logits, streams, strict=True)
    return [{"sampled": drawn, "logits": all_, "stream": seen} for drawn, all_, seen in runs]


@samples.reference
def _(model, case):
    at = case.layers["early"]
    observed = []
    for index, prompt in enumerate(case.prompts):
        # The prompts are the same, so which of them goes on how is told by their places.
        held = model.forced[index] if model.forced else ()
        run = model.run(prompt, steps=case.steps, held=held)
        streams = [{at: step[at]} for step in run.stream]
        observed.append({"sampled": run.tokens, "logits": run.logits, "stream": streams})
    return observed
