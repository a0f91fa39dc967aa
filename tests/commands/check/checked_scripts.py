"""Scripts for `conformance check` by model: correct ones, and mistakes with a marked line."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

CAPITAL = "The capital of France is"

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


#: One token's stream of a prompt patched into another one.
_BARRIER = """
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


#: A donor that goes from one invoke of a trace to another.
_CROSSING = """
CLEAN = "The capital of France is"
CORRUPTED = "The capital of Italy is"


def hf(model):
    with model.trace(CLEAN):
        donor = model.model.layers[1].output[:, -1].clone().save()
    with model.trace(CORRUPTED):
        model.model.layers[1].output[:, -1] = donor
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(temperature=0.0, max_tokens=1) as tracer:  # mistake: crossing
        with tracer.invoke(CLEAN):
            out = model.model.layers[1].output
            donor = (out[0][-1] + out[1][-1]).clone()
        with tracer.invoke(CORRUPTED):
            model.model.layers[1].output[0][-1] = donor
            model.model.layers[1].output[1][-1] = 0
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
        "pair_replaced": both(
            "model.model.layers[1].output = model.model.layers[1].output + 0.25",
            """
            out = model.model.layers[1].output
            model.model.layers[1].output = (out[0] + 0.25, out[1])
            """,
        ),
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
        "crossing": _CROSSING,
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
        "mean_of_wrong_axis": read(
            "mean", f"{ONE}.mlp.output.mean(dim=1)", f"{ONE}.mlp.output.mean(dim=1)", "axis"
        ),
        "norm_pair": read(
            "normed", "model.model.norm.output", "model.model.norm.output[1].clone()", "stream"
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
        "patch_invokes": _BARRIER,
        "probabilities": both(
            "weights = model.model.layers[1].self_attn.output[1].save()",
            """
            found = model.model.layers[1].self_attn.output[1]  # mistake: probabilities, no edit
            weights = found.clone().save()
            """,
            "weights",
        ),
        "rebound": both(
            "model.model.layers[1].mlp.output[:] = 0",
            """
            mlp = model.model.layers[1].mlp.output
            mlp = mlp * 0  # mistake: dropped
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
