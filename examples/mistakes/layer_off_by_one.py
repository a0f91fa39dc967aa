"""The layer after the one that was meant."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        mlp = model.model.layers[1].mlp.output.save()
    return {"mlp": mlp}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        mlp = model.model.layers[2].mlp.output.clone().save()  # mistake: mlp
    return {"mlp": mlp}
