"""The clean stream of the last token put into a corrupted run, layer by layer."""

CLEAN = "The capital of France is"
CORRUPTED = "The capital of Italy is"
ANSWER, OTHER = 42, 77
LAYERS = (0, 3)


def logit_diff(logits):
    return logits[0, ANSWER] - logits[0, OTHER]


def hf(model):
    n_layers = len(model.model.layers)

    with model.trace(CLEAN):
        clean_hs = {}.save()
        for i in range(n_layers):
            clean_hs[i] = model.model.layers[i].output[:, -1].clone()
        clean = logit_diff(model.lm_head.output[:, -1]).save()

    with model.trace(CORRUPTED):
        corrupted = logit_diff(model.lm_head.output[:, -1]).save()

    patched = {}
    for i in LAYERS:
        with model.trace(CORRUPTED):
            model.model.layers[i].output[:, -1] = clean_hs[i]
            diff = logit_diff(model.lm_head.output[:, -1]).save()
        patched[i] = diff

    return {"clean": clean, "corrupted": corrupted, "patched": patched}


def vllm(model):
    n_layers = len(model.model.layers)

    with model.trace(CLEAN, temperature=0.0, max_tokens=1):
        clean_hs = {}.save()
        for i in range(n_layers):
            clean_hs[i] = model.model.layers[i].output[0][-1].clone()  # mistake: half
        clean = logit_diff(model.logits).save()

    with model.trace(CORRUPTED, temperature=0.0, max_tokens=1):
        corrupted = logit_diff(model.logits).save()

    patched = {}
    for i in LAYERS:
        with model.trace(CORRUPTED, temperature=0.0, max_tokens=1):
            model.model.layers[i].output[0][-1] = clean_hs[i]
            diff = logit_diff(model.logits).save()
        patched[i] = diff

    return {"clean": clean, "corrupted": corrupted, "patched": patched}
