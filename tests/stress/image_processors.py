"""Every image processor of transformers that needs no download: is the changed patch the drawn patch?

PYTHONPATH=src:tests python -m stress.image_processors [MODEL TYPE ...]

A white square moves over a black image, through the real processor, into a small random model. The tokens whose input
changes are compared with the cells that `dikkat.show.attention` draws at the white pixels (`white_squares`). Each model
runs in a separate process. The table has a row for each model type: right, a named error, wrong, or the reason why the
model or the processor cannot be made here.
"""

import argparse
import collections
import importlib
import inspect
import json
import logging
import multiprocessing
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

from stress import transformers_walk as walk
from white_squares import check_squares

HEADS = ("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING", "MODEL_FOR_MULTIMODAL_LM_MAPPING", "MODEL_FOR_VISION_2_SEQ_MAPPING",
         "MODEL_MAPPING", "MODEL_FOR_OBJECT_DETECTION_MAPPING", "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING",
         "MODEL_FOR_IMAGE_SEGMENTATION_MAPPING", "MODEL_FOR_DEPTH_ESTIMATION_MAPPING")  # fmt: skip
WORDS = ["<pad>", "<s>", "</s>", "<unk>", "user", ":", "what", "is", "on", "the", "table", "?"]
IMAGE_TOKENS = {
    "image_token": "<image>", "video_token": "<video>", "boi_token": "<boi>", "eoi_token": "<eoi>",
    "audio_token": "<audio>", "boa_token": "<boa>", "eoa_token": "<eoa>", "vision_bos_token": "<vs>",
    "vision_eos_token": "<ve>", "fake_image_token": "<fake>", "global_image_token": "<global-img>",
    "end_of_utterance_token": "<eou>", "start_image_token": "<img>", "end_image_token": "</img>",
    "context_image_token": "<ctx>", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]",
    "image_token_id": "<image>", "image_soft_token": "<soft>", "start_of_image": "<soi>", "end_of_image": "<eoim>",
    "image_wrapper_token": "<wrap>", "eol_token": "<eol>", "image_boundary_token": "<bnd>", "eof_token": "<eof>",
    "image_start_token": "<ist>", "image_end_token_": "<ien>", "grid_bos_token": "<gb>", "grid_eos_token": "<ge>",
    "cls_token": "<s>", "sep_token": "</s>",
}  # fmt: skip
MORE = ["<|image|>", "<|begin_of_image|>", "<|end_of_image|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>",
        "<|video_pad|>", "<image_placeholder>", "<begin_of_image>", "<end_of_image>", "<fake_token_around_image>",
        "[IMG]", "<|image_start|>", "<|image_end|>", "<IMG_CONTEXT>", "<image_soft_token>", "<start_of_image>",
        "<end_of_utterance>", "<|im_start|>", "<|im_end|>", "<|IMAGE_PLACEHOLDER|>",
        "<|IMAGE_START|>", "<|IMAGE_END|>",
        "<IMG_START>", "<IMG_END>", "|SPEAKER|", "|NEWLINE|", "<0x04>", "<0x0A>", "\n\n",
        *(f"<row_{r}_col_{c}>" for r in range(1, 8) for c in range(1, 8))]  # fmt: skip
TEXT = "user : what is"
SMALL_SIDE = 64
PLANS = ("small", "sectioned", "headed")
LARGE = ("swin", "hiera", "depth_anything", "donut-swin", "owlvit")  # also with their default sizes
SECONDS = 60  # of a model type


def tokenizer(cls: Any) -> Any:
    """A tokenizer of words that knows the special tokens of many processors, and all in the source of this one."""
    named = re.findall(r"""["'](<[^"'\s<>]+>|\[[A-Z_]+\])["']""", Path(inspect.getfile(cls)).read_text())
    more = [*MORE, *named]
    vocabulary = list(dict.fromkeys([*WORDS, *IMAGE_TOKENS.values(), *more]))
    made = Tokenizer(models.WordLevel({word: k for k, word in enumerate(vocabulary)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(list(dict.fromkeys([*WORDS[:4], *IMAGE_TOKENS.values(), *more])))
    names = {name: token for name, token in IMAGE_TOKENS.items() if not name.endswith("_id")}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
        model_max_length=100_000, extra_special_tokens=names,
    )  # fmt: skip


def find_class(name: str) -> Any:
    """A processor's class, by its name in transformers' tables."""
    cls = getattr(transformers, name, None)
    if cls is not None and not type(cls).__name__.startswith("Dummy"):
        return cls
    for module in Path(transformers.__file__).parent.glob("models/*/*process*.py"):
        if re.search(rf"^class {name}\b", module.read_text(), re.MULTILINE):
            return getattr(importlib.import_module(f"transformers.models.{module.parent.name}.{module.stem}"), name)
    raise LookupError(name)


def fit_size(processor: Any, side: int, patch: int, merge: int) -> None:
    """Make a processor's image as large as the model's."""
    unit = patch * merge
    for name in ("size", "crop_size", "max_image_size", "pad_size"):
        size = getattr(processor, name, None)
        if size is None:
            continue
        new = {}
        for key in dict(size):
            value = dict(size)[key]
            if value is None:
                continue
            if hasattr(processor, "min_pixels") or (key.endswith("_edge") and value > 2500) or "pixels" in key:
                value = unit * unit * (4 if key in ("shortest_edge", "min_pixels") else 36)
            elif key == "longest_edge" and name == "size" and hasattr(processor, "max_image_size"):
                value = 2 * side
            else:
                value = side
            new[key] = value
        setattr(processor, name, type(size)(**new) if not isinstance(size, dict) else new)
    for name, value in (("min_pixels", 4 * unit**2), ("max_pixels", 36 * unit**2), ("patch_size", patch),
                        ("merge_size", merge), ("max_patches", 4), ("min_patches", 1), ("image_size", side),
                        ("max_num_patches", 64)):  # fmt: skip
        old = getattr(processor, name, None)
        if isinstance(old, int):
            setattr(processor, name, value)
        elif old is not None and name == "patch_size":
            setattr(processor, name, {"height": patch, "width": patch})
    if hasattr(processor, "image_grid_pinpoints"):
        processor.image_grid_pinpoints = [[side, 2 * side], [2 * side, side], [2 * side, 2 * side], [side, 3 * side]]
    if hasattr(processor, "max_image_tiles"):
        processor.max_image_tiles = 4


def first(config: Any, *names: str) -> Any:
    """The first setting of a configuration or its vision configuration with one of these names."""
    inner = [getattr(config, name, None) for name in ("vision_config", "vision_tower_config", "vit_config", "encoder")]
    for part in [*filter(None, inner), config]:
        for name in names:
            value = part.get(name) if isinstance(part, dict) else getattr(part, name, None)
            if value is not None:
                return value
    return None


def build(kind: str, plan: str) -> tuple[Any, Any, str | None]:
    """A small model of a type, its processor, and the text if it reads one."""
    names = IMAGE_PROCESSOR_MAPPING_NAMES[kind]
    name = names.get("pil") if isinstance(names, dict) else names
    if name is None:
        raise LookupError("the processor needs torchvision")
    image_processor = find_class(name)()
    config = CONFIG_MAPPING[kind]()
    config = config if plan == "default" else walk.shrink(config, plan)
    for part in (getattr(config, "text_config", None), getattr(config, "vision_config", None)):
        if hasattr(part, "projection_size"):
            part.projection_size = part.hidden_size
    if hasattr(config, "vision_feature_layers"):
        config.vision_feature_layers = [-1]
    if hasattr(getattr(config, "vision_config", None), "intermediate_layers_indices"):
        config.vision_config.intermediate_layers_indices = [0]
    table = next((t for t in (getattr(modeling_auto, h, {}) for h in HEADS) if type(config) in t), None)
    if table is None:
        raise LookupError("no model class")
    cls = table[type(config)]
    cls = cls[0] if isinstance(cls, tuple) else cls
    side, patch = first(config, "image_size", "img_size"), first(config, "patch_size")
    side, patch = (value[0] if isinstance(value, list | tuple) else value for value in (side, patch))
    merge = first(config, "spatial_merge_size", "merge_size") or 1
    fit_size(image_processor, side or SMALL_SIDE, patch or 16, merge if isinstance(merge, int) else 1)
    processor_name = PROCESSOR_MAPPING_NAMES.get(kind)
    processor, text = image_processor, None
    if processor_name is not None:
        processor_class = find_class(processor_name)
        words = tokenizer(processor_class)
        processor = make_processor(processor_class, image_processor, words, side or SMALL_SIDE, patch, config)
        text = TEXT
        set_tokens(config, processor, words)
    torch.manual_seed(7)
    config._attn_implementation = "sdpa"
    try:
        model = cls(config).eval()
    except ValueError as error:
        if "sdpa" not in str(error).lower() and "scaled_dot" not in str(error):
            raise
        config._attn_implementation = "eager"
        model = cls(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.2)
    if text is not None and "input_ids" not in inspect_names(model):
        text = None if "decoder_input_ids" not in inspect_names(model) else text
    return model, processor, text


def inspect_names(model: Any) -> set[str]:
    """The arguments of a model."""
    return set(inspect.signature(model.forward).parameters)


def make_processor(cls: Any, image_processor: Any, words: Any, side: int, patch: Any, config: Any) -> Any:
    """A processor without its checks of classes, which need torchvision for videos."""
    transformers.ProcessorMixin.check_argument_for_proper_class = lambda *_: object
    given: dict[str, Any] = {}
    count = (side // patch) ** 2 if patch else 16
    if hasattr(config, "downsample_ratio") or hasattr(config, "downsample_factor"):
        count //= 4
    if hasattr(config, "mm_tokens_per_image"):
        config.mm_tokens_per_image = count = 4
    if cls.__name__.startswith("Owl"):
        words.model_max_length = 16
    scale = first(config, "scale_factor") or getattr(config, "scale_factor", 1) or 1
    options = {"image_processor": image_processor, "tokenizer": words, "patch_size": patch, "num_image_tokens": count,
               "image_seq_len": max(1, count // scale**2), "image_seq_length": count,
               "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1,
               "num_query_tokens": 4, "spatial_merge_size": 2}  # fmt: skip
    image_processor.image_seq_length = count
    for name, parameter in inspect.signature(cls.__init__).parameters.items():
        if name in options and options[name] is not None:
            given[name] = options[name]
        elif parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            given[name] = None
    given.pop("self")
    for name in ("video_processor", "feature_extractor"):
        if name in inspect.signature(cls.__init__).parameters:
            given[name] = None
    return cls(**given)


def set_tokens(config: Any, processor: Any, words: Any) -> None:
    """Set the tokens of images in the configuration to those of the processor."""
    token = getattr(processor, "image_token", "<image>")
    token = getattr(token, "content", token)
    number = getattr(processor, "image_token_id", None) or words.convert_tokens_to_ids(token)
    for name in ("image_token_id", "image_token_index", "img_context_token_id", "image_patch_id"):
        if getattr(config, name, None) is not None:
            setattr(config, name, number)
    for name in vars(config):
        known = getattr(processor, name, None)
        if re.search(r"token_id$", name) and isinstance(known, int):
            setattr(config, name, known)
    if hasattr(config, "image_grid_pinpoints"):
        config.image_grid_pinpoints = processor.image_processor.image_grid_pinpoints
    for part in (config, getattr(config, "text_config", None)):
        if part is not None and getattr(part, "vocab_size", None):
            part.vocab_size = max(part.vocab_size, len(words) + 8)


def walk_kind(kind: str) -> dict[str, Any]:
    """The row of a model type."""
    row: dict[str, Any] = {"type": kind, "result": "not made", "why": ""}
    for plan in [*PLANS, *(["default"] if kind in LARGE else [])]:
        try:
            model, processor, text = build(kind, plan)
        except Exception as error:
            row["why"] = row["why"] or f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
            continue
        row |= {"processor": type(processor).__name__, "model": type(model).__name__}
        try:
            report = check_squares(model, processor, text, squares=3)
        except Exception as error:
            message = " ".join(str(error).split())
            is_named = isinstance(error, ValueError) and re.match(r"(image|text|model|record|tokens)\b.*: ", message)
            row |= {"result": "named error" if is_named else "not run", "why": message[:260]}
            if row["result"] == "not run":
                continue
            return row
        result = "wrong" if report["faults"] else "right" if report["cells"] else "untested"
        why = "; ".join(report["faults"][:2]) or str(report["parts"])[:120]
        row |= {"result": result, "why": why, "cells": report["cells"]}
        return row
    return row


def main() -> None:
    """Walk all types, and print the table and the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--rows", type=Path, help="a file of JSON lines for the rows")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    counts = collections.Counter[str]()
    context = multiprocessing.get_context("fork")
    with context.Pool(1, maxtasksperchild=1) as pool:
        for kind in options.kinds or sorted(IMAGE_PROCESSOR_MAPPING_NAMES):
            try:
                row = pool.apply_async(walk_kind, (kind,)).get(timeout=SECONDS)
            except multiprocessing.TimeoutError:
                row = {"type": kind, "result": "not made", "why": "takes too long"}
            counts[row["result"]] += 1
            cells = [str(row.get(name, "")) for name in ("type", "processor", "model", "result", "cells", "why")]
            print(f"| {' | '.join(cells)} |", flush=True)
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    print(dict(counts), file=sys.stderr)


if __name__ == "__main__":
    main()
