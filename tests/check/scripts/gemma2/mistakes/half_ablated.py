"""Half of a layer is ablated, for all tokens but the last."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        model.model.layers[2].output[:, :-1] = 0
        logits = model.output.logits[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        model.model.layers[2].output[1][:-1] = 0  # mistake: second-half
        logits = model.logits.clone().save()
    return {"logits": logits}
