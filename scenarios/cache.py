"""Cache: `tracer.cache` keeps the output of every layer, as the block's edit leaves it.

Two generated tokens, with one layer's stream doubled in the first step.
"""

from conformance import scenario


@scenario(layers={"at": "middle"}, steps=2, twin=True, depends_on="engine")
def cache(lm, case):
    at = case.layers["at"]
    with lm.trace(case.prompts[0], steps=case.steps) as tracer:
        kept = tracer.cache(modules=[layer.envoy for layer in lm.layers]).save()
        logits, chosen = [].save(), [].save()
        for step in tracer.iter[: case.steps]:
            if case.active and step == 0:
                lm.layers[at].stream = lm.layers[at].stream * 2
            logits.append(lm.logits)
            chosen.append(lm.token)
    streams = {index: layer.cached(kept) for index, layer in enumerate(lm.layers)}
    return [{"stream": streams, "logits": logits, "tokens": chosen}]


@cache.reference
def _(model, case):
    at = case.layers["at"]
    # Only the first step has more than one token.
    double = {at: lambda stream, _: stream * 2 if len(stream) > 1 else stream}
    run = model.run(case.prompts[0], edits=double if case.active else {}, steps=case.steps)
    return [{"stream": run.stream, "logits": run.logits, "tokens": run.tokens}]
