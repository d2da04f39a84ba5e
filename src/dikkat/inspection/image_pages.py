"""Record models that read an image, or an image and a text, and locate all tokens in the image."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dikkat.inspection.call_kinds import find_kinds
from dikkat.inspection.calls import Call
from dikkat.inspection.generation import check_arguments
from dikkat.inspection.image_inputs import ImageInputs
from dikkat.inspection.images import grids_of
from dikkat.inspection.layer_selection import Layers
from dikkat.inspection.recording import record, recording
from dikkat.inspection.request import Inspection, Request
from dikkat.inspection.text_inputs import make_tokens
from dikkat.inspection.trace import Trace
from dikkat.scores import check_size


def locate_image(
    model: nn.Module, processor: Any, source: Any, layers: Layers | None, heads: int | Sequence[int] | None
) -> tuple[dict[str, Any], dict[str, Any], Layers | None]:
    """Return the model's inputs, the tokens and the recorded layers, for an image or a tuple (image, text)."""
    read = ImageInputs.read(model, processor, source)
    layers, random_state = _text_layers(model) if layers is None else layers, torch.get_rng_state()
    with torch.random.fork_rng(), torch.no_grad(), record(model, layers=layers, heads=heads, argmax=True) as trace:
        read.run(model)
    tokens = grids_of(trace, model, read.encode, read.inputs, read.image, random_state, _words_of(read))
    return {**read.inputs}, tokens, layers


def record_written_words(
    model: Any, processor: Any, source: Any, layers: Layers | None, heads: int | Sequence[int] | None,
    max_new_tokens: int, **options: Any,
) -> Trace:  # fmt: skip
    """Generate a text about an image, and return the weights of the queries that predicted its tokens, in float16.

    The query that predicts a token is at the position before it. In the trace, it has the position of the token.
    """
    check_size("max_new_tokens", max_new_tokens)
    if options.get("num_beams", getattr(getattr(model, "generation_config", None), "num_beams", None)) not in (None, 1):
        raise ValueError("num_beams: got several beams; expected 1, as each token needs one call of the model")
    check_arguments(model, options)
    read = ImageInputs.read(model, processor, source)
    layers = _text_layers(model) if layers is None else layers
    request = Request(weights=True, queries=[-1], heads=heads)
    random_state = torch.get_rng_state()
    with recording(model, request, layers, trace=_LastQueries()) as rows:
        output = read.run(model.generate, max_new_tokens=max_new_tokens, return_dict_in_generate=True, **options)
    trace, first_calls, count = _join_words(rows)
    words = make_tokens(processor.tokenizer, {"input_ids": output.sequences[:1]})
    prompt = words[:-count] or _words_of(read)
    tokens = grids_of(first_calls, model, read.encode, read.inputs, read.image, random_state, prompt)
    tokens.pop("image", None)  # a tower writes no words
    trace.set_tokens(tokens | {"self": [*tokens.get("self", prompt), *words[-count:]]}, 0)
    return trace


class _LastQueries(Trace):
    """A trace that keeps the weights of each call in float16, without the log-sum-exp."""

    def add(self, inspection: Inspection, call: Call) -> None:
        assert inspection.weights is not None
        super().add(replace(inspection, weights=inspection.weights.half(), lse=None), call)


def _join_words(rows: Trace) -> tuple[Trace, Trace, int]:
    """Return a record for each module that writes tokens, all modules' first calls, and the number of written tokens.

    A record has the weights of the query of each written token. Encoders and image towers write no tokens.
    """
    by_module, joined, first_calls, count = dict[Any, list[tuple[Call, Inspection]]](), Trace(), Trace(), 0
    for call, record_ in rows.calls():
        by_module.setdefault((call.name, call.kind), []).append((call, record_))
    for (name, kind), calls in by_module.items():
        first_calls.add(calls[0][1], calls[0][0])
        if kind not in ("self", "cross"):
            continue
        count = count or len(calls)
        if len(calls) != count:
            raise ValueError(f"model: got {len(calls)} calls of {name!r} for {count} tokens; expected one for each")
        last_queries = [0 if inspection.queries is None else int(inspection.queries[-1]) for _, inspection in calls]
        positions = [inspection.positions[0] + last + 1
                     for (_, inspection), last in zip(calls, last_queries, strict=True)]  # fmt: skip
        keys = calls[-1][1].sizes[2] if kind == "cross" else positions[-1] + 1
        weights = torch.cat([_widen(inspection, keys) for _, inspection in calls], -2)
        inspection = calls[-1][1]
        # A query does not attend to the token that it writes. So patterns such as "itself" are not defined: −1 for keys
        # of another sequence.
        written = Inspection(weights=weights, heads=inspection.heads, queries=torch.tensor(positions),
                             shape=tuple(weights.shape), positions=(0, -1))  # fmt: skip
        joined.add(written, calls[0][0])
    joined.withheld = "got only the queries of written tokens; expected dikkat.record(model, weights=True)"
    return joined, first_calls, count


def _widen(inspection: Inspection, keys: int) -> Tensor:
    """Pad the weights of a call with 0 to `keys` keys."""
    assert inspection.weights is not None
    before = max(0, inspection.positions[1])
    return F.pad(inspection.weights, (before, keys - before - inspection.weights.shape[-1]))


def _text_layers(model: Any) -> list[str] | None:
    """Return the modules whose weights a generating model returns; None for other models."""
    if not getattr(model, "can_generate", lambda: False)():
        return None
    names = {kind.root: None for kind in find_kinds(model)[0].values() if kind.root}
    return [*names] or None


def _words_of(read: ImageInputs) -> list[Any]:
    """Return the tokens of the text that the model read; [] without a text."""
    ids = read.inputs.get("decoder_input_ids", read.inputs.get("input_ids"))
    return [] if ids is None else make_tokens(read.processor.tokenizer, {"input_ids": ids})
