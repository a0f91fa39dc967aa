"""Chunked prefill: a prompt longer than a step holds is refused in words, or every row of it
is there.
"""

from conformance import scenario

PROMPT = (
    "The river rose through the night and by the morning the lower meadows lay under water, so "
    "the farmers drove their cattle up the narrow road to the old stone barn on the hill"
)


@scenario(
    prompts=(PROMPT,),
    settings=lambda _: {"step_tokens": 16},
    tier=lambda _: "scheduling",
    depends_on="engine",
)
def chunked(lm, case):
    with lm.trace(case.prompts[0]):
        streams = {index: layer.stream for index, layer in enumerate(lm.layers)}
        streams = streams.save()
        logits = lm.logits.save()
    return [{"stream": streams, "logits": logits}]


@chunked.reference
def _(model, case):
    run = model.run(case.prompts[0])
    return [{"stream": run.stream, "logits": run.logits}]
