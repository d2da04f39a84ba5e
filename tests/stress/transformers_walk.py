"""Every model that transformers lists, tiny by rule, with "dikkat" beside "eager": the table docs/transformers.tsv.

PYTHONPATH=src:tests python -m stress.transformers_walk rows.jsonl

Each model runs in a separate process, for at most four minutes of processor time. All models take about an hour on
one core.
"""

import argparse
import collections
import copy
import inspect
import json
import logging
import math
import os
import re
import resource
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

import dikkat
from dikkat import huggingface

PAGE, MARK = Path(__file__).parents[2] / "docs" / "transformers.md", "<!-- walk -->"
TABLE = PAGE.with_suffix(".tsv")
SECONDS = 240  # one model's, of processor time: what else runs is no reason that a model cannot be made
LARGEST = 110_000_000  # parameters of a model that rules made no smaller
LIMIT = 1e-3  # of a difference, as a part of the largest number; in float32
WIDE_LIMIT = 1e-8
BATCH, LENGTH, TARGETS, WORDS = 3, 11, 5, 99
REAL = torch.tensor([LENGTH, 7, 2])

# By names of settings, the first that fits; of integers alone. None leaves what was there.
SMALL: list[tuple[str, int | None]] = [
    (r"type_vocab_size|chunk_size_feed_forward|pretraining_tp|num_channels|in_channels|sampling_rate", None),
    (r"vocab_size(_per_layer_input)?$|^vocab_size|^n_words$", WORDS),
    (r"num_feat_extract_layers|num_conv", None),
    (r"(num_|n_).*experts_per_tok$|experts_per_token|moe_topk|moe_top_k|moe_k$|top_k_experts|^topk$|num_selects", 2),
    (r"mamba_n_heads|mamba_num_heads", 4),
    (r"mamba_d_head|mamba_head_dim", 32),
    (r"mamba_d_ssm", 128),
    (r"rotary_dim", 8),
    (r"full_attention_interval|attn_layer_period|layer_group_size|sliding_window_pattern", 2),
    (r"^(n_group|topk_group|attn_layer_offset)$", 1),
    (r"num_.*experts$|n_routed_experts|moe_num_experts|^num_experts", 4),
    (r"(key_value|kv)_heads$|key_heads$|num_kv_heads|num_global_key_value_heads|num_query_groups", 2),
    (r"attention_heads$|(num|n)_heads?$|value_heads$|num_heads$|query_heads$|index_n_heads|mamba_n_heads", 4),
    (r"qk_head_dim$", 32),
    (r"head_dim$|head_size$|^d_kv$|attention_key_size|(q|kv|o)_lora_rank$|query_pre_attn_scalar", 16),
    (r"(max_window|first_k_dense|n_dense|num_dense).*", 1),
    (r"num_nextn_predict_layers|num_kv_shared_layers|num_hash_layers", 0),
    (r"layers?$|^depth$|num_blocks$|decoder_layers|encoder_layers", 2),
    (r"intermediate_size|ffn_dim|^d_ff$|mlp_dim|n_inner|ffn_hidden|feed_forward|d_inner", 48),
    (r"hidden_size(_per_layer_input)?$|d_model$|n_embd$|embed_dim$|^dim$|hidden_dim$|embedding_(size|dim)$", 64),
    (r"model_dim|^emb_dim$|projection_dim|output_dim$|fusion_hidden_size|d_embed|out_dim$|proj_dim|_hidden_dim", 64),
    (r"sliding_window|attention_window|local_attention|attention_chunk_size", 4),
    (r"index_topk", 3),
    (r"max_source_positions", 20),
]  # fmt: skip
# Settings without which a model that has them does not run.
MISSING: dict[str, Any] = {
    "vocab_size": WORDS, "pad_token_id": 0, "head_dim": 16, "num_key_value_heads": 4, "num_experts_per_tok": 2,
    "attn_layer_indices": [1],
}  # fmt: skip
WIDTHS = re.compile(
    r"vocab_size|layers?$|^depth$|experts$|sliding_window|index_topk|max_source_positions|routed_experts"
)


def shrink(config: Any, plan: str = "small") -> Any:
    """The configuration, made anew with small numbers, and so are those in it."""
    unknown = {"model_type", "transformers_version", "architectures", "dtype", "stage_names"}
    unknown |= set() if plan == "narrow" else {"out_features", "out_indices"}
    given = {k: v for k, v in config.to_diff_dict().items() if k not in unknown}
    changed = {name: value for name, value in MISSING.items() if _of(config, name, 0) is None}
    lists, picked = ({}, []) if plan == "narrow" else _layers(config)
    patch = getattr(config, "patch_size", 8)
    patch = patch[0] if isinstance(patch, list | tuple) else patch
    side = 4 * patch if _is_int(patch) and patch >= 7 else 64
    special = 0
    for name, value in list(vars(config).items()):
        if name.startswith("_"):
            continue
        if isinstance(value, transformers.PreTrainedConfig):
            changed[name] = shrink(value, plan)
        elif name in lists:
            changed[name] = [value[i] for i in picked]
        elif name in ("num_hidden_layers", "num_layers") and lists:
            changed[name] = len(picked)
        elif name.endswith("image_size") and isinstance(value, list | tuple):
            changed[name] = [min(side, x) for x in value]
        elif name.endswith("image_size") and _is_int(value):
            changed[name] = min(side, value)
        elif re.search(r"_token_(id|index)$|_token$", name) and isinstance(value, list):
            changed[name] = [min(2, x) for x in value][:1]
        elif re.search(r"_token_(id|index)$|_token$", name) and _is_int(value) and value >= WORDS:
            special += 1
            changed[name] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}.get(name, WORDS - special)
        elif name.startswith("rope_") and isinstance(value, dict) and plan not in ("shallow", "headed"):
            changed[name] = _rope(value) | (SECTIONS if plan == "sectioned" else {})
        elif _is_int(value):
            wanted = _wanted(config, name, plan)
            if wanted is not None and value > wanted:
                changed[name] = wanted
    return type(config)(**given | changed)


def _layers(config: Any) -> tuple[dict[str, Any], list[int]]:
    """The lists that have an entry for each layer, and a few layers that have one of each kind."""
    layers = next((getattr(config, n) for n in ("num_hidden_layers", "num_layers") if hasattr(config, n)), 0)
    lists = {
        name: value for name, value in vars(config).items()
        if _is_int(layers) and layers > 1 and isinstance(value, list | tuple) and len(value) == layers
        and (name.endswith(("types", "type")) or all(not _is_int(x) or x in (0, 1) for x in value))
    }  # fmt: skip
    rows = list(zip(*lists.values(), strict=True))
    firsts = [rows.index(row) for row in dict.fromkeys(rows)][:4]
    return lists, sorted({*firsts, 0, 1})[: max(2, len(firsts))]


def _wanted(config: Any, name: str, plan: str) -> int | None:
    """What a plan makes of an integer, where it is larger."""
    small = next((small for rule, small in SMALL if re.search(rule, name)), None)
    if plan == "shallow" and not WIDTHS.search(name):
        return None
    if plan == "narrow" and re.search(r"layers?$|^depth$|num_blocks$", name):
        return None
    if plan == "paired" and small == 2 and re.search(r"key|kv", name):
        return 4
    if plan == "headed" and re.search(r"head_dim|head_size", name):
        return None
    heads = _of(config, "num_attention_heads", _of(config, "n_head"))
    if plan == "headed" and name in ("hidden_size", "d_model") and heads and _is_int(heads):
        return 4 * getattr(config, name) // heads
    return small


SECTIONS = {"mrope_section": [2, 3, 3], "partial_rotary_factor": 1.0}


def _rope(value: dict[str, Any]) -> dict[str, Any]:
    """Sections of a rotary embedding that fit 16 features."""
    value = copy.deepcopy(value)
    for name, each in value.items():
        if isinstance(each, dict):
            value[name] = _rope(each)
        if name == "mrope_section" and isinstance(each, list):
            value[name] = [2, 3, 3] if len(each) == 3 else [2] * 4
    return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def plans(kind: str) -> Iterator[tuple[str, Any]]:
    """Configurations of a kind, from the smallest by rule to its own defaults."""
    for plan in ("small", "paired", "sectioned", "narrow", "headed", "shallow", "default"):
        try:
            config = CONFIG_MAPPING[kind]()
            yield plan, config if plan == "default" else shrink(config, plan)
        except Exception as error:
            yield plan, error


HEADS = [
    ["MODEL_FOR_CAUSAL_LM_MAPPING", "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING", "MODEL_FOR_MULTIMODAL_LM_MAPPING"],
    ["MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING"],
]  # fmt: skip
OTHERS = [
    "MODEL_FOR_MASKED_LM_MAPPING",
    "MODEL_MAPPING",
    *sorted(n for n in dir(modeling_auto) if n.endswith("_MAPPING")),
]


def classes(kind: str) -> list[type]:
    """A kind's models: the language model, the encoder–decoder; else that of masked words, or what there is."""
    config, found = CONFIG_MAPPING[kind], []
    for group in HEADS:
        found += _first(config, group)
    return list(dict.fromkeys(found)) or _first(config, OTHERS)


def _first(config: type, group: list[str]) -> list[type]:
    for name in group:
        table = getattr(modeling_auto, name)
        if hasattr(table, "_model_mapping") and config in table:
            made = table[config]
            return [made[0] if isinstance(made, tuple) else made]
    return []


def made(cls: type, config: Any, attention: str) -> Any:
    """A model with random weights of which attention is not nearly uniform, the same for each attention."""
    config = copy.deepcopy(config)
    config._attn_implementation = attention
    torch.manual_seed(7)
    model = cls(config).eval()
    torch.manual_seed(8)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape)
            parameter.copy_(
                noise * 1.3 / math.sqrt(parameter.shape[-1]) if parameter.ndim > 1 else parameter + 0.1 * noise
            )
    return model


def _of(config: Any, name: str, default: Any = None) -> Any:
    """A setting; the default for one that each layer has of its own, too."""
    try:
        return getattr(config, name, default)
    except Exception:
        return default


def _setting(config: Any, *names: str, default: Any = None) -> Any:
    """A setting of the configuration, or of one in it."""
    for name in names:
        if _of(config, name) is not None:
            return _of(config, name)
    for each in vars(config).values():
        if isinstance(each, transformers.PreTrainedConfig):
            found = _setting(each, *names)
            if found is not None:
                return found
    return default


def inputs(model: Any) -> Iterator[dict[str, Tensor]]:
    """What the model may be given, by the names in its signature."""
    config, drawn = model.config, torch.Generator().manual_seed(1)
    takes = set(inspect.signature(model.forward).parameters)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=drawn)

    ids = torch.randint(5, 60, (BATCH, LENGTH), generator=drawn)
    ids[:, -1] = 2  # the end, by which some find the place to look at
    text: dict[str, Tensor] = {}
    if "input_ids" in takes:
        text["input_ids"] = ids
        if "attention_mask" in takes:
            text["attention_mask"] = torch.ones_like(ids)
        if "bbox" in takes:
            corner = torch.randint(1, 50, (BATCH, LENGTH, 2), generator=drawn)
            text["bbox"] = torch.cat([corner, corner + 7], -1)
    if "decoder_input_ids" in takes:
        text["decoder_input_ids"] = ids[:, :TARGETS]
    side = _setting(config, "image_size", "img_size", default=64)
    height, width = (side, side) if _is_int(side) else tuple(side)[:2] if isinstance(side, list | tuple) else (64, 64)
    channels = _setting(config, "num_channels", "in_channels", "in_chans", default=3)
    images = [
        numbers(BATCH, channels, height, width),
        numbers(BATCH, channels, 64, 64),
        numbers(BATCH, channels, 224, 224),
    ]
    frames = _setting(config, "num_frames", "frames", default=2)
    mels = _setting(
        config,
        "feature_projection_input_dim",
        "num_mel_bins",
        "input_feat_per_channel",
        "feature_size",
        "n_mels",
        default=80,
    )
    source = 2 * _setting(config, "max_source_positions", default=20)
    heard = [numbers(BATCH, mels, source), numbers(BATCH, source, mels), numbers(BATCH, 2 * source, mels)]
    waves = [
        numbers(BATCH, 4000),
        numbers(BATCH, 1, 4000),
        numbers(BATCH, _setting(config, "max_length", default=1024) or 1024, mels),
    ]
    more = {k: v for k, v in text.items() if k.startswith("decoder_")}
    if "pixel_values" in takes and "input_ids" in takes and "image_embeds" not in takes:
        for image in images:
            yield text | {"pixel_values": image}
    patch = _setting(config, "patch_size", default=14)
    patch = patch[0] if isinstance(patch, list | tuple) else patch
    grid = torch.tensor([[1, 4, 4]] * BATCH)
    cut = numbers(BATCH * 16, channels * patch**2 * _setting(config, "temporal_patch_size", default=1))
    if "grid_thw" in takes:
        for name in takes & {"hidden_states", "pixel_values"}:
            yield {name: cut, "grid_thw": grid}
    if "image_grid_thw" in takes and not text:
        yield {"pixel_values": cut, "image_grid_thw": grid}
    if text.keys() - more.keys():
        if "mm_token_type_ids" in takes:
            yield text | {"mm_token_type_ids": torch.zeros_like(ids)}
        yield text
        yield {k: v for k, v in text.items() if k != "attention_mask"}
    if "pixel_values" in takes:
        for image in images:
            yield more | {"pixel_values": image}
        for image in images[:2]:
            yield more | {"pixel_values": image[:, None].repeat(1, frames, 1, 1, 1)}
    if "pixel_values_videos" in takes:
        for image in images[:2]:
            yield {"pixel_values_videos": image[:, None].repeat(1, frames, 1, 1, 1)}
    for name in ("input_features", "audio_features", "input_values", "audio_values"):
        if name in takes:
            for each in heard + waves if "features" in name else waves + heard:
                yield more | {name: each}
                for mask in sorted(takes & {"input_features_mask", "attention_mask", "padding_mask"}):
                    yield more | {name: each, mask: torch.ones(BATCH, each.shape[-1], dtype=torch.long)}
    width = _setting(config, "hidden_size", "d_model", default=64)
    for name in ("inputs_embeds", "hidden_states", "inputs"):
        if name in takes and not text:
            yield more | {name: numbers(BATCH, LENGTH, width)}


def output(found: Any) -> Tensor:
    """The model's first tensor of numbers, logits where there are any."""
    for name in ("logits", "last_hidden_state", "logits_per_image", "prediction_logits"):
        if isinstance(getattr(found, name, None), Tensor):
            return getattr(found, name)
    values = found.values() if hasattr(found, "values") else found
    return next(v for v in values if isinstance(v, Tensor) and v.is_floating_point())


def padded(given: dict[str, Tensor], side: str) -> dict[str, Tensor]:
    place = torch.arange(LENGTH)
    mask = place < REAL[:, None] if side == "right" else place >= LENGTH - REAL[:, None]
    return given | {"attention_mask": mask.long(), "input_ids": given["input_ids"] * mask}


def forward(model: Any, given: dict[str, Tensor], side: str = "none") -> Tensor:
    """What the model makes of its inputs; 0 where nothing real stands."""
    given = given if side == "none" else padded(given, side)
    torch.manual_seed(5)
    with torch.no_grad():
        found = output(model(**given))
    if side != "none" and found.shape[:2] == (BATCH, LENGTH):
        found = found * given["attention_mask"].view(BATCH, LENGTH, *[1] * (found.ndim - 2))
    return found


def gradients(model: Any, given: dict[str, Tensor]) -> Tensor:
    torch.manual_seed(5)
    found = output(model(**given))
    loss = (found * torch.sin(torch.arange(found.numel(), dtype=found.dtype)).view(found.shape)).sum()
    learnt = [p for p in model.parameters() if p.requires_grad]
    each = torch.autograd.grad(loss, learnt, allow_unused=True)
    return torch.cat(
        [(g if g is not None else torch.zeros_like(p)).flatten() for g, p in zip(each, learnt, strict=True)]
    )


def generated(model: Any, given: dict[str, Tensor], side: str, cache: str | None) -> Tensor:
    given = given if side == "none" else padded(given, side)
    more = {"cache_implementation": cache} if cache else {}
    torch.manual_seed(5)
    found = model.generate(**given, max_new_tokens=6, min_new_tokens=6, do_sample=False, num_beams=1, pad_token_id=0,
                           output_logits=True, return_dict_in_generate=True, disable_compile=True, **more)  # fmt: skip
    return torch.stack(found.logits)


def weights(model: Any, given: dict[str, Tensor]) -> Tensor:
    """All weights that the model returns, one after another."""
    torch.manual_seed(5)
    with torch.no_grad():
        found = model(**given, output_attentions=True)
    parts = []
    for name in sorted(found.keys()):
        if "attentions" in name and isinstance(found[name], tuple | list):
            parts += [each.flatten() for each in found[name] if isinstance(each, Tensor)]
    if any((each < 0).any() for each in parts):
        raise ValueError("what it returns as attentions are no weights")
    return torch.cat([torch.tensor([float(len(parts))]), *parts])


def recorded(model: Any, given: dict[str, Tensor]) -> Tensor:
    """The same of `dikkat.attentions`, where the model is not the one of "eager" attention that says what is right."""
    if model.config._attn_implementation == "eager":
        return weights(model, given)
    torch.manual_seed(5)
    found = dikkat.attentions(model, **given)
    own, cross, encoder = tuple(found), found.cross_attentions, found.encoder_attentions
    parts = [each.flatten() for each in (*cross, *own, *encoder) if encoder] or [e.flatten() for e in (*own, *cross)]
    return torch.cat([torch.tensor([float(len(parts))]), *parts])


def checks(model: Any, given: dict[str, Tensor]) -> dict[str, Callable[[Any], Tensor]]:
    found: dict[str, Callable[[Any], Tensor]] = {"forward": lambda m: forward(m, given)}
    text = "input_ids" in given and "attention_mask" in given
    if text:
        found |= {side: lambda m, side=side: forward(m, given, side) for side in ("right", "left")}
    found["gradients"] = lambda m: gradients(m, given)
    found["weights"] = lambda m: weights(m, given)
    found["weights by dikkat.attentions"] = lambda m: recorded(m, given)
    if hasattr(model, "generate") and model.can_generate():
        start = {k: v for k, v in given.items() if not k.startswith("decoder_")}
        for cache in (None, "static"):
            for side in ("none", "left") if text else ("none",):
                name = f"generate {cache or 'dynamic'}" + (" left" if side == "left" else "")
                found[name] = lambda m, side=side, cache=cache: generated(m, start, side, cache)
    return found


def apart(right: Tensor, found: Tensor) -> float:
    """The largest difference, as a part of the largest number; infinite where shapes differ or numbers are missing."""
    if right.shape != found.shape:
        return math.inf
    scale = right[right.isfinite()].abs().max().item() if right.isfinite().any() else 1.0
    same = (right == found) | (right.isnan() & found.isnan())
    away = torch.where(same, 0.0, (right - found).abs()).max().item() if right.numel() else 0.0
    return (math.inf if math.isnan(away) else away) / max(scale, 1e-30)


def prepared(cls: type, kind: str) -> tuple[Any, Any, dict[str, Tensor], str]:
    """A configuration and inputs with which the eager model runs."""
    failures: list[str] = []
    for plan, config in plans(kind):
        if isinstance(config, Exception):
            failures.append(f"{plan}: {_said(config)}")
            continue
        try:
            with torch.device("meta"):
                held = copy.deepcopy(config)
                held._attn_implementation = "eager"
                count = sum(p.numel() for p in cls(held).parameters())
            if count > LARGEST:
                failures.append(f"{plan}: {count // 10**6} million parameters")
                continue
            model = made(cls, config, "eager")
            for given in inputs(model):
                try:
                    found = forward(model, given)
                except Exception as error:
                    failures.append(f"{plan}: {_said(error)}")
                    continue
                if found.isfinite().all():
                    return config, model, given, plan
                failures.append(f"{plan}: eager's output is not finite")
        except Exception as error:
            failures.append(f"{plan}: {_said(error)}")
    raise RuntimeError(
        next((f for f in failures if "ImportError" in f), failures[0] if failures else "no inputs known")
    )


def _said(error: BaseException) -> str:
    text = re.sub(r" from '[^']*'", "", " ".join(str(error).split()))  # a module says in which folder it lies
    return f"{type(error).__name__}: {text[:150]}"


def walked(cls: type, kind: str) -> dict[str, Any]:
    """One row: how the model came out."""
    row: dict[str, Any] = {"kind": kind, "class": cls.__name__}
    for _, config in plans(kind):
        try:
            with torch.device("meta"):
                config._attn_implementation = "dikkat"
                cls(config)
            break
        except Exception as error:
            refusal = _refused(error, "when it is made")
            if refusal["result"] == "refused":
                return row | refusal
    try:
        config, eager, given, plan = prepared(cls, kind)
    except Exception as error:
        return row | {"result": "could not be made", "reason": str(error)}
    row |= {"plan": plan, "inputs": sorted(given)}
    try:
        ours = made(cls, config, "dikkat")
    except Exception as error:
        return row | _refused(error, "when it is made")
    calls = []

    def counted(*args: Any, **named: Any) -> Any:
        calls.append(1)
        return huggingface._forward(*args, **named)

    transformers.AttentionInterface.register("dikkat", counted)
    try:
        row |= compared(cls, config, eager, ours, given)
    finally:
        dikkat.register_transformers()
    return row | ({"result": "asks for no attention"} if row["result"] == "equal" and not calls else {})


def compared(cls: type, config: Any, eager: Any, ours: Any, given: dict[str, Tensor]) -> dict[str, Any]:
    """What is equal, and what is not."""
    passed, skipped, like_sdpa, rounded, wrong = [], [], [], [], []
    for name, check in checks(eager, given).items():
        try:
            right = check(eager)
        except Exception as error:
            skipped.append(f"{name} ({_said(error)})")
            continue
        if name.startswith("weights") and len(right) == 1:  # none
            continue
        if name.startswith("weights") and re.search("^Granite.*SWA", cls.__name__):
            skipped.append(f"{name} (those of eager are before the sink)")
            continue
        try:
            found = check(ours)
        except Exception as error:
            if "by dikkat.attentions" in name and str(error).startswith("attentions: "):
                skipped.append(f"{name} ({_said(error)})")
                continue
            refusal = _refused(error, "when it runs")
            if refusal["result"] == "refused" and not passed:
                return refusal
            wrong.append(f"{name}: {_said(error)}")
            continue
        if (away := apart(right, found)) < LIMIT:
            passed.append(name)
        elif (
            "forward" in like_sdpa if name.startswith("weights") else _as_sdpa(cls, config, check, found)
        ):  # sdpa has none
            like_sdpa.append(name)
        elif "forward" in rounded if name.startswith("weights") else _is_rounding(cls, config, given, name):
            rounded.append(name)
        else:
            wrong.append(f"{name}: {away:.1e} away")
    told = {"passed": passed, "skipped": skipped}
    if wrong:
        return told | {"result": "WRONG", "reason": "; ".join(wrong)}
    if rounded:
        return told | {"result": "rounding", "reason": "in double precision alone: " + ", ".join(rounded)}
    if like_sdpa:
        return told | {"result": "as sdpa", "reason": "not as eager: " + ", ".join(like_sdpa)}
    return told | {"result": "equal", "reason": ""}


def _as_sdpa(cls: type, config: Any, check: Callable[[Any], Tensor], found: Tensor) -> bool:
    """Whether transformers' own two differ, and ours is with the other one."""
    try:
        return apart(check(made(cls, config, "sdpa")), found) < 5 * LIMIT
    except Exception:
        return False


def _is_rounding(cls: type, config: Any, given: dict[str, Tensor], name: str) -> bool:
    """Whether ours is with eager, or with sdpa, in double precision, where no layer magnifies rounding that far."""
    wide = {key: each.double() if each.is_floating_point() else each for key, each in given.items()}
    found = {}
    for attention in ("eager", "sdpa", "dikkat"):
        try:
            model = made(cls, config, attention).double()
            model.set_experts_implementation("eager")  # grouped products take no doubles
            found[attention] = checks(model, wide)[name](model)
        except Exception:
            continue
    ours = found.pop("dikkat", None)
    return ours is not None and any(apart(each, ours) < WIDE_LIMIT for each in found.values())


def _refused(error: BaseException, when: str) -> dict[str, Any]:
    text = " ".join(str(error).split())
    said = isinstance(error, ValueError) and "; expected" in text and "dikkat" in text
    return {"result": "refused" if said else "WRONG", "when": when, "reason": text if said else _said(error)}


def guarded(job: Callable[[], dict[str, Any]], seconds: int) -> dict[str, Any]:
    """What the job says, in a process of its own that may die or hang."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reads)
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            said = job()
        except BaseException as error:
            said = {"result": "could not be made", "reason": "".join(traceback.format_exception(error))[-300:]}
        with os.fdopen(writes, "w") as pipe:
            json.dump(said, pipe, default=sorted)
        os._exit(0)
    os.close(writes)
    parts, end = [], time.monotonic() + 5 * seconds  # a hang takes no processor time
    while select.select([reads], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(reads, 65536)
        if not part:
            break
        parts.append(part)
    else:
        os.kill(child, signal.SIGKILL)
    os.close(reads)
    os.waitpid(child, 0)
    try:
        return json.loads(b"".join(parts))
    except ValueError:
        return {"result": "could not be made", "reason": f"died, or took longer than {seconds:.0f} s"}


ORDER = {
    "equal": 'Equal to "eager" in all comparisons.',
    "as sdpa": 'Equal to "sdpa", which differs from "eager" for this model.',
    "rounding": 'Equal in double precision. In single precision, "sdpa" and dikkat differ from "eager" by rounding.',
    "refused": "dikkat raises an error that names the model or the reason.",
    "WRONG": "Different.",
    "asks for no attention": "The model ran, but no layer called attention with these inputs.",
    "could not be made": 'The test could not create a model that runs with "eager", so it compared nothing.',
}


def changes_of(row: dict[str, Any]) -> str:
    """Return the results of `stress.transformers_changes` for a row."""
    changes = row.get("changes", {})
    reasons = sorted({re.sub(r"^.*?: ", "", error).split("; expected")[0] for error in changes.get("errors", ())})
    parts = [f"{len(changes[name])} {name}" for name in ("equal", "DIFFERENT") if changes.get(name)]
    parts += [f"{len(changes['errors'])} errors: {', '.join(reasons)}"] if reasons else []
    return "; ".join(parts) or ("no effect on the output" if changes.get("no effect") else changes.get("reason", ""))


def write(rows: list[dict[str, Any]]) -> None:
    """Put the counts into the page, behind its mark, and the models into the file that the site's page takes in."""
    count = collections.Counter(row["result"] for row in rows)
    lines = ["| result | rows | |", "| --- | --- | --- |"]
    lines += [f"| {name} | {count[name]} | {said} |" for name, said in ORDER.items() if count[name]]
    models = ["model\tclass\tresult\tcompared, or the reason\tchanges"]
    for row in sorted(rows, key=lambda row: (row["kind"], row["class"])):
        reason = row["reason"] or ", ".join(row.get("passed", ()))
        if row["result"] == "refused":
            reason = f"{row['when']}: {reason.split('; expected')[0]}"
        texts = [" ".join(text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").split())
                 for text in (reason, changes_of(row))]  # fmt: skip
        models.append("\t".join((row["kind"], row["class"], row["result"], *texts)))
    TABLE.write_text("\n".join(models) + "\n", encoding="utf-8")
    lines += ["", "<!-- models -->"]
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text[: text.index(MARK) + len(MARK)] + "\n\n" + "\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="a file of rows, which grows; what it has is not walked again")
    parser.add_argument("--only", help="a pattern of kinds; the page is not written then")
    args = parser.parse_args()
    transformers.logging.set_verbosity(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dikkat.register_transformers()
    args.rows.touch()
    rows = [json.loads(line) for line in args.rows.read_text(encoding="utf-8").splitlines()]
    walked_before = {(row["kind"], row["class"]) for row in rows}
    with args.rows.open("a", encoding="utf-8") as kept:
        for kind in CONFIG_MAPPING_NAMES:
            if args.only and not re.fullmatch(args.only, kind):
                continue
            try:
                found = classes(kind)
            except ValueError as error:  # a name in transformers' list that is not there
                rows.append({"kind": kind, "class": "", "result": "could not be made", "reason": _said(error)})
                continue
            for cls in found:
                if (kind, cls.__name__) in walked_before:
                    continue
                row = guarded(lambda cls=cls, kind=kind: walked(cls, kind), SECONDS)
                rows.append({"kind": kind, "class": cls.__name__} | row)
                print(json.dumps(rows[-1]), file=kept, flush=True)
                print(kind, cls.__name__, row["result"], row["reason"], flush=True)
    if not args.only:
        write(rows)


if __name__ == "__main__":
    main()
