"""What is read before the stop is not saved."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT) as tracer:
        hidden = model.model.layers[1].mlp.output.save()
        tracer.stop()
    return {"hidden": hidden}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1) as tracer:
        hidden = model.model.layers[1].mlp.output.clone()  # mistake: unsaved
        tracer.stop()
    return {"hidden": hidden}
