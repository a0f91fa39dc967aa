"""The layer before."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        hidden = model.transformer.h[2].input.clone().save()
    return {"hidden": hidden}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        hidden = model.transformer.h[1].input.clone().save()  # mistake: stream
    return {"hidden": hidden}
