"""Record models that read images, or images and a text, and locate all tokens in the images."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from dikkat.inspection.call_kinds import find_kinds
from dikkat.inspection.calls import Call
from dikkat.inspection.generation import check_arguments
from dikkat.inspection.image_inputs import ImageInputs, check_images
from dikkat.inspection.images import find_tokens
from dikkat.inspection.layer_selection import Layers
from dikkat.inspection.recording import RowTrace, recording
from dikkat.inspection.request import Inspection, Request
from dikkat.inspection.text_inputs import make_tokens
from dikkat.inspection.trace import Trace
from dikkat.scores import check_size
from dikkat.show.positions import TokenList, tokens_of

Heads = int | Sequence[int] | None
_SMALLEST = 2**-24  # the smallest weight in float16 above 0


@torch.inference_mode(mode=False)  # gradients measure the positions of tokens
def locate_images(
    model: nn.Module, processor: Any, source: Any, layers: Layers | None, heads: Heads
) -> tuple[dict[str, Any], Any, Layers | None]:
    """Return the model's inputs, the tokens and the recorded layers.

    Args:
        model: The model.
        processor: Its processor.
        source: An image, (image, text) or ([image, ...], text), or a list of images. A list is a batch: the tokens are
            a list with the tokens of each image.
        layers: The selected layers; None for all, or those of the language model.
        heads: The selected heads.
    """
    layers = _text_layers(model) if layers is None else layers
    if isinstance(source, list):
        located = [locate_images(model, processor, image, layers, heads)[:2] for image in check_images(source)]
        return _join_batch([arguments for arguments, _ in located]), [tokens for _, tokens in located], layers
    inputs, random_state = ImageInputs.read(model, processor, source), torch.get_rng_state()
    request = Request(argmax=True, heads=heads)
    with torch.random.fork_rng(), torch.no_grad(), recording(model, request, layers) as trace:
        inputs.run(model)
    return {**inputs.arguments}, find_tokens(trace, inputs, random_state, _words_of(inputs)), layers


def _join_batch(arguments: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Join the arguments for single images to those of a batch."""
    for name, tensor in arguments[0].items():
        shapes = [tuple(entry[name].shape) for entry in arguments]
        if {*shapes} != {tensor.shape} or len(tensor) != 1:
            sizes = ", ".join(map(str, dict.fromkeys(shapes)))
            raise ValueError(f"image: got {name} of shape {sizes} from the processor; expected one row of one size for "
                             "each image of a batch. Call attention once for each image")  # fmt: skip
    return {name: torch.cat([entry[name] for entry in arguments]) for name in arguments[0]}


@torch.inference_mode(mode=False)
def record_written_words(
    model: Any, processor: Any, source: Any, layers: Layers | None, heads: Heads, *,
    max_new_tokens: int, neutral: str | None = None, **options: Any,
) -> Trace:  # fmt: skip
    """Generate a text about images, and return the weights of the queries that predicted its tokens, in float16.

    The query that predicts a token is at the position before it. In the trace, it has the position of the token.
    `neutral` is a prompt by whose weights the weights of the image are divided.
    """
    check_size("max_new_tokens", max_new_tokens)
    check_arguments(model, options, has_beams=False)
    inputs = ImageInputs.read(model, processor, source)
    neutral_inputs = None if neutral is None else _read_neutral(inputs, neutral)
    layers = _text_layers(model) if layers is None else layers
    request, rows = Request(weights=True, queries=[-1], heads=heads), _WordRows(max_new_tokens)
    random_state = torch.get_rng_state()
    with recording(model, request, layers, trace=rows):
        output = inputs.run(model.generate, max_new_tokens=max_new_tokens, return_dict_in_generate=True, **options)
    trace, count = rows.joined()
    words = make_tokens(processor.tokenizer, {"input_ids": output.sequences[:1]})
    prompt = words[:-count] or _words_of(inputs)
    tokens = find_tokens(rows, inputs, random_state, prompt)
    tokens.pop("image", None)  # a tower writes no words
    tokens = tokens_of(tokens | {"self": [*tokens.get("self", prompt), *words[-count:]]})
    trace.set_tokens(tokens, 0)
    if neutral is not None and neutral_inputs is not None:
        _divide(trace, tokens, neutral_inputs, request, layers)
        trace.neutral = neutral
    return trace


class _WordRows(RowTrace):
    """The first call of each module without its weights, and the weights of each call's last query in float16."""

    def __init__(self, most_words: int) -> None:
        super().__init__()
        self._most_words = most_words
        self._weights = dict[str, Tensor]()  # (B, H, words, keys) by module
        self._queries = dict[str, list[int]]()
        self._is_cross = dict[str, bool]()

    def add(self, record: Inspection, call: Call) -> None:
        """Add the last query of a call, at the position of the token that it predicts."""
        assert record.weights is not None
        assert record.queries is not None
        (first, first_key), row = record.positions, record.weights[..., 0, :]
        if call.name not in self._weights:
            super().add(replace(record, weights=None, lse=None, hidden=None), call)
            most_keys = row.shape[-1] if first_key < 0 else max(0, first_key) + row.shape[-1] + self._most_words
            self._weights[call.name] = torch.zeros(*row.shape[:-1], self._most_words, most_keys, dtype=torch.float16)
            self._queries[call.name] = []
            self._is_cross[call.name] = first_key < 0
        self._add_row(call.name, row, first + int(record.queries[-1]) + 1, first_key)

    def add_row(self, name: str, row: Tensor) -> None:
        """Add the weights (B, H, m) of the next query of a module."""
        position = self._queries[name][-1] + 1
        self._add_row(name, row, position, 0 if self._is_cross[name] else position - row.shape[-1])

    def _add_row(self, name: str, row: Tensor, position: int, first_key: int) -> None:
        queries, weights, start = self._queries[name], self._weights[name], max(0, first_key)
        if len(queries) == self._most_words:
            raise ValueError(f"model: got more than {self._most_words} calls of {name!r}; expected one for each token")
        count = min(row.shape[-1], weights.shape[-1] - start)  # a static cache has more keys
        weights[..., len(queries), start : start + count] = row[..., :count]
        queries.append(position)

    def joined(self) -> tuple[Trace, int]:
        """Return a trace with a record for each module that writes tokens, and the number of written tokens.

        Encoders and image towers write no tokens.
        """
        joined, count = Trace(), 0
        for call, first in self.calls():
            if call.kind not in ("self", "cross"):
                continue
            queries = self._queries[call.name]
            count = count or len(queries)
            if len(queries) != count:
                raise ValueError(
                    f"model: got {len(queries)} calls of {call.name!r} for {count} tokens; expected one for each"
                )
            keys = first.sizes[2] if call.kind == "cross" else queries[-1] + 1
            weights = self._weights.pop(call.name)[..., :count, :keys]
            # A query does not attend to the token that it writes. So patterns such as "itself" are not defined: −1 for
            # keys of another sequence.
            joined.add(Inspection(weights=weights, heads=first.heads, queries=torch.tensor(queries),
                                  shape=tuple(weights.shape), positions=(0, -1)), call)  # fmt: skip
        if not count:
            raise ValueError("layers: got modules that write no tokens; expected layers of the language model")
        joined.withheld = "got only the queries of written tokens; expected dikkat.record(model, weights=True)"
        return joined, count


def _read_neutral(inputs: ImageInputs, neutral: Any) -> ImageInputs:
    """Return the inputs of a neutral prompt for the same images."""
    if not isinstance(neutral, str) or inputs.prompt is None:
        source = "an image" if inputs.prompt is None else "(image, text)"
        raise TypeError(f"neutral: got {neutral!r:.60} for {source}; expected a text such as 'Describe the image.' for "
                        "(image, text)")  # fmt: skip
    if not neutral.strip():
        raise ValueError("neutral: got an empty text; expected a text such as 'Describe the image.'")
    return ImageInputs.read(inputs.model, inputs.processor, ([*inputs.images], neutral))


def _divide(
    trace: Trace, tokens: dict[str, TokenList], neutral: ImageInputs, request: Request, layers: Layers | None
) -> None:
    """Divide the weights of image tokens by those of the last query of a neutral prompt, scaled to a sum of 1."""
    random_state = torch.get_rng_state()
    with torch.random.fork_rng(), recording(neutral.model, request, layers) as neutral_trace:
        neutral.run(neutral.model.generate, max_new_tokens=1, num_beams=1)  # some models omit the prompt's last token
    neutral_records = {call.name: record for call, record in neutral_trace.calls()}
    neutral_tokens = find_tokens(neutral_trace, neutral, random_state, _words_of(neutral))
    keys, neutral_keys = _image_positions(tokens), _image_positions(tokens_of(neutral_tokens))
    for kind, positions in keys.items():
        if len(positions) != len(neutral_keys[kind]):
            raise ValueError(f"neutral: got {len(neutral_keys[kind])} image tokens; expected {len(positions)}, as in "
                             "the text")  # fmt: skip
    trace.keep(lambda call: len(keys.get("encoder" if call.kind == "cross" else "self", ())) > 0)
    for index, (call, record) in enumerate([*trace.calls()]):
        kind = "encoder" if call.kind == "cross" else "self"
        divisor = neutral_records[call.name].weights
        assert record.weights is not None
        assert divisor is not None
        shares = record.weights[..., keys[kind]].float() / divisor[..., neutral_keys[kind]].clamp(min=_SMALLEST)
        shares /= shares.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        weights = torch.zeros_like(record.weights).index_copy_(-1, keys[kind], shares.half())
        trace.update(index, replace(record, weights=weights))


def _image_positions(tokens: dict[str, TokenList]) -> dict[str, Tensor]:
    """Return the positions of the image tokens of each kind."""
    return {kind: torch.tensor([*chain(*(range(first, first + len(grid)) for first, grid in labels.parts.items()))])
            for kind, labels in tokens.items()}  # fmt: skip


def _text_layers(model: Any) -> list[str] | None:
    """Return the modules whose weights a generating model returns; None for other models."""
    if not getattr(model, "can_generate", lambda: False)():
        return None
    names = {kind.root: None for kind in find_kinds(model)[0].values() if kind.root}
    return [*names] or None


def _words_of(inputs: ImageInputs) -> list[Any]:
    """Return the tokens of the text that the model read; [] without a text."""
    ids = inputs.arguments.get("decoder_input_ids", inputs.arguments.get("input_ids"))
    return [] if ids is None else make_tokens(inputs.processor.tokenizer, {"input_ids": ids})
