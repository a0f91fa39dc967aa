"""A layer's input is the sum of two."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        before = model.model.layers[2].input.save()
    return {"before": before}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        _, hidden, _ = model.model.layers[2].inputs[0]  # mistake: mlp
        before = hidden.clone().save()
    return {"before": before}
