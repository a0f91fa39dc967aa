"""One head of the layer before is ablated."""

PROMPT = "The capital of France is"
COLUMNS = slice(64, 128)


def hf(model):
    with model.trace(PROMPT):
        model.model.layers[2].self_attn.o_proj.input[:, :, COLUMNS] = 0
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        model.model.layers[1].self_attn.o_proj.input[:, COLUMNS] = 0  # mistake: other-layer
        logits = model.logits.clone().save()
    return {"logits": logits}
