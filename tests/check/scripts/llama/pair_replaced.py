"""The pair that a layer returns is replaced as a whole."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        model.model.layers[1].output = model.model.layers[1].output + 0.25
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        out = model.model.layers[1].output
        model.model.layers[1].output = (out[0] + 0.25, out[1])
        logits = model.logits.clone().save()
    return {"logits": logits}
