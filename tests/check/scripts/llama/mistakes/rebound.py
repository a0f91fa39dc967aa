"""The changed value is bound to a name and goes nowhere."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        model.model.layers[1].mlp.output[:] = 0
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        mlp = model.model.layers[1].mlp.output
        mlp = mlp * 0  # mistake: dropped
        logits = model.logits.clone().save()
    return {"logits": logits}
