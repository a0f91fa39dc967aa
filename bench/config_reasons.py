"""Why nothing can see some keys of the tiny models' configs: what bench/config_keys.py excuses.

A reason names its changes, and its models by a condition on the config: that no
rotary type is the plain one excuses a model of the plain type alone. Every excused change is tried
nevertheless. Where it moves an observation, or asks for other weights, its reason is false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

REMOVED = "removed"

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """One key with another value, and what its top-level key then is."""

    key: str
    to: str
    top: str
    value: Any

    @property
    def name(self) -> str:
        return f"{self.key}={self.to}"


@dataclass(frozen=True)
class Tried:
    """A change beside the config that it was made to, and the config that transformers made of it,
    None where it took none.
    """

    change: Change
    before: Config
    after: Config | None


def always(_: Tried) -> bool:
    return True


@dataclass(frozen=True)
class Reason:
    """Why nothing sees a change, and on which models."""

    words: str
    where: Callable[[Tried], bool] = always


def derived(tried: Tried) -> bool:
    """transformers makes the same config with the change as without: other keys decide. A change
    that it refuses is seen, and needs no excuse.
    """
    return tried.after is None or tried.after == tried.before


def _rotary(config: Config) -> Iterator[Mapping[str, Any]]:
    """Its rotary parameters: one set, or one for each type of layer."""
    parameters = config.get("rope_parameters") or {}
    if "rope_theta" in parameters:
        yield parameters
    else:
        yield from parameters.values()


def _value(config: Config, key: str) -> Any:
    found: Any = config
    for name in key.split("."):
        found = found[name]
    return found


#: Rotary types that compute with the original length, if with any.
_WITHOUT_BOUND = {"default", "linear", "llama3"}


def _length_is_a_bound(tried: Tried) -> bool:
    sets = list(_rotary(tried.before))
    return bool(sets) and all(
        each["rope_type"] in _WITHOUT_BOUND
        or (each["rope_type"] == "yarn" and each.get("factor") is not None)
        for each in sets
    )


def _is_plain_rotary(tried: Tried) -> bool:
    return bool(_value(tried.before, tried.change.key) == "default")


def _rotary_holds_the_factor(tried: Tried) -> bool:
    sets = list(_rotary(tried.before))
    return bool(sets) and all("partial_rotary_factor" in each for each in sets)


def _is_not_falcon(tried: Tried) -> bool:
    # Asked for its weights, transformers' Falcon leaves sdpa and adds that one's mask of truth
    # values to the scores: every token sees every other.
    return tried.before.get("model_type") != "falcon"


def _chooses_among_all_experts(tried: Tried) -> bool:
    return tried.before.get("topk_method") == "greedy"


def _has_no_window(tried: Tried) -> bool:
    return tried.before.get("sliding_window") is None


def _windows_are_off(tried: Tried) -> bool:
    return tried.before.get("use_sliding_window") is False


#: Keys (or `key=value`, or a pattern of them) that nothing can see → why.
NOT_COMPUTED_WITH: Mapping[str, Reason] = {
    "architectures": Reason("a name"),
    "model_type": Reason("a name"),
    "transformers_version": Reason("a name"),
    "_name_or_path": Reason("a name"),
    "*token_id": Reason("ids of special tokens, which no prompt holds"),
    "id2label*": Reason("of classifiers"),
    "label2id*": Reason("of classifiers"),
    "problem_type": Reason("of classifiers"),
    "classifier_dropout": Reason("of classifiers"),
    "output_attentions": Reason("what transformers returns besides", _is_not_falcon),
    "output_hidden_states": Reason("what transformers returns besides"),
    "output_router_logits": Reason("what transformers returns besides"),
    "use_cache": Reason("whether keys and values are kept, not what they are"),
    "chunk_size_feed_forward": Reason("how a product is cut, not what it is"),
    "is_encoder_decoder": Reason("what the class is, not what it computes"),
    "is_decoder": Reason("what the class is, not what it computes"),
    "initializer_range": Reason("of fresh weights"),
    "init_std": Reason("of fresh weights"),
    "*dropout*": Reason("of training"),
    "*_pdrop": Reason("of training"),
    "layerdrop": Reason("of training"),
    "router_aux_loss_coef": Reason("of training"),
    "router_jitter_noise": Reason("of training"),
    "pretraining_tp": Reason("how a product is cut, where anything reads it at all"),
    "max_position_embeddings": Reason(
        "a bound on the length, with rotary positions that are not stretched by it",
        _length_is_a_bound,
    ),
    "*rope_type=removed": Reason("no type is the plain type", _is_plain_rotary),
    "partial_rotary_factor": Reason(
        "the rotary parameters hold it, too, and decide", _rotary_holds_the_factor
    ),
    "head_dim=None": Reason("width and heads give the same", derived),
    "num_key_value_heads=None": Reason("as many as heads, as here", derived),
    "use_sliding_window": Reason("there is no window to use", _has_no_window),
    "max_window_layers": Reason("read where use_sliding_window is on", _windows_are_off),
    "sliding_window=1": Reason("read where use_sliding_window is on", _windows_are_off),
}

EVERY_HEAD = "latent attention makes keys for every head; fewer are refused"

#: The same of one architecture; these go before those of all.
OF_ARCHITECTURE: Mapping[str, Mapping[str, Reason]] = {
    "bloom": {
        "slow_but_exact": Reason("another order of the same sums, which transformers leaves out")
    },
    "deepseek_v2": {
        "head_dim": Reason(
            "what transformers calls its rotary width; the three widths above decide"
        ),
        "num_key_value_heads=8": Reason(EVERY_HEAD),
        "qk_head_dim*": Reason("the sum of two others"),
        "norm_topk_prob": Reason(
            "transformers' definition leaves it out; off in what is published"
        ),
        "n_group": Reason(
            "read by the other way of choosing experts, which deepseek_v2 has",
            _chooses_among_all_experts,
        ),
        "topk_group": Reason(
            "read by the other way of choosing experts, which deepseek_v2 has",
            _chooses_among_all_experts,
        ),
    },
    "deepseek_v3": {
        "num_key_value_heads=8": Reason(EVERY_HEAD),
        "qk_head_dim": Reason("the sum of two others"),
        "num_nextn_predict_layers": Reason("layers that guess ahead; the checkpoint has none"),
        "topk_method": Reason("of vLLM alone, which knows no other with this router"),
        "scoring_func": Reason("of vLLM alone, which knows no other with this router"),
    },
    "falcon": {
        "num_kv_heads": Reason("of the newer decoder; the older has one or as many as heads"),
        "num_ln_in_parallel_attn": Reason("of the newer decoder"),
        "ffn_hidden_size=None": Reason(
            "four times the width, as here: vLLM takes no other", derived
        ),
    },
    "gemma": {"hidden_act=gelu": Reason("taken for the approximation that Gemma was trained with")},
    "gemma2": {
        "use_bidirectional_attention": Reason(
            "read by attention without a mask; its cap needs the one that has a mask"
        )
    },
    "gemma3_text": {
        "attn_logit_softcapping": Reason("of Gemma 2; transformers' definition leaves it out"),
        "_sliding_window_pattern": Reason("what layer_types says of each layer"),
    },
    "gpt2": {
        "summary_*": Reason("of classifiers"),
        "reorder_and_upcast_attn": Reason("a wider dtype inside attention, where float32 is none"),
    },
    "gpt_oss": {
        "hidden_act": Reason("its activation has no choice"),
        "swiglu_limit=14.0": Reason(
            "the row gpt_oss-clamp reaches it; vLLM's kernel knows 7 alone"
        ),
    },
    "mamba2": {
        "residual_in_fp32": Reason("a wider dtype of the stream, where float32 is none"),
        "time_step_rank": Reason("of Mamba 1"),
        "time_step_min": Reason("of fresh weights"),
        "time_step_max": Reason("of fresh weights"),
        "time_step_floor": Reason("of fresh weights"),
        "rescale_prenorm_residual": Reason("of fresh weights"),
        "chunk_size": Reason("how a scan is cut, not what it is"),
    },
    "opt": {
        "word_embed_proj_dim=None": Reason(
            "the width, as here: others have a projection besides", derived
        )
    },
    "phi3": {
        "*long_factor*": Reason("of longer prompts than the engines have room for"),
        "rope_parameters.original_max_position_embeddings": Reason(
            "the config's own decides", derived
        ),
    },
}


def matching(change: Change, table: Mapping[str, Reason]) -> str:
    """The key of a table of reasons that this change falls under, "" for none."""
    names = (change.key, change.name)
    return next((key for key in table if any(fnmatchcase(name, key) for name in names)), "")


def excuse(tried: Tried, table: Mapping[str, Reason]) -> str:
    """The key of the reason that excuses a change here, "" where it must be seen."""
    key = matching(tried.change, table)
    return key if key and table[key].where(tried) else ""
