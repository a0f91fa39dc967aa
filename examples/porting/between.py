"""The stream between attention and MLP: the sum of what the second norm is given."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        layer = model.model.layers[2]
        value = (layer.input + layer.self_attn.output[0]).save()  # moves
    return {"value": value}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        layer = model.model.layers[2]
        value = sum(layer.post_attention_layernorm.inputs[0]).save()  # moves
    return {"value": value}
