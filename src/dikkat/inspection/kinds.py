"""The kinds of a model's calls: its own attention, its encoder's, from decoder to encoder, or another."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from torch import nn

from dikkat.inspection.layer_selection import is_within, uncompiled_name

# Of what transformers takes apart.
_PARTS = "parts"


class Kind(NamedTuple):
    """The kind of a call in a module.

    Attributes:
        name: "self", "encoder" or "cross"; "" for what a model does not return.
        root: The entry of the model's table that the module is in; of several calls in one it returns the last.
    """

    name: str
    root: str | None = None


def kinds_of(model: nn.Module) -> tuple[dict[str, Kind], bool]:
    """By a module's name, what a call in it is; and whether the model says which weights it returns.

    What `output_attentions=True` returns of one of Hugging Face's models is written in its class, module by module.
    Returns no kinds for other models, whose calls are told apart by what they look at.
    """
    base: Any = getattr(model, "get_base_model", None)  # of peft's
    inner = model if base is None else base()
    tabled = _tabled(inner)
    if tabled is None or not tabled[0]:
        return {}, tabled is None
    prefix, kinds = _name_in(model, inner) or "", tabled[0]
    known = {f"{prefix}.{name}".strip("."): kind for name, kind in kinds.items()}
    if prefix:
        known = {name: kind._replace(root=kind.root and f"{prefix}.{kind.root}") for name, kind in known.items()}
    return {uncompiled_name(name): known.get(name, Kind("")) for name, _ in model.named_modules()}, tabled[1]


def _tabled(model: Any) -> tuple[dict[str, Kind], bool] | None:
    """The kinds by transformers' table of what a model returns; None where there is none for this model."""
    capturing = sys.modules.get("transformers.utils.output_capturing")
    if capturing is None or not hasattr(model, "get_encoder"):
        return None
    found: dict[str, list[tuple[str, str]]] = {}  # by the model that returns them: modules, and under which name
    for owner, name, key in _entries(capturing, model, "", "", []):
        found.setdefault(owner, []).append((name, key))
    if not found:
        return None
    names = [name for name, _ in model.named_modules()]
    own = _returning(model, list(found))
    encoder = (_name_in(model, model.get_encoder()) or None) if model.config.is_encoder_decoder else None
    kinds: dict[str, Kind] = {}
    for owner, entries in found.items():
        for root, key in entries:
            of_encoder = encoder is not None and is_within(root, encoder)
            kind = "encoder" if of_encoder else "cross" if key.startswith("cross") else "self"
            if encoder is not None or owner == own:
                kinds |= {name: Kind(kind, uncompiled_name(root)) for name in names if is_within(name, root)}
    says = encoder is not None or own is not None or bool(capturing._CAN_RECORD_REGISTRY.get(model))
    if len(found) > 1 and encoder is None and model.main_input_name != "input_ids":  # those of images, in BLIP
        says = False
    if any(key == _PARTS for entries in found.values() for _, key in entries) or (
        own is None and _of_both(model, found)
    ):
        says = False
    return kinds, says


def _entries(
    capturing: Any, module: nn.Module, name: str, owner: str, specs: list[tuple[str, Any]]
) -> Iterator[tuple[str, str, str]]:
    """The modules that are in a table of attentions: for each the model whose table it is, the module, the entry."""
    if hasattr(module, "get_encoder"):  # a model, which may be within another: it has a table of its own
        owner, specs = name, []
        for key, listed in capturing._CAN_RECORD_REGISTRY.get(module).items():
            if key.endswith("attentions"):
                specs += [(key, each) for each in (listed if isinstance(listed, list) else [listed])]
    fitting = []
    for key, spec in specs:
        kind = spec if isinstance(spec, type) else getattr(spec, "target_class", None)
        suffix = spec if isinstance(spec, str) else getattr(spec, "class_name", None)
        within = getattr(spec, "layer_name", None)
        fits = (kind is not None and isinstance(module, kind)) or (suffix is not None and f".{name}".endswith(suffix))
        if fits and (within is None or f".{within.strip('.')}." in f".{name}."):
            fitting.append((key, getattr(spec, "index", 1)))
    if fitting:  # of attention over two sequences at once, each one's part is returned by itself
        yield owner, name, fitting[0][0] if fitting[-1][1] < 2 or len(fitting) == 1 else _PARTS
    for child, each in module.named_children():
        yield from _entries(capturing, each, f"{name}.{child}".lstrip("."), owner, specs)


def _returning(model: Any, owners: list[str]) -> str | None:
    """Which of the models within a model it returns the weights of; None for none, or where that is not known."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    inner = [_name_in(model, each) for each in (decoder, getattr(model, "base_model", None)) if each is not None]
    if "" in owners:
        return ""
    if _of_both(model, owners):
        return None
    for name in inner:
        inside = [each for each in owners if name and is_within(each, name)]
        if inside:
            return name if name in owners else inside[0] if len(inside) == 1 else None
    return owners[0] if "" in inner and len(owners) == 1 else None


def _of_both(model: Any, owners: Iterable[str]) -> bool:
    """Whether a model of sounds, say, has weights in its encoder and in its decoder, and returns those of either."""
    sides = [_name_in(model, side()) for side in (model.get_encoder, getattr(model, "get_decoder", model.get_encoder))]
    apart = sides[0] != sides[1] and not model.config.is_encoder_decoder
    return apart and all(each and any(is_within(owner, each) for owner in owners) for each in sides)


def _name_in(model: nn.Module, module: nn.Module) -> str | None:
    return next((name for name, each in model.named_modules() if each is module), None)
