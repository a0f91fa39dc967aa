"""Several prompts in one trace, of other lengths: each block sees its own prompt's rows."""

PROMPTS = ("The capital of France is", "One", "A small boat drifted slowly past the old bridge")


def trace(lm):
    with lm.trace() as tracer:
        found = [None] * len(PROMPTS)
        found = found.save()
        for index, prompt in enumerate(PROMPTS):
            with tracer.invoke(prompt):
                found[index] = {"hidden": lm.layers[2].stream, "logits": lm.logits}
    return {f"prompt {index}": values for index, values in enumerate(found)}
