"""Scripts for `conformance check` by model: correct ones, and mistakes with a marked line."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

CAPITAL = "The capital of France is"
_MARY = "When Mary and John went to the store, John gave a drink to"
_FOX = "The quick brown fox jumps over"

ONE, TWO, H = "model.model.layers[1]", "model.model.layers[2]", "model.transformer.h"

#: The last token's logits on each side.
_LOGITS = "logits = model.lm_head.output[:, -1].save()", "logits = model.logits.clone().save()"

_VECTOR = "import torch\n\nVECTOR = torch.randn(256, generator=torch.Generator().manual_seed(3))\n"
_RAMP = """\
import torch


def vector(like):
    return torch.linspace(-1, 1, like.shape[-1]).to(like)
"""


def both(
    hf: str,
    vllm: str,
    gives: str | tuple[str, str] = "logits",
    *,
    top: str = "",
    prompt: str = CAPITAL,
    steps: int = 0,
) -> str:
    """Return a script with one trace on each side. `gives` are the names of the values that it
    returns, or each side's expression; if the only one is `logits`, both traces read the last
    token's. A generation takes `steps`.
    """
    if gives == "logits" and not steps:
        hf, vllm = (
            f"{dedent(own).strip()}\n{read}" for own, read in zip((hf, vllm), _LOGITS, strict=True)
        )
    returned = (gives, gives) if isinstance(gives, str) else gives
    openings = (
        f"generate(PROMPT, max_new_tokens={steps}) as tracer" if steps else "trace(PROMPT)",
        f"trace(PROMPT, temperature=0.0, max_tokens={steps or 1}){' as tracer' * bool(steps)}",
    )
    functions = [
        f"def {name}(model):\n    with model.{opening}:\n"
        f"{indent(dedent(block).strip(), ' ' * 8)}\n    return {_mapping(value)}\n"
        for name, opening, block, value in zip(
            ("hf", "vllm"), openings, (hf, vllm), returned, strict=True
        )
    ]
    return "\n\n".join([f"{top}\nPROMPT = {prompt!r}\n", *functions])


def read(name: str, hf: str, vllm: str, mistake: str = "") -> str:
    """Return a script that reads one value: an expression on each side."""
    marked = f"{name} = {vllm}.save()" + (f"  # mistake: {mistake}" if mistake else "")
    return both(f"{name} = {hf}.save()", marked, name)


def _mapping(names: str) -> str:
    """Return a dict of these names, or the expression itself."""
    if not all(name.isidentifier() for name in names.split()):
        return names
    return f"{{{', '.join(f'{name!r}: {name}' for name in names.split())}}}"


def changed(text: str, *lines: tuple[str, str]) -> str:
    """Return a script with parts of its lines replaced: a mistake in a correct script."""
    for before, after in lines:
        assert before in text, before
        text = text.replace(before, after, 1)
    return text


_ABLATE_HEAD = both(
    """
    z = model.model.layers[1].self_attn.o_proj.input
    z[:, :, HEAD * WIDTH : (HEAD + 1) * WIDTH] = 0
    attn_out = model.model.layers[1].self_attn.output[0].save()
    logits = model.lm_head.output[:, -1].save()
    """,
    """
    z = model.model.layers[1].self_attn.o_proj.input
    z[:, HEAD * WIDTH : (HEAD + 1) * WIDTH] = 0
    attn_out = model.model.layers[1].self_attn.output.clone().save()
    logits = model.logits.clone().save()
    """,
    "attn_out logits",
    top="HEAD, WIDTH = 1, 64\n",
    prompt=_MARY,
)

_CACHE_MLPS = """
def hf(model):
    mlp_cache = {}
    with model.trace("The quick brown fox jumps over"):
        for i, layer in enumerate(model.model.layers):
            mlp_cache[i] = layer.mlp.output[0].save()
    return {"mlp": mlp_cache}


def vllm(model):
    with model.trace("The quick brown fox jumps over", temperature=0.0, max_tokens=1):
        mlp_cache = {}.save()
        for i, layer in enumerate(model.model.layers):
            mlp_cache[i] = layer.mlp.output.clone()
    return {"mlp": mlp_cache}
"""

#: The logit lens on the last token after every layer, as nnsight's tutorial has it.
_LENS = """
import torch

PROMPT = "The Eiffel Tower is in the city of"


def hf(model):
    with model.trace(PROMPT):
        probs_layers = [].save()
        for layer in model.model.layers:
            layer_output = model.lm_head(model.model.norm(layer.output))
            probs_layers.append(torch.nn.functional.softmax(layer_output, dim=-1))
    probs = torch.cat(list(probs_layers))
    max_probs, tokens = probs.max(dim=-1)
    return {"max_probs": max_probs[:, -1], "tokens": tokens[:, -1], "last": probs[:, -1]}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        streams = []
        for layer in model.model.layers:
            streams.append((layer.output[0] + layer.output[1])[-1:].clone())
        weight = model.lm_head.weight
        probs_layers = [].save()
        for stream in streams:
            logits = torch.nn.functional.linear(model.model.norm(stream), weight)
            probs_layers.append(torch.nn.functional.softmax(logits, dim=-1))
    probs = torch.cat(list(probs_layers))
    max_probs, tokens = probs.max(dim=-1)
    return {"max_probs": max_probs, "tokens": tokens, "last": probs}
"""

#: One token's stream of a prompt patched into another one.
_PATCH_INVOKES = """
CLEAN = "After John and Mary went to the store, Mary gave a bottle of milk to"
CORRUPT = "After John and Mary went to the store, John gave a bottle of milk to"
LAYER, TOKEN = 2, -5


def hf(model):
    with model.trace() as tracer:
        barrier = tracer.barrier(2)
        with tracer.invoke(CLEAN):
            z_hs = model.model.layers[LAYER].output[:, TOKEN]
            barrier()
            clean_logits = model.lm_head.output[:, -1].save()
        with tracer.invoke(CORRUPT):
            barrier()
            model.model.layers[LAYER].output[:, TOKEN] = z_hs
            patched_logits = model.lm_head.output[:, -1].save()
    return {"clean": clean_logits, "patched": patched_logits}


def vllm(model):
    with model.trace(CLEAN, temperature=0.0, max_tokens=1):
        layer = model.model.layers[LAYER]
        z_hs = (layer.output[0] + layer.output[1])[TOKEN].clone().save()
        clean_logits = model.logits.clone().save()
    with model.trace(CORRUPT, temperature=0.0, max_tokens=1):
        model.model.layers[LAYER].output[0][TOKEN] = z_hs
        model.model.layers[LAYER].output[1][TOKEN] = 0
        patched_logits = model.logits.clone().save()
    return {"clean": clean_logits, "patched": patched_logits}
"""
_BARRIER = """
def vllm(model):
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        barrier = tracer.barrier(2)  # mistake: error, no edit
        with tracer.invoke(CLEAN):
            layer = model.model.layers[LAYER]
            z_hs = (layer.output[0] + layer.output[1])[TOKEN].clone()
            barrier()
            clean_logits = model.logits.clone().save()
        with tracer.invoke(CORRUPT):
            barrier()
            model.model.layers[LAYER].output[0][TOKEN] = z_hs
            model.model.layers[LAYER].output[1][TOKEN] = 0
            patched_logits = model.logits.clone().save()
    return {"clean": clean_logits, "patched": patched_logits}
"""

#: A probe's direction read at the last token of prompts of other lengths.
_PROBE_BATCH = """
import torch

PROMPTS = ["Paris is in France", "The sun rises in the west every morning", "Water is dry"]
PROBE = torch.linspace(-1, 1, 256)


def hf(model):
    with model.trace(PROMPTS):
        h = model.model.layers[3].output
        scores = (h[:, -1].float() @ PROBE).save()
    return {"scores": scores}


def vllm(model):
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        scores = [None] * len(PROMPTS)
        scores = scores.save()
        for i, prompt in enumerate(PROMPTS):
            with tracer.invoke(prompt):
                h = model.model.layers[3].output[0] + model.model.layers[3].output[1]
                scores[i] = h[-1].float() @ PROBE
    return {"scores": torch.stack(list(scores))}
"""

#: A direction added in every step of a generation, with a list of results.
_STEER_GENERATION = both(
    """
    hidden_states = [].save()
    tokens = [].save()
    for _ in tracer.iter[:4]:
        h = model.model.layers[LAYER].output
        h[:, -1] += ALPHA * STEER.to(h.dtype)
        hidden_states.append(model.model.layers[-1].output[0, -1].clone())
        tokens.append(model.lm_head.output[0, -1].argmax(dim=-1))
    """,
    """
    hidden_states = [].save()
    tokens = [].save()
    for _ in tracer.iter[:4]:
        h = model.model.layers[LAYER].output[0]
        h[-1] += ALPHA * STEER.to(h.dtype)
        last = model.model.layers[-1].output
        hidden_states.append((last[0] + last[1])[-1].clone())
        tokens.append(model.logits[-1].argmax(dim=-1))
    """,
    "hidden_states tokens",
    top="""\
import torch

LAYER, ALPHA = 2, 6.0
torch.manual_seed(1)
STEER = torch.randn(256) / 16
""",
    prompt="I think dogs are",
    steps=4,
)

#: The clean stream of the last token put into a corrupted run, layer by layer: `hf`.
_DONOR = """
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

"""
_HALF_DONOR = """
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
"""
#: The same by the invokes of one trace.
_CROSSING = """
def vllm(model):
    n_layers = len(model.model.layers)

    with model.trace(temperature=0.0, max_tokens=1) as tracer:  # mistake: crossing
        clean_hs = {}.save()
        with tracer.invoke(CLEAN):
            for i in range(n_layers):
                out = model.model.layers[i].output
                clean_hs[i] = (out[0][-1] + out[1][-1]).clone()
            clean = logit_diff(model.logits).save()
        with tracer.invoke(CORRUPTED):
            corrupted = logit_diff(model.logits).save()
        patched = {}.save()
        for i in LAYERS:
            with tracer.invoke(CORRUPTED):
                model.model.layers[i].output[0][-1] = clean_hs[i]
                model.model.layers[i].output[1][-1] = 0
                patched[i] = logit_diff(model.logits)

    return {"clean": clean, "corrupted": corrupted, "patched": patched}
"""

#: Two invokes of one trace.
_INVOKES = """
PROMPTS = ("The capital of France is", "A boat")


def hf(model):
    with model.trace() as tracer:
        with tracer.invoke(PROMPTS[0]):
            first = model.model.layers[1].mlp.output[:, -1].clone().save()
        with tracer.invoke(PROMPTS[1]):
            second = model.model.layers[1].mlp.output[:, -1].clone().save()
    return {"both": [first, second]}


def vllm(model):
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        with tracer.invoke(PROMPTS[0]):
            first = model.model.layers[1].mlp.output[-1].clone().save()
        with tracer.invoke(PROMPTS[1]):
            second = model.model.layers[1].mlp.output[-1].clone().save()
    return {"both": [first, second]}
"""

#: Patching with helpers, at several layers.
_PATCH_BY_HELPER = """
PROMPT = "The capital of France is"
DONOR = "The capital of Italy is"
LAYERS = (0, 2)


def stream(layer):
    return layer.output[0] + layer.output[1]


def hf(model):
    with model.trace(DONOR):
        donor = {i: model.model.layers[i].output[0, -1].clone() for i in LAYERS}.save()
    with model.trace(PROMPT):
        for i in LAYERS:
            model.model.layers[i].output[0, -1] = donor[i]
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(DONOR, temperature=0.0, max_tokens=1):
        donor = {i: stream(model.model.layers[i])[-1] for i in LAYERS}.save()
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        for i in LAYERS:
            model.model.layers[i].output[0][-1] = donor[i]
            model.model.layers[i].output[1][-1] = 0
        logits = model.logits.clone().save()
    return {"logits": logits}
"""
#: The patch goes to the first token instead of the last.
_PATCHED_FIRST_TOKEN = """
PROMPT = "The capital of France is"
DONOR = "A small boat drifted past the bridge"


def hf(model):
    with model.trace(DONOR):
        donor = model.model.layers[1].output[0, -1].clone().save()
    with model.trace(PROMPT):
        model.model.layers[1].output[0, -1] = donor
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(DONOR, temperature=0.0, max_tokens=1):
        layer = model.model.layers[1]
        donor = (layer.output[0] + layer.output[1])[-1].save()
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        layer = model.model.layers[1]
        layer.output[0][0] = donor  # mistake: other-tokens
        layer.output[1][0] = 0
        logits = model.logits.clone().save()
    return {"logits": logits}
"""

_ADAPTER_FLOAT32 = f"""
{_VECTOR}

def trace(lm):
    with lm.trace("The capital of France is"):
        lm.layers[2].stream = lm.layers[2].stream + 4.0 * VECTOR
        hidden = lm.layers[3].stream.save()
        logits = lm.logits.save()
    return {{"hidden": hidden, "logits": logits}}
"""

_ADAPTER_PARTS = """
def trace(lm, prompts):
    found = {}
    for number, prompt in enumerate(prompts):
        with lm.trace(prompt):
            lm.layers[0].attention.live[-1] *= 0.5
            mlp = lm.layers[2].mlp.output.save()
            lens = lm.lens(lm.layers[3].stream[-1:]).save()
        found[f"mlp {number}"] = mlp
        found[f"lens {number}"] = lens
    return found
"""

#: On the adapter a copy is changed and never assigned: on both sides nothing is written.
_ADAPTER_WITHOUT_EFFECT = """
PROMPT = "The capital of France is"


def trace(lm):
    with lm.trace(PROMPT):
        lm.layers[1].stream[:] = 0
        logits = lm.logits.save()
    return {"logits": logits}
"""

_STEER_ALL = both(
    """
    model.model.layers[1].output[:] += 0.5
    hidden = model.model.layers[2].output[:, -1].clone().save()
    logits = model.output.logits[:, -1].save()
    """,
    """
    model.model.layers[1].output[0][:] += 0.5
    layer = model.model.layers[2]
    hidden = (layer.output[0] + layer.output[1])[-1].save()
    logits = model.logits.clone().save()
    """,
    "hidden logits",
)
#: Of models whose layers return two tensors.
_DUAL = {"steer_all": _STEER_ALL}
_DUAL_MISTAKES = {
    "half_ablated": changed(
        both(
            "model.model.layers[2].output[:, :-1] = 0",
            "model.model.layers[2].output[1][:-1] = 0  # mistake: second-half",
        ),
        ("model.lm_head.output", "model.output.logits"),  # which Gemma 2 caps, as vLLM's are
    ),
    "half_read": read("hidden", f"{TWO}.output[0].clone()", f"{TWO}.output[0].clone()", "mlp"),
    "residual_read": read(
        "hidden", f"{TWO}.output[0, -1].clone()", f"{TWO}.output[1][-1].clone()", "residual"
    ),
}

#: Model → name → text.
CORRECT = {
    "gemma2": _DUAL,
    "gpt2": {
        "steer": both(
            """
            model.transformer.h[1].output[:] += 0.5
            after = model.transformer.h[2].output.clone().save()
            logits = model.lm_head.output[:, -1].save()
            """,
            """
            model.transformer.h[1].output[:] += 0.5
            after = model.transformer.h[2].output.clone().save()
            logits = model.logits.clone().save()
            """,
            "after logits",
        ),
    },
    "llama": {
        "ablate_head": _ABLATE_HEAD,
        "adapter_float32": _ADAPTER_FLOAT32,
        "adapter_parts": _ADAPTER_PARTS,
        "adapter_without_effect": _ADAPTER_WITHOUT_EFFECT,
        "cache_mlps": _CACHE_MLPS,
        "dict_numpy": both(
            """
            found = {i: model.model.layers[i].output[0].float().cpu() for i in range(4)}.save()
            """,
            """
            found = {}.save()
            for i in range(4):
                out = model.model.layers[i].output
                found[i] = (out[0] + out[1]).float().cpu()
            """,
            (
                '{"hidden": {i: v.detach().numpy() for i, v in found.items()}}',
                '{"hidden": {i: v.numpy() for i, v in found.items()}}',
            ),
        ),
        "heads": both(
            "heads = model.model.layers[1].self_attn.o_proj.input.clone().save()",
            "heads = model.model.layers[1].self_attn.o_proj.input.clone().save()",
            (
                '{"heads": {i: heads[0, :, i * 64 : (i + 1) * 64] for i in range(4)}}',
                '{"heads": {i: heads[:, i * 64 : (i + 1) * 64] for i in range(4)}}',
            ),
        ),
        "invokes": _INVOKES,
        "lens_over_layers": _LENS,
        "pair_replaced": both(
            "model.model.layers[1].output = model.model.layers[1].output + 0.25",
            """
            out = model.model.layers[1].output
            model.model.layers[1].output = (out[0] + 0.25, out[1])
            """,
        ),
        "patch_by_helper": _PATCH_BY_HELPER,
        "patch_invokes": _PATCH_INVOKES,
        "probe_batch": _PROBE_BATCH,
        "query": read(
            "query",
            f"{ONE}.self_attn.q_proj.output.clone()",
            f"{ONE}.self_attn.qkv_proj.output[0][:, :256].clone()",
        ),
        "steer_generation": _STEER_GENERATION,
        "steps_edited": both(
            """
            tokens = [].save()
            hidden = [].save()
            for _ in tracer.iter[:4]:
                model.model.layers[1].mlp.output[:, -1] *= 0.5
                hidden.append(model.model.layers[3].output[0, -1].clone())
                tokens.append(model.lm_head.output[0, -1].argmax().item())
            """,
            """
            tokens = [].save()
            hidden = [].save()
            for _ in tracer.iter[:4]:
                model.model.layers[1].mlp.output[-1] *= 0.5
                out = model.model.layers[3].output
                hidden.append((out[0] + out[1])[-1])
                tokens.append(model.logits[-1].argmax().item())
            """,
            "tokens hidden",
            steps=4,
        ),
    },
    "mixtral": _DUAL,
    "qwen3": _DUAL,
}
MISTAKES = {
    "gemma2": {
        **_DUAL_MISTAKES,
        "before_the_cap": changed(
            _STEER_ALL,
            ("model.output.logits", "model.lm_head.output"),
            ("model.logits.clone().save()", "model.logits.clone().save()  # mistake: capped"),
        ),
    },
    "gpt2": {
        "batch_axis": read(
            "hidden", f"{H}[1].output[0].clone()", f"{H}[1].output[0].clone()", "stream"
        ),
        "layer_input": read("hidden", f"{H}[2].input.clone()", f"{H}[1].input.clone()", "stream"),
        "patch_token": both(
            "model.transformer.h[1].output[0][:] = 0",
            "model.transformer.h[1].output[0][:] = 0  # mistake: partial",
        ),
    },
    "llama": {
        "ablate_head": changed(
            _ABLATE_HEAD,
            (
                "z[:, HEAD * WIDTH : (HEAD + 1) * WIDTH] = 0",
                "z[0, HEAD * WIDTH : (HEAD + 1) * WIDTH] = 0  # mistake: partial",
            ),
        ),
        "attention_first_of_tuple": read(
            "attention",
            f"{ONE}.self_attn.output[0]",
            f"{ONE}.self_attn.output[0].clone()",
            "attention",
        ),
        "cache_mlps": changed(
            _CACHE_MLPS,
            ("def vllm(model):\n", "def vllm(model):\n    mlp_cache = {}  # mistake: unsaved\n"),
            ("        mlp_cache = {}.save()\n", ""),
            ("output.clone()", "output.save()"),
        ),
        "crossing": _DONOR + _CROSSING,
        "dict_of_layers": read(
            "hidden",
            "{i: model.model.layers[i].output[0].clone() for i in (1, 3)}",
            "{i: model.model.layers[i].output[0].clone() for i in (1, 3)}",
            "mlp",
        ),
        "float32_written": both(
            """
            h = model.model.layers[2].output
            model.model.layers[2].output = h + (4.0 * VECTOR).to(h.dtype)
            hidden = model.model.layers[3].output.save()
            """,
            """
            o = model.model.layers[2].output
            model.model.layers[2].output = (o[0] + 4.0 * VECTOR, o[1])  # mistake: precision
            hidden = (model.model.layers[3].output[0] + model.model.layers[3].output[1]).save()
            """,
            "hidden",
            top=_VECTOR,
        ),
        "half_donor": _DONOR + _HALF_DONOR,
        "inputs_half": both(
            "before = model.model.layers[2].input.save()",
            """
            _, hidden, _ = model.model.layers[2].inputs[0]  # mistake: mlp
            before = hidden.clone().save()
            """,
            "before",
        ),
        "key_for_query": both(
            "key = model.model.layers[1].self_attn.k_proj.output.save()",
            """
            qkv = model.model.layers[1].self_attn.qkv_proj.output[0]
            key = qkv[:, 384:512].clone().save()  # mistake: self_attn.v_proj
            """,
            "key",
        ),
        "lens_over_layers": changed(
            _LENS,
            (
                "(layer.output[0] + layer.output[1])[-1:].clone())",
                "layer.output[0][-1:].clone())  # mistake: half",
            ),
        ),
        "mean_of_wrong_axis": read(
            "mean", f"{ONE}.mlp.output.mean(dim=1)", f"{ONE}.mlp.output.mean(dim=1)", "axis"
        ),
        "norm_pair": read(
            "normed", "model.model.norm.output", "model.model.norm.output[1].clone()", "stream"
        ),
        "numpy_half": both(
            "hidden = model.model.layers[0].output[0].float().cpu().save()",
            "hidden = model.model.layers[0].output[0].float().cpu().save()  # mistake: mlp",
            ('{"hidden": hidden.detach().numpy()}', '{"hidden": hidden.numpy()}'),
        ),
        "other_head": both(
            "head = model.model.layers[1].self_attn.o_proj.input[0, :, 64:128].save()",
            """
            o_proj = model.model.layers[1].self_attn.o_proj
            head = o_proj.input[:, 128:192].clone().save()  # mistake: columns
            """,
            "head",
        ),
        "other_sign": both(
            "model.model.layers[1].output[:] += vector(model.model.layers[1].output)",
            """
            layer = model.model.layers[1]
            layer.output[0][:] -= vector(layer.output[0])  # mistake: scaled
            """,
            top=_RAMP,
        ),
        "patch_invokes": _PATCH_INVOKES.partition("\ndef vllm")[0] + _BARRIER,
        "patched_first_token": _PATCHED_FIRST_TOKEN,
        "probabilities": both(
            "weights = model.model.layers[1].self_attn.output[1].save()",
            """
            found = model.model.layers[1].self_attn.output[1]  # mistake: probabilities, no edit
            weights = found.clone().save()
            """,
            "weights",
        ),
        "probe_batch": changed(
            _PROBE_BATCH,
            ("h[-1].float() @ PROBE", "(h.float() @ PROBE)[0]  # mistake: unknown"),
        ),
        "rebound": both(
            "model.model.layers[1].mlp.output[:] = 0",
            """
            mlp = model.model.layers[1].mlp.output
            mlp = mlp * 0  # mistake: dropped
            """,
        ),
        "replaced_and_kept": both(
            "model.model.layers[1].output[:] = model.model.layers[1].output * 2",
            """
            layer = model.model.layers[1]
            stream = layer.output[0] + layer.output[1]
            layer.output[0][:] = stream * 2  # mistake: first-half
            """,
        ),
        "scale_half": both(
            """
            model.model.layers[1].output[:] *= 2
            hidden = model.model.layers[2].output.save()
            """,
            """
            model.model.layers[1].output[0][:] *= 2  # mistake: first-half
            layer = model.model.layers[2]
            hidden = (layer.output[0] + layer.output[1]).save()
            """,
            "hidden",
        ),
        "steer_generation": changed(
            _STEER_GENERATION,
            (
                "h = model.model.layers[LAYER].output[0]",
                "h = model.model.layers[LAYER].output[0] + model.model.layers[LAYER].output[1]",
            ),
            (
                "h[-1] += ALPHA * STEER.to(h.dtype)",
                "h[-1] += ALPHA * STEER.to(h.dtype)  # mistake: dropped",
            ),
        ),
        "steer_other_layer": both(
            "model.model.layers[1].output[:] += vector(model.model.layers[1].output)",
            """
            layer = model.model.layers[2]
            layer.output[0][:] += vector(layer.output[0])  # mistake: other-layer
            """,
            top=_RAMP,
        ),
        "step_short": changed(
            both(
                """
                logits = [].save()
                for _ in tracer.iter[:4]:
                    logits.append(model.lm_head.output[:, -1].clone())
                """,
                """
                logits = [].save()
                for _ in tracer.iter[:3]:
                    logits.append(model.logits.clone())  # mistake: missing
                """,
                steps=4,
            ),
            ("max_tokens=4", "max_tokens=3"),
        ),
        "swapped_invokes": changed(
            _INVOKES.replace('{"both": [first, second]}', '{"first": first, "second": second}'),
            ("A boat", "The capital of Italy is"),
            (
                "invoke(PROMPTS[0]):\n            first = model.model.layers[1].mlp.output[-1]",
                "invoke(PROMPTS[1]):\n            first = model.model.layers[1].mlp.output[-1]",
            ),
            ("output[-1].clone().save()", "output[-1].clone().save()  # mistake: other-prompt"),
            (
                "invoke(PROMPTS[1]):\n            second = model.model.layers[1].mlp.output[-1]",
                "invoke(PROMPTS[0]):\n            second = model.model.layers[1].mlp.output[-1]",
            ),
        ),
        "tensor_for_tuple": both(
            "model.model.layers[1].output = model.model.layers[1].output * 0.5",
            """
            layer = model.model.layers[1]
            layer.output = (layer.output[0] + layer.output[1]) * 0.5  # mistake: one-for-two
            """,
        ),
        "token_before": both(
            "last = model.model.layers[2].output[0, -1].save()",
            """
            layer = model.model.layers[2]
            last = (layer.output[0] + layer.output[1])[-2].save()  # mistake: stream
            """,
            "last",
        ),
    },
    "mixtral": _DUAL_MISTAKES,
    "qwen3": _DUAL_MISTAKES,
}


def write(model: str, folder: Path) -> Path:
    """Write the scripts for a model into a folder as `bench/check_examples.py` takes them."""
    (folder / "mistakes").mkdir()
    for below, scripts in ((folder, CORRECT), (folder / "mistakes", MISTAKES)):
        for name, text in scripts[model].items():
            (below / f"{name}.py").write_text(text.lstrip())
    return folder
