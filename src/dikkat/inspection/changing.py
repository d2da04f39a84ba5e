"""Changes attention weights of a model while it runs."""

import difflib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dikkat._engine.pytorch_state import is_in_backward
from dikkat.inspection.edits import BoundEdit, Edges, Edit, Gate, Given, Mass, Scale
from dikkat.inspection.layer_selection import LayerChoice, Layers, is_within, select_layers
from dikkat.inspection.observation import NotSeenError, Watcher, check_model, no_call_message, observing
from dikkat.inspection.origins import Streams
from dikkat.inspection.request import Span, check_range, span_positions
from dikkat.inspection.trace import Trace
from dikkat.inspection.whole_numbers import as_python
from dikkat.show.positions import Tokens, tokens_of

Position = int | str | slice
Pair = tuple[Position, Position]


class Changed:
    """Counts of the calls that a change edited.

    Attributes:
        calls: How many calls were changed.
    """

    def __init__(self) -> None:
        self.calls, self._unchanged = 0, list[Tensor]()

    def count(self, rows: Tensor) -> None:
        """Add to the number of queries that kept their weights."""
        if not is_in_backward():  # not again for a checkpoint, in the backward pass
            self._unchanged.append(rows.detach())

    @property
    def unchanged_queries(self) -> int:
        """The number of queries that kept their weights, counted for each head and element of the batch.

        With `mass`, these are the queries that see no key of a span, or no key outside the spans.
        """
        return sum(map(int, self._unchanged))

    def __repr__(self) -> str:
        calls = "1 call" if self.calls == 1 else f"{self.calls} calls"
        return f"{calls} changed; queries that kept their weights: {self.unchanged_queries}"


@contextmanager
def change(
    model: nn.Module,
    *,
    layers: Layers | None = None,
    heads: int | Sequence[int] | Sequence[tuple[int, int]] | None = None,
    cut: bool = False,
    mean: bool = False,
    edges: Pair | Sequence[Pair] | Tensor | None = None,
    spans: Mapping[str, Span] | None = None,
    mass: float | Mapping[str, float] | None = None,
    scale: float | Mapping[str, float] | None = None,
    weights: Trace | Tensor | None = None,
    tokens: Tokens | None = None,
) -> Iterator[Changed]:
    r"""Change attention weights of a model while it runs, with the model's own fast path for all other heads.

    Pass exactly one of `cut`, `edges`, `mass`, `scale` and `weights`. With weights w of a query and the
    keys S of a span, the changed weights w' are

    $$ \text{edges: } w'_j \propto [j \text{ not cut}]\, w_j \qquad
       \text{scale: } w'_j \propto c^{[j \in S]}\, w_j \qquad
       \text{mass: } w'_j = \psi \frac{w_j}{\sum_{l \in S} w_l} \text{ in } S,\quad
       (1 - \psi) \frac{w_j}{\sum_{l \notin S} w_l} \text{ elsewhere} $$

    A change applies to the calls that `dikkat.record` records, also in `generate` with a cache, in training and under
    autocast. Gradients flow. Changes nest: the outer change applies first. A recording shows the changed weights,
    whether it begins before or after the change. Only changed heads and queries are computed again. Compiled models run
    uncompiled in all threads within the block. If a model uses gradient checkpointing, call `backward` within the
    block, on a CPU. Changed heads draw other dropout.

    Positions count from the first token of the text, also in `generate`; padding on the left counts. In cross
    attention, keys are positions in the encoder's text.

    Args:
        model: The model.
        layers: The changed layers, as in `dikkat.record`; all by default.
        heads: The changed heads, or pairs (layer, head) without `layers`; all by default.
        cut: Whether to set the output of the heads to 0; with `mean`, to its mean over the text's queries.
        mean: See `cut`.
        edges: A pair (query, key) that the heads cannot see, a list of such pairs, or a boolean tensor (n, m) with True
            for each hidden pair. A query or key is a position, a slice of positions (`slice(None)` for all), or one of
            the `tokens`.
        spans: Keys by name: a slice of positions, or a list of positions. Positions count tokens, not characters.
        mass: The weight that each query gives to the span, 0 to 1; with several spans, a dictionary. A query that sees
            no key of a span, or no key outside, keeps its weights.
        scale: The factor of the odds of each span, 0 or more; a number for a single span.
        weights: The weights to use: a trace of `record(model, weights=True)`, whose modules make the same calls, or a
            tensor that broadcasts to (..., n, m) with rows that sum to 1.
        tokens: The tokens of the text, as in `Trace.tokens`, if `edges` names some. A token stands for all its
            positions.

    Yields:
        A `Changed` with the number of changed calls and of queries that could not be changed.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: None or several changes are requested; a layer, head, span, pair or token does not exist; masses
            are outside 0 to 1 or sum to more than 1; spans overlap; weights do not fit; a call cannot be changed (the
            message names its module); or, at the end, no call was changed.
        RuntimeError: `change` is called inside `torch.compile`.

    Source:
        Cut heads: Michel et al. 2019, "Are sixteen heads really better than one?". Edges: Geva et al. 2023, "Dissecting
        recall of factual associations". Weights of spans: Zhang et al. 2024, "Tell your model where to attend".

    Example:
        >>> import torch, dikkat
        >>> model = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        >>> x = torch.randn(1, 5, 8)
        >>> start = {"start": slice(0, 2)}
        >>> with dikkat.change(model, spans=start, mass=0.4), dikkat.record(model, weights=True) as trace:
        ...     _ = model(x, x, x, need_weights=False)
        >>> trace[""].weights[..., :2].sum(-1).mean()
        tensor(0.4000)
    """
    check_model("change", model)
    requested = {"cut": cut or None, "edges": edges, "mass": mass, "scale": scale, "weights": weights}
    names = [name for name, value in requested.items() if value is not None]
    if len(names) != 1:
        raise ValueError(f"change: got {' and '.join(names) or 'no change'}; expected one of {', '.join(requested)}")
    if mean and not cut:
        raise ValueError("mean: got True without cut=True; expected cut=True, whose output `mean` replaces")
    if spans is not None and mass is None and scale is None:
        raise ValueError("spans: got spans without mass or scale; expected one of them")
    changes = [
        (select_layers(model, entry), _make_edit(group, mean, edges, spans, mass, scale, weights, tokens))
        for entry, group in _split_heads(layers, heads)
    ]
    changer = _Changer(model, changes)
    with observing(model, changer):
        yield changer.changed
    for choices, _ in changes:
        for entry, choice in choices.items():
            if not any(choice.includes(*call) for call in changer.calls):
                raise NotSeenError(no_call_message("change", model, entry, choice, changer.layers))
    lost = sorted(name for name in changer.softmaxes if not any(is_within(call, name) for call, _ in changer.calls))
    if lost:
        raise ValueError(
            f"change: got a softmax in {', '.join(map(repr, lost))}, whose weights dikkat does not follow to values, "
            "so that these modules ran unchanged; expected weights that multiply values, or other `layers`"
        )
    for _, edit in changes:
        edit.check_applied()


class _Changer(Watcher):
    """Edits the calls of selected modules, which each edit has by entry of `layers`."""

    changes = True

    def __init__(self, model: nn.Module, changes: Sequence[tuple[Mapping[Any, LayerChoice], Edit]]) -> None:
        super().__init__(model, [choice for choices, _ in changes for choice in choices.values()])
        self._changes, self.changed = changes, Changed()
        self._counts, self.calls = Counter[str](), set[tuple[str, int]]()  # the changed modules and their layers

    def edits_of(self, streams: Streams, queries: int, keys: int, step: int | None) -> list[BoundEdit]:
        module, bound = self.running[-1], list[BoundEdit]()
        first_query, first_key = self.find_positions(streams, queries, keys)
        if first_key >= 0 and module.cached is None:  # without a cache, the last query is at the last key
            first_query, first_key = max(0, keys - queries), 0
        self._counts[module.name] += not step
        self.check_layer()
        for choices, edit in self._changes:
            if any(choice.includes(module.name, module.layer) for choice in choices.values()):
                positions = first_query + (step or 0), first_key
                if isinstance(edit, Given) and isinstance(edit.table, Trace):  # a trace has the rows of each call
                    positions, edit = (step or 0, 0), edit.of_call(module.name, self._counts[module.name] - 1)
                bound.append(BoundEdit(edit, *positions, self.changed.count))
        repeated = Counter(head for edit, *_ in bound for head in edit.heads or ())
        if len(bound) > 1 and (twice := [head for head, times in repeated.items() if times > 1]):
            raise ValueError(f"heads: got head {twice[0]} of {module.name!r} twice; expected each head once")
        if bound:
            self.calls.add((module.name, module.layer))
            self.changed.calls += not step
        return bound

    def reject(self, reason: str) -> None:
        name = self.running[-1].name
        raise ValueError(f"change: got {reason} in {name!r}, which dikkat cannot change; expected dikkat.attend, "
                         "scaled_dot_product_attention, or a softmax whose result multiplies values")  # fmt: skip


def _split_heads(layers: Layers | None, heads: Any) -> list[tuple[Layers | None, tuple[int, ...] | None]]:
    """Return layers and their changed heads."""
    heads = as_python(heads)
    if heads is None or type(heads) is int:
        return [(layers, None if heads is None else (heads,))]
    if not isinstance(heads, Sequence) or isinstance(heads, str) or not heads:
        raise TypeError(f"heads: got {heads!r}; expected a whole number, a list of them, or of pairs (layer, head)")
    if all(type(head) is int for head in heads):
        return [(layers, tuple(heads))]
    if layers is not None:
        raise ValueError(f"heads: got pairs (layer, head) and layers={layers!r}; expected only the pairs")
    by_layer: dict[Layers | None, tuple[int, ...]] = {}
    for pair in heads:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or any(type(number) is not int for number in pair):
            raise TypeError(f"heads: got {pair!r}; expected a pair (layer, head) of whole numbers")
        by_layer[pair[0]] = (*by_layer.get(pair[0], ()), pair[1])
    return [*by_layer.items()]


def _make_edit(
    heads: tuple[int, ...] | None, mean: bool, edges: Any, spans: Any, mass: Any, scale: Any, weights: Any, tokens: Any
) -> Edit:
    if edges is not None:
        return _make_edges(heads, edges, tokens)
    if mass is not None or scale is not None:
        return _make_spans(heads, spans, mass, scale)
    if weights is None:
        return Gate(heads, mean)
    if isinstance(weights, Trace):
        return Given(heads, weights)
    table = torch.as_tensor(weights)
    if table.ndim < 2 or not table.is_floating_point():
        raise TypeError(
            f"weights: got {tuple(table.shape)} {table.dtype}; expected weights (..., n, m), floating point"
        )
    sums = table.sum(-1)
    if bool((table < 0).any()) or not bool((((sums - 1).abs() < 1e-3) | (sums == 0)).all()):
        raise ValueError(
            "weights: got a negative weight or a row whose sum is neither 1 nor 0; expected weights of keys"
        )
    return Given(heads, table)


def _make_edges(heads: tuple[int, ...] | None, edges: Any, tokens: Tokens | None) -> Edges:
    if isinstance(edges, Tensor):
        if edges.dtype != torch.bool or edges.ndim != 2:
            raise TypeError(f"edges: got {tuple(edges.shape)} {edges.dtype}; expected booleans (n, m)")
        return Edges(heads, mask=edges.cpu())
    pairs = [edges] if isinstance(edges, tuple) and len(edges) == 2 and not isinstance(edges[0], tuple) else edges
    if not isinstance(pairs, Sequence) or not pairs or any(not isinstance(p, tuple) or len(p) != 2 for p in pairs):
        raise TypeError(f"edges: got {edges!r}; expected a pair (query, key), a list of pairs, or booleans (n, m)")
    return Edges(heads, tuple((_positions(query, tokens), _positions(key, tokens)) for query, key in pairs))


def _positions(position: Any, tokens: Tokens | None) -> Tensor | slice:
    if type(position) is int and position >= 0:
        return torch.tensor([position])
    if isinstance(position, slice):
        check_range("edges", position, can_be_open=True)
        return position
    if isinstance(position, str):
        if tokens is None:
            raise ValueError(f"edges: got the token {position!r}; expected tokens=, the tokens of the text, too")
        texts = [token.text for token in tokens_of(tokens)["self"]]
        matches = [index for index, text in enumerate(texts) if position in (text, text.strip(" Ġ▁·"))]
        if not matches:
            near = difflib.get_close_matches(position, texts, n=1, cutoff=0.0)
            hint = f", such as {near[0]!r}" if near else ""
            raise ValueError(f"edges: got the token {position!r}; expected one of the {len(texts)} tokens{hint}")
        return torch.tensor(matches)
    raise TypeError(f"edges: got {position!r}; expected a position from 0, a slice of positions, or a token")


def _make_spans(heads: tuple[int, ...] | None, spans: Any, mass: Any, scale: Any) -> Edit:
    positions = span_positions(spans)
    argument, numbers = ("mass", mass) if scale is None else ("scale", scale)
    if isinstance(numbers, int | float):
        if len(positions) > 1:
            raise ValueError(
                f"{argument}: got {numbers} for {len(positions)} spans; expected a dictionary of numbers by span"
            )
        numbers = dict.fromkeys(positions, numbers)
    if not isinstance(numbers, Mapping) or numbers.keys() != positions.keys():
        raise ValueError(f"{argument}: got {numbers!r}; expected a number for each of {', '.join(map(repr, spans))}")
    limits = "0 to 1" if argument == "mass" else "≥ 0"
    for name, number in numbers.items():
        if not isinstance(number, int | float) or not 0 <= number < math.inf or (argument == "mass" and number > 1):
            raise ValueError(f"{argument}: got {number} for {name!r}; expected a number {limits}")
    values = tuple(float(numbers[name]) for name in positions)
    if scale is not None:
        return Scale(heads, tuple(positions.items()), values)
    if math.fsum(values) > 1:
        raise ValueError(f"mass: got a sum of {math.fsum(values):.4g}; expected at most 1")
    if len(torch.cat([*positions.values()]).unique()) < sum(map(len, positions.values())):
        raise ValueError("spans: got spans that overlap; expected spans without common positions")
    return Mass(heads, tuple(positions.items()), values)
