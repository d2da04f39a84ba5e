"""The kinds of a model's calls: self-attention, an encoder's self-attention, cross attention, or another."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import nn

from dikkat.inspection.layer_selection import is_within, uncompiled_name

# The key of attention over two sequences at once, of which transformers returns each part separately.
_PARTS = "parts"


class Kind(NamedTuple):
    """The kind of a call in a module.

    Attributes:
        name: "self", "encoder" or "cross"; "" for calls whose weights the model does not return.
        root: The entry of the model's table that contains the module. The model returns the last call in an entry.
    """

    name: str
    root: str | None = None


def find_kinds(model: nn.Module) -> tuple[dict[str, Kind], bool]:
    """Return the kind of a call by the module's name, and whether all weights that the model returns are known.

    The class of a Hugging Face model lists the modules whose weights `output_attentions=True` returns. For other models
    there are no kinds here; the recorder compares the sequences of queries and keys.
    """
    get_base_model: Any = getattr(model, "get_base_model", None)  # of peft
    inner = model if get_base_model is None else get_base_model()
    table = _read_table(inner)
    if table is None or not table[0]:
        return {}, table is None
    prefix, kinds = _find_name(model, inner) or "", table[0]
    known = {f"{prefix}.{name}".strip("."): kind for name, kind in kinds.items()}
    if prefix:
        known = {name: kind._replace(root=kind.root and f"{prefix}.{kind.root}") for name, kind in known.items()}
    return {uncompiled_name(name): known.get(name, Kind("")) for name, _ in model.named_modules()}, table[1]


def _read_table(model: Any) -> tuple[dict[str, Kind], bool] | None:
    """Return the kinds by transformers' table of returned weights; None if the model has no table."""
    capturing = sys.modules.get("transformers.utils.output_capturing")
    if capturing is None or not hasattr(model, "get_encoder"):
        return None
    entries_by_owner: dict[str, list[tuple[str, str]]] = {}  # (module, key)
    for owner, name, key in _entries(capturing, model, "", "", []):
        entries_by_owner.setdefault(owner, []).append((name, key))
    if not entries_by_owner:
        return None
    names = [name for name, _ in model.named_modules()]
    returning_owner = _returning_owner(model, list(entries_by_owner))
    encoder = (_find_name(model, model.get_encoder()) or None) if model.config.is_encoder_decoder else None
    kinds: dict[str, Kind] = {}
    for owner, entries in entries_by_owner.items():
        for root, key in entries:
            in_encoder = encoder is not None and is_within(root, encoder)
            kind = "encoder" if in_encoder else "cross" if key.startswith("cross") else "self"
            if encoder is not None or owner == returning_owner:
                kinds |= {name: Kind(kind, uncompiled_name(root)) for name in names if is_within(name, root)}
    is_complete = encoder is not None or returning_owner is not None or bool(capturing._CAN_RECORD_REGISTRY.get(model))
    if len(entries_by_owner) > 1 and encoder is None and model.main_input_name != "input_ids":  # images, as in BLIP
        is_complete = False
    if any(key == _PARTS for entries in entries_by_owner.values() for _, key in entries) or (
        returning_owner is None and _returns_both(model, entries_by_owner)
    ):
        is_complete = False
    return kinds, is_complete


def _entries(
    capturing: Any, module: nn.Module, name: str, owner: str, specs: list[tuple[str, Any]]
) -> Iterator[tuple[str, str, str]]:
    """Yield (model, module, key) for each module that transformers' table of a model's outputs lists for weights."""
    if hasattr(module, "get_encoder"):  # a model, possibly inside another, with its own table
        owner, specs = name, []
        for key, listed in capturing._CAN_RECORD_REGISTRY.get(module).items():
            if key.endswith("attentions"):
                specs += [(key, spec) for spec in (listed if isinstance(listed, list) else [listed])]
    matches = []
    for key, spec in specs:
        base = spec if isinstance(spec, type) else getattr(spec, "target_class", None)
        suffix = spec if isinstance(spec, str) else getattr(spec, "class_name", None)
        within = getattr(spec, "layer_name", None)
        fits = (base is not None and isinstance(module, base)) or (suffix is not None and f".{name}".endswith(suffix))
        if fits and (within is None or f".{within.strip('.')}." in f".{name}."):
            matches.append((key, getattr(spec, "index", 1)))
    if matches:
        yield owner, name, matches[0][0] if matches[-1][1] < 2 or len(matches) == 1 else _PARTS
    for child_name, child in module.named_children():
        yield from _entries(capturing, child, f"{name}.{child_name}".lstrip("."), owner, specs)


def _returning_owner(model: Any, owners: list[str]) -> str | None:
    """Return the name of the submodel whose weights the model returns; None if none or unknown."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    inner = [
        _find_name(model, module) for module in (decoder, getattr(model, "base_model", None)) if module is not None
    ]
    if "" in owners:
        return ""
    if _returns_both(model, owners):
        return None
    for name in inner:
        inside = [owner for owner in owners if name and is_within(owner, name)]
        if inside:
            return name if name in owners else inside[0] if len(inside) == 1 else None
    return owners[0] if "" in inner and len(owners) == 1 else None


def _returns_both(model: Any, owners: Iterable[str]) -> bool:
    """Return whether separate encoder and decoder (as in audio models) both have weights that the model may return."""
    names = [_find_name(model, get()) for get in (model.get_encoder, getattr(model, "get_decoder", model.get_encoder))]
    are_separate = names[0] != names[1] and not model.config.is_encoder_decoder
    return are_separate and all(name and any(is_within(owner, name) for owner in owners) for name in names)


def _find_name(model: nn.Module, module: nn.Module) -> str | None:
    return next((name for name, candidate in model.named_modules() if candidate is module), None)
