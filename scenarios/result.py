"""Result: the ids that `tracer.result` gives at the end are those that were generated.

One more is generated than is compared: nothing follows from a last id, so it may be another.
"""

from conformance import scenario


@scenario(steps=5, depends_on="engine", numerics=True)
def result(lm, case):
    with lm.trace(case.prompts[0], steps=case.steps) as tracer:
        logits, chosen = [].save(), [].save()
        for _ in tracer.iter[: case.steps]:
            logits.append(lm.logits)
            chosen.append(lm.token)
        ids = lm.generated(tracer.result, case.steps)[:-1].save()
    return [{"logits": logits, "tokens": chosen, "result": ids}]


@result.reference
def _(model, case):
    run = model.run(case.prompts[0], steps=case.steps)
    return [{"logits": run.logits, "tokens": run.tokens, "result": run.tokens[:-1]}]
