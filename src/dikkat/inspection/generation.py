"""`dikkat.show.generation`: the passages of a prompt that a model read for each written token."""

import base64
import html
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dikkat.inspection.call_kinds import find_kinds
from dikkat.inspection.layer_selection import Layers, select_layers
from dikkat.inspection.recording import RowTrace, recording
from dikkat.inspection.request import Inspection, Request, Spans
from dikkat.inspection.tables import make_frame
from dikkat.inspection.text_inputs import encode, make_tokens
from dikkat.inspection.whole_numbers import as_python
from dikkat.show.document import document, escaped
from dikkat.storage.files import check_replaceable, write_whole

__all__ = ["Generation", "generation"]

# The first character of a passage, and its end.
Characters = tuple[int, int]

# The names of the spans that are no passages, and their roles in web/src/page/passages.ts.
_ROLES = {"rest of the prompt": "rest", "first token": "first", "answer so far": "answer", "answer and sink": "sink"}
_REST, _FIRST, _ANSWER, _SINK = _ROLES
_ENTRIES = 2_000_000  # maximum masses of single heads in a page, in two bytes each; the page of more has their mean
_UNITS = 2**16 - 1  # of a mass in a page
_CONTENT = "\ufffc"  # replaces the content of a chat's message, to find its place in the template
# Arguments of `generate` that write several tokens in one call, or run the model several times for a token.
_USUAL = {"assistant_model": None, "prompt_lookup_num_tokens": None, "prefill_chunk_size": None, "guidance_scale": 1,
          "num_return_sequences": 1, "decoder_input_ids": None}  # fmt: skip


@dataclass(frozen=True, repr=False)
class Generation:
    """The weights that written tokens gave to passages of a prompt, made by `dikkat.show.generation`.

    Attributes:
        text: The written text.
        tokens: The written tokens.
        spans: The names of the passages, then of the other parts of the text.
        masses: (tokens, heads, spans), the total weight of each span, for all heads of all layers.
        even: (spans,), each span's share of the prompt's tokens, which equal weights would give it; 0 for the answer.
        layers: (heads,), the layer of each head.
        heads: (heads,), the number of each head in its layer.
        prompt: The pieces of the prompt, with the index of their passage; −1 between passages.
        title: The heading of the page.
        positions: The positions of each passage's tokens in the prompt, as `spans` of `dikkat.record` and
            `dikkat.change`. The first token is a passage.
    """

    text: str
    tokens: list[str]
    spans: list[str]
    masses: NDArray[np.float64]
    even: NDArray[np.float64]
    layers: NDArray[np.int64]
    heads: NDArray[np.int64]
    prompt: list[tuple[str, int]]
    title: str
    positions: dict[str, list[int]] = field(default_factory=dict)

    def __repr__(self) -> str:
        means = self.masses.mean((0, 1))
        weights = ", ".join(f"{self.spans[k]!r} {means[k]:.0%}" for k in means.argsort()[::-1][:3])
        return f"Generation({self.text!r}, {len(self.tokens)} tokens; largest weights: {weights})"

    def frame(self, *, mean: bool = False) -> Any:
        """Return a table with a row for each token, head and span.

        Args:
            mean: Whether to return the mean over all heads, without the columns layer and head.

        Returns:
            A `pandas.DataFrame`, or a NumPy record array if pandas is not installed: token (its number), text, layer,
            head, span, mass, even.
        """
        masses = self.masses.mean(1, keepdims=True) if mean else self.masses
        token, head, span = np.indices(masses.shape).reshape(3, -1)
        columns = {"token": token, "text": np.array(self.tokens)[token]}
        columns |= {} if mean else {"layer": self.layers[head], "head": self.heads[head]}
        return make_frame(columns | {"span": np.array(self.spans)[span], "mass": masses.ravel(),
                                      "even": self.even[span]})  # fmt: skip

    def _page(self) -> str:
        mean, is_small = self.masses.mean(1), self.masses.size <= _ENTRIES
        data = {
            "prompt": self.prompt, "tokens": self.tokens,
            "spans": [[name, _ROLES.get(name, "")] for name in self.spans], "even": self.even.round(4).tolist(),
            "heads": [*zip(self.layers.tolist(), self.heads.tolist(), strict=True)] if is_small else [[-1, -1]],
            "masses": base64.b64encode(
                np.rint((self.masses if is_small else mean).clip(0, 1) * _UNITS).astype("<u2").tobytes()
            ).decode(),
        }  # fmt: skip
        labelled = zip(["even share", *self.tokens], [self.even, *mean], strict=True)
        rows = [(name, *(f"{mass:.0%}" for mass in masses)) for name, masses in labelled]
        cells = ("".join(f"<td>{escaped(cell)}</td>" for cell in row) for row in [("", *self.spans), *rows])
        prompt = escaped("".join(piece for piece, _ in self.prompt))
        table = "".join(f"<tr>{row}</tr>" for row in cells)
        plain = f'<main id="room"><p class="read-text">{prompt}\n{escaped(self.text)}</p><table>{table}</table></main>'
        return document(self.title, plain, calls={"passages": data})

    def _repr_html_(self) -> str:
        page = html.escape(self._page(), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 46rem; border: 0"></iframe>'


def generation(
    model: nn.Module,
    tokenizer: Any,
    prompt: str | Sequence[Mapping[str, Any]],
    path: str | os.PathLike[str] | None = None,
    *,
    max_new_tokens: int = 30,
    spans: Mapping[str, str | tuple[int, int]] | Sequence[str] | None = None,
    layers: Layers | None = None,
    heads: int | Sequence[int] | None = None,
    title: str = "Which passages the answer read",
    **generate_arguments: Any,
) -> Generation:
    r"""Write a text with a Hugging Face model, and a self-contained page of the passages that each token read.

    `model.generate` runs once, on the model's fast path. The page shows the mean over heads h of the weight of a
    passage S for the written token t, whose query is the token before t:

    $$ \psi_{tS} = \operatorname{mean}_h \sum_{j \in S} w_{htj} $$

    Each call keeps one number for each head and passage. The rest of the weight belongs to "rest of the prompt", to
    "first token", which gets a large weight in many models, and to "answer so far" ("answer and sink" if the model has
    attention sinks). In a model with an encoder, the prompt is the encoder's text, and only cross attention counts.

    Args:
        model: A model with `generate` that `dikkat.record` accepts.
        tokenizer: Its fast tokenizer.
        prompt: A text, or the messages of a chat for `tokenizer.apply_chat_template`.
        path: The file; its folder must exist. None writes no file: the result shows the page as the last value of a
            notebook cell.
        max_new_tokens: The maximum number of written tokens.
        spans: The passages by name: a text that the prompt contains once, or a pair of the first character and the end,
            as from `re.Match.span` (for a chat, in the text from the template). A list of texts has no names. Default:
            the paragraphs of the prompt or of each message, the lines if there is one paragraph, the sentences if there
            is one line.
        layers: The selected layers, as in `dikkat.record`; all by default.
        heads: The selected heads; all by default.
        title: The heading.
        **generate_arguments: Other arguments of `model.generate`. With `num_beams`, the weights are from the beams that
            wrote the returned text.

    Returns:
        A `Generation` with the text and the weights.

    Raises:
        TypeError: The model has no `generate`, the tokenizer is not fast, or the prompt or the spans have a wrong type.
        ValueError: A passage is not in the prompt, is there several times, is empty or overlaps another; the prompt has
            no tokens or is too long; an argument of `generate` prevents one call for each token; or `dikkat.record`
            raises.
        OSError: The system could not write; an existing file is unchanged.
    """
    check_arguments(model, generate_arguments)
    if path is not None:
        check_replaceable(path)
    text, messages = _read_prompt(tokenizer, prompt)
    encoded = encode(model, tokenizer, text, add_special_tokens=isinstance(prompt, str))
    if not getattr(encoded, "is_fast", False):
        kind = type(tokenizer).__name__
        raise TypeError(f"tokenizer: got {kind}; expected a fast one, which knows the characters of each token")
    named: Any = _name_passages(text, messages) if spans is None else spans
    if isinstance(named, list | tuple) and all(isinstance(span, str) for span in named):
        named = {_name_of(number, span): span for number, span in enumerate(named, start=1)}
    passages = _find_passages(text, named)
    has_encoder = bool(getattr(model.config, "is_encoder_decoder", False))
    positions = _find_tokens(encoded.encodings[0].offsets, passages, has_encoder, is_default=spans is None)
    passages = {name: characters for name, characters in passages.items() if name in positions}
    inputs = {name: encoded[name] for name in ("input_ids", "attention_mask") if name in encoded}
    layers = _cross_attention(model, layers) if has_encoder else layers
    request = Request(spans=positions, queries=[-1], heads=heads)
    trace = _Rows(cast(Spans, request.spans), None if has_encoder else inputs["input_ids"].shape[1])
    with recording(model, request, layers, trace=trace):
        output = model.generate(  # type: ignore[operator]
            **inputs, **generate_arguments, max_new_tokens=max_new_tokens, return_dict_in_generate=True
        )
    ids, beams = output.sequences[0, 1 if has_encoder else inputs["input_ids"].shape[1] :], output.get("beam_indices")
    rows = [0] * len(ids) if beams is None else beams[0][beams[0] >= 0].tolist()  # of each call's batch
    masses, head_layers, numbers = _masses(trace, "cross" if has_encoder else "self", rows)
    names, token_count = list(positions), len(encoded.encodings[0].offsets)
    even = np.array([len(tokens) / token_count for tokens in positions.values()])
    if not has_encoder:
        masses = np.concatenate([masses, (1 - masses.sum(-1, keepdims=True)).clip(0)], -1)
        # The first token sees only the prompt. Weights in bfloat16 have sums that are off by 0.4 %.
        names.append(_SINK if masses[0, :, -1].max() > 0.02 else _ANSWER)
        even = np.append(even, 0.0)
    ids, pieces = ids[: len(rows)], _cut_text(text, passages, names)
    tokens = [token.text for token in make_tokens(tokenizer, {"input_ids": ids[None]})]
    answer = tokenizer.decode(ids, skip_special_tokens=True)
    result = Generation(answer, tokens, names, masses, even, head_layers, numbers, pieces, title, positions)
    if path is not None:
        write_whole(path, result._page())
    return result


def check_arguments(model: Any, arguments: Mapping[str, Any], *, has_beams: bool = True) -> None:
    """Check that `generate` calls the model once for each token, and without `has_beams`, for one text."""
    if getattr(model, "generation_config", None) is None:
        raise TypeError(f"model: got {type(model).__name__}; expected a Hugging Face model with generate")
    configs = arguments.get("generation_config"), model.generation_config
    for name, usual in (_USUAL if has_beams else _USUAL | {"num_beams": 1}).items():
        settings = [arguments[name]] if name in arguments else [getattr(config, name, None) for config in configs]
        value = next((setting for setting in settings if setting is not None), None)
        if value is not None and value != usual:
            raise ValueError(f"{name}: got {value!r:.60}; expected {usual}, as each token needs one call of the model")


def _read_prompt(tokenizer: Any, prompt: Any) -> tuple[str, list[Characters]]:
    """Return the text of a prompt, and the characters of its messages."""
    if isinstance(prompt, str):
        return prompt, [(0, len(prompt))]
    if not isinstance(prompt, Sequence) or not all(isinstance(turn, Mapping) and "content" in turn for turn in prompt):
        raise TypeError(f"prompt: got {type(prompt).__name__} {prompt!s:.60}; expected one text, or the messages of "
                        "one chat, such as [{'role': 'user', 'content': 'Why?'}]")  # fmt: skip

    def render(turns: Sequence[Any]) -> str:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))

    text, messages = render(prompt), list[Characters]()
    for k, turn in enumerate(prompt):
        if isinstance(turn["content"], str):
            turns = [*prompt[:k], {**turn, "content": _CONTENT}, *prompt[k + 1 :]]
            before, _, after = render(turns).partition(_CONTENT)
            if text.startswith(before) and text.endswith(after):  # else the template depends on the content
                messages.append((len(before), len(text) - len(after)))
    return text, messages


def _name_passages(text: str, messages: Iterable[Characters]) -> dict[str, Characters]:
    """Return the paragraphs, lines or sentences of messages, under a number and their first letters."""
    spans = dict[str, Characters]()
    for first, last in messages:
        end = first
        for separator in (r"\n\s*\n", r"\n", r"(?<=[.!?])\s+|(?<=[。！？])"):
            passages = [passage for passage in map(str.strip, re.split(separator, text[first:last])) if passage]
            if len(passages) > 1:
                break
        for passage in passages:
            start = text.index(passage, end)
            end = start + len(passage)
            spans[_name_of(len(spans) + 1, passage)] = start, end
    return spans


def _name_of(number: int, passage: str) -> str:
    return f"{number}: {' '.join(passage.split())[:40]}"


def _find_passages(text: str, spans: Mapping[str, str | Characters]) -> dict[str, Characters]:
    """Return the first character of each passage, and its end, in the order of the text."""
    if not isinstance(spans, Mapping):
        raise TypeError(f"spans: got {type(spans).__name__}; expected texts or pairs by name, or a list of texts")
    passages = dict[str, Characters]()
    for name, span in spans.items():
        if name in _ROLES:
            raise ValueError(f"spans: got the name {name!r}; expected another name, as the page uses it")
        if isinstance(span, str):
            if not span.strip() or text.count(span) != 1:
                raise ValueError(f"spans: got {span!r:.60} for {name!r}, {text.count(span)} times in the prompt; "
                                 "expected a passage that is there once, or a pair (first character, end)")  # fmt: skip
            span = text.index(span), text.index(span) + len(span)
        span = as_python(span)
        if not isinstance(span, tuple | list) or list(map(type, span)) != [int, int] or not 0 <= span[0] < span[1]:
            raise ValueError(f"spans: got {span!r} for {name!r}; expected a text, or a pair of the first character and "
                             "the end, such as match.span()")  # fmt: skip
        start, stop = span
        if stop > len(text):
            raise ValueError(f"spans: got {span} for {name!r}; expected a part of the prompt's {len(text)} characters")
        passage = text[start:stop]
        passages[name] = start + len(passage) - len(passage.lstrip()), start + len(passage.rstrip())
    return dict(sorted(passages.items(), key=lambda item: item[1]))


def _find_tokens(
    offsets: Sequence[tuple[int, int]], passages: Mapping[str, Characters], has_encoder: bool, *, is_default: bool
) -> dict[str, list[int]]:
    """Return the positions of each passage's tokens, and of the rest. A shared token belongs to the first passage.

    Default passages without tokens are left out.
    """
    free, positions = [*range(len(offsets))], dict[str, list[int]]()
    previous, end = "", 0
    for name, (start, stop) in passages.items():
        if start < end:
            raise ValueError(f"spans: got {previous!r} and {name!r}, which overlap; expected separate passages")
        tokens = [token for token in free if offsets[token][0] < stop and offsets[token][1] > start]
        tokens = tokens if has_encoder or tokens[:1] != [0] else tokens[1:] or tokens
        if not tokens and is_default:
            continue
        if not tokens:
            raise ValueError(f"spans: got {name!r}, which has no token of its own; expected a longer passage")
        free, positions[name] = sorted({*free} - {*tokens}), tokens
        previous, end = name, stop
    first = [0] if free[:1] == [0] and not has_encoder else []
    rest = {_REST: free[len(first) :], _FIRST: first}
    return positions | {name: tokens for name, tokens in rest.items() if tokens}


def _cut_text(text: str, passages: Mapping[str, Characters], names: Sequence[str]) -> list[tuple[str, int]]:
    """Return the pieces of a text, with the index of their passage; −1 between passages."""
    pieces, end = list[tuple[str, int]](), 0
    for name, (start, stop) in passages.items():
        pieces += [(text[end:start], -1), (text[start:stop], names.index(name))]
        end = stop
    return [(piece, index) for piece, index in [*pieces, (text[end:], -1)] if piece]


def _cross_attention(model: nn.Module, layers: Layers | None) -> list[int | str]:
    """Return the names of the selected modules with cross attention."""
    selected = {name for choice in select_layers(model, layers).values() for name in choice.modules}
    names = [name for name, kind in find_kinds(model)[0].items() if kind == ("cross", name) and name in selected]
    if not names:
        raise ValueError(f"layers: got {layers!r} of {type(model).__name__}; expected layers with cross attention")
    return [*names]


class _Rows(RowTrace):
    """The span masses of each module's calls from the third one on. `prompt_length` is None in cross attention."""

    def __init__(self, spans: Spans, prompt_length: int | None) -> None:
        super().__init__()
        self.masses = defaultdict[str, list[Tensor]](list)  # (B, H, spans)
        self._spans, self._prompt_length = spans, prompt_length

    def add_row(self, name: str, weights: Tensor) -> None:
        """Add the span masses of the weights (B, H, m) of a module's next call."""
        keys, first_key = weights.shape[-1], 0
        if self._prompt_length is not None:  # a cache has the last keys only, or free places after all keys
            first_key = max(0, self._prompt_length + 2 + len(self.masses[name]) - keys)
        members = self._spans.members(weights)[first_key : first_key + keys]
        self.masses[name].append(weights[..., : len(members)] @ members)


def _masses(
    trace: _Rows, kind: str, rows: Sequence[int]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the masses (tokens, heads, spans) of all calls of a kind, and the layer and the number of each head."""
    calls, masses, layers, heads = dict[tuple[int, str], list[Inspection]](), [], [], []
    for call, result in trace.calls():
        if call.kind == kind:
            calls.setdefault((call.layer, call.name), []).append(result)
    if not calls:
        raise ValueError(f"layers: got only calls without {kind}-attention; expected layers with {kind}-attention")
    for (layer, name), records in calls.items():
        by_row = [cast(Tensor, result.span_mass).reshape(-1, result.sizes[0], len(trace.spans)) for result in records]
        by_row += trace.masses.get(name, ())
        can_end_early = len(by_row[0]) > 1  # the best of several beams
        if len(by_row) != len(rows) and (not can_end_early or len(by_row) < len(rows)):
            raise ValueError(
                f"model: got {len(by_row)} calls of {name!r} for {len(rows)} tokens; expected one for each"
            )
        masses.append(torch.stack([mass[row] for mass, row in zip(by_row, rows, strict=False)]).double().numpy())
        numbers = records[0].heads
        heads.append(np.arange(masses[-1].shape[1]) if numbers is None else numbers.numpy())
        layers.append(np.full(len(heads[-1]), layer))
    return np.concatenate(masses, 1), np.concatenate(layers), np.concatenate(heads)
