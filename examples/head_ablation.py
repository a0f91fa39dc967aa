"""Ablation of one attention head: what it hands to the output projection is set to zero."""

PROMPT = "The capital of France is"
LAYER, HEAD, WIDTH = 1, 1, 64
COLUMNS = slice(HEAD * WIDTH, (HEAD + 1) * WIDTH)


def hf(model):
    with model.trace(PROMPT):
        model.model.layers[LAYER].self_attn.o_proj.input[:, :, COLUMNS] = 0
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        model.model.layers[LAYER].self_attn.o_proj.input[:, COLUMNS] = 0
        logits = model.logits.clone().save()
    return {"logits": logits}
