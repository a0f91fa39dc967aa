"""Drawing: ids drawn at a temperature, from the likeliest that together hold a share of it all.

Enough of them to tell by their likelihood whether both were heeded in every step: as many at the
usual temperature, the likeliest each time, or drawn from all, would be far too likely or unlikely.
"""

from conformance import scenario

SEED = 11


@scenario(
    options={"temperature": (0.5, 1.0), "top_p": (1.0, 0.7)},
    steps=48,
    tier=lambda _: "scheduling",
    depends_on="engine",
)
def drawing(lm, case):
    how = {name: case.options[name] for name in ("temperature", "top_p")}
    with lm.trace(case.prompts[0], steps=case.steps, seed=SEED, **how) as tracer:
        ids, logits = [].save(), [].save()
        for _ in tracer.iter[: case.steps]:
            logits.append(lm.logits)
            ids.append(lm.token)
    return [{"sampled": ids, "logits": logits}]


@drawing.reference
def _(model, case):
    run = model.run(case.prompts[0], steps=case.steps)
    return [{"sampled": run.tokens, "logits": run.logits}]
