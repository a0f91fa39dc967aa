"""Every layer's MLP output in a dict."""


def hf(model):
    mlp_cache = {}
    with model.trace("The quick brown fox jumps over"):
        for i, layer in enumerate(model.model.layers):
            mlp_cache[i] = layer.mlp.output[0].save()
    return {"mlp": mlp_cache}


def vllm(model):
    mlp_cache = {}  # mistake: unsaved
    with model.trace("The quick brown fox jumps over", temperature=0.0, max_tokens=1):
        for i, layer in enumerate(model.model.layers):
            mlp_cache[i] = layer.mlp.output.save()
    return {"mlp": mlp_cache}
