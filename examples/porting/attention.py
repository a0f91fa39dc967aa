"""The attention output: one tensor, no tuple."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        value = model.model.layers[1].self_attn.output[0].save()  # moves
    return {"value": value}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        value = model.model.layers[1].self_attn.output.clone().save()  # moves
    return {"value": value}
