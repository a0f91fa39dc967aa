"""A function that takes a prompt is called for each one: `conformance check … --prompt TEXT`."""


def trace(lm, prompt):
    with lm.trace(prompt):
        attention = lm.layers[1].attention.output.save()
        mlp = lm.layers[1].mlp.output.save()
        logits = lm.logits.save()
    return {"attention": attention, "mlp": mlp, "logits": logits}
