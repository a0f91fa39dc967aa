"""The prompts of two invokes are exchanged."""

PROMPTS = ("The capital of France is", "The capital of Italy is")


def hf(model):
    with model.trace() as tracer:
        with tracer.invoke(PROMPTS[0]):
            first = model.model.layers[1].mlp.output[:, -1].clone().save()
        with tracer.invoke(PROMPTS[1]):
            second = model.model.layers[1].mlp.output[:, -1].clone().save()
    return {"first": first, "second": second}


def vllm(model):
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        with tracer.invoke(PROMPTS[1]):
            first = model.model.layers[1].mlp.output[-1].clone().save()  # mistake: other-prompt
        with tracer.invoke(PROMPTS[0]):
            second = model.model.layers[1].mlp.output[-1].clone().save()
    return {"first": first, "second": second}
