"""A layer's first input is the positions there."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        before = model.model.layers[2].input.save()
    return {"before": before}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        before = model.model.layers[2].input.clone().save()  # mistake: positions
    return {"before": before}
