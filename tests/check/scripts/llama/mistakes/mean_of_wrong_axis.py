"""The mean over the width instead of the tokens."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        mean = model.model.layers[1].mlp.output.mean(dim=1).save()
    return {"mean": mean}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        mean = model.model.layers[1].mlp.output.mean(dim=1).save()  # mistake: axis
    return {"mean": mean}
