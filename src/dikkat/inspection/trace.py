"""Records of a model's calls, by module and call. They can be saved, and written as a page."""

import html
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from dikkat.extras import require_extra
from dikkat.inspection import tables
from dikkat.inspection.calls import OWN_SOFTMAX, Attentions, Call
from dikkat.inspection.comparing import merge_tokens, subtract
from dikkat.inspection.measures import contact_maps, distances_table
from dikkat.inspection.page_layers import content_of_page
from dikkat.inspection.relevance import rolled_out
from dikkat.inspection.request import Inspection
from dikkat.inspection.trace_files import describe_tokens, is_call, parse_spans, parse_tokens
from dikkat.inspection.whole_numbers import as_python
from dikkat.show.positions import Grid, Times, TokenList, Tokens, describe_counts, of_only_element, tokens_of
from dikkat.show.views import views_of
from dikkat.storage.files import parse_json, read_regular, write_whole
from dikkat.storage.headers import check_header, header

_FORMAT, _VERSION = "dikkat trace", 5
_MAX_BYTES = 2**36  # of a file
_FIELDS = {field.name for field in fields(Inspection)} - {"shape", "positions"}
PAGE_TITLE = "What the model looks at"
_DIFFERENCE = "got a difference of two runs; expected one run"


class Trace:
    """Records of a model's calls of attention in the order in which they ran, made by `dikkat.record`.

    `trace[name]` is the `Inspection` of the only call of a module. If the module was called several times,
    `trace[name, 0]` is the first call and `trace[name, -1]` the last. `trace[10]` is layer 10, and `trace[10, 5]` is
    its head 5. A layer that ran twelve times counts as twelve layers. A notebook shows a trace as its page. The
    difference of two recordings, `trace - other`, is a trace with signed weights (`dikkat.compare`).

    Attributes:
        spans: The names of the recorded spans, in the order of `Inspection.span_mass`.
        withheld: Why `attentions` would lack layers that "eager" attention returns; "" if no layer is missing.
        lacking: The kinds of the missing layers; all kinds if they are unknown.
        neutral: The prompt by whose weights the weights are divided (`dikkat.show.attention`); "" for none.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[Call, Inspection]] = []
        self._tokens: dict[int | None, dict[str, TokenList]] = {}  # by element; None for all other elements
        self.spans: tuple[str, ...] = ()
        self.withheld, self.lacking, self.neutral = "", {"self", "encoder", "cross"}, ""

    @property
    def tokens(self) -> Mapping[str, TokenList]:
        """The tokens of queries and keys, for pages and tables ("self": the text; "encoder": a source).

        Set a list of strings, `Token`, and parts (`dikkat.Grid`, `Words`, `Times`), a part, or two lists (source,
        target), with a token for each query or key. A cell of a grid is a token "row 1, column 3", a time "0.5".
        If elements of the batch have different tokens, these are the tokens of the first element.
        """
        return self.tokens_of(0)

    @tokens.setter
    def tokens(self, tokens: Tokens) -> None:
        self._tokens = {None: self._check_tokens(tokens)}

    @property
    def parts(self) -> Mapping[str, Mapping[int, Grid | Times]]:
        """The grids and times in `tokens`, by kind and by the position of the first query or key.

        For another element of the batch, `tokens_of(element)["self"].parts` has them.
        """
        return {kind: dict(labels.parts) for kind, labels in self.tokens.items()}

    def set_tokens(self, tokens: Any, element: int | Sequence[int]) -> None:
        """Set the tokens of all elements of the batch, or a list with the tokens of each element in `element`."""
        by_element = self._by_element(tokens, element)
        self._tokens = {None: by_element[0][1]} if isinstance(element, int) else dict[int | None, Any](by_element)

    def _by_element(self, tokens: Any, element: int | Sequence[int]) -> list[tuple[int, dict[str, TokenList]]]:
        is_single = isinstance(element, int)
        elements: Any = [element] if is_single else element
        token_lists = [of_only_element(tokens)] * len(elements) if is_single or tokens is None else tokens
        if len(token_lists) != len(elements):
            raise ValueError(f"tokens: got {len(token_lists)} lists; expected {len(elements)}, one for each element")
        return [(number, dict(self.tokens_of(number)) if labels is None else self._check_tokens(labels))
                for number, labels in zip(elements, token_lists, strict=True)]  # fmt: skip

    def tokens_of(self, element: int) -> Mapping[str, TokenList]:
        """Return the tokens of an element of the batch by kind, with their grids and times as `parts`."""
        shapes = [record.shape for _, record in self._calls if len(record.shape) > 2]
        batch = max((math.prod(shape[:-3]) if len(shape) > 3 else shape[0] for shape in shapes), default=1)
        known = {index % batch: tokens for index, tokens in self._tokens.items() if index is not None}
        return MappingProxyType(known.get(element % batch, self._tokens.get(None, {})))

    def _check_tokens(self, tokens: Tokens) -> dict[str, TokenList]:
        checked = tokens_of(tokens)
        for kind, labels in checked.items():
            sizes = sorted(self._token_counts(kind))
            if self._calls and sizes and labels.parts and len(labels) not in sizes:
                nearest = min(sizes, key=lambda size: abs(size - len(labels)))
                raise ValueError(f"tokens: got {len(labels)} ({kind!r}): {describe_counts(labels, nearest)}")
            if self._calls and len(labels) not in sizes:
                expected = " or ".join(map(str, sizes)) or "none, as no call reads a source"
                expected = expected if len(sizes) < 4 else f"{sizes[0]} to {sizes[-1]}"
                raise ValueError(f"tokens: got {len(labels)} ({kind!r}); expected {expected}, a label for each "
                                 "position, also for padding")  # fmt: skip
        return checked

    def _token_counts(self, kind: str) -> set[int]:
        """Return the allowed numbers of tokens: the keys of a source, the queries or keys of a text."""
        counts = set[int]()
        for call, record in self._calls:
            _, queries, keys = record.sizes
            first, first_key = record.positions
            if kind == "encoder":
                counts |= {keys} if call.kind in ("encoder", "cross") or first_key < 0 else set()
            elif kind == "image" or call.kind != "encoder":
                is_other = first_key < 0 and call.kind != "self"  # keys from another sequence
                counts |= {first + queries} if is_other else {first + queries, max(0, first_key) + keys}
            if call.run > self._calls[0][0].run and counts:  # the last generated token is no query
                counts.add(max(counts) + 1)
        return counts - {0}

    def add(self, record: Inspection, call: Call) -> None:
        """Add copies of a call's tensors on the CPU."""
        copies: dict[str, Any] = {field: tensor.detach().cpu().clone() for field, tensor in record.tensors().items()}
        self._calls.append((call, replace(record, **copies)))

    def update(self, index: int, record: Inspection) -> None:
        """Replace the record of a call."""
        self._calls[index] = self._calls[index][0], record

    def keep(self, is_selected: Callable[[Call], bool]) -> None:
        """Remove all calls for which `is_selected` returns False."""
        self._calls = [(call, record) for call, record in self._calls if is_selected(call)]

    def set_kinds(self, kinds: Iterable[str]) -> None:
        """Set the kind of each call."""
        self._calls = [
            (call._replace(kind=kind), record) for (call, record), kind in zip(self._calls, kinds, strict=True)
        ]

    @property
    def names(self) -> list[str]:
        """The modules with recorded calls, in the order of their first calls; the model itself is ''."""
        return list(dict.fromkeys(call.name for call, _ in self._calls))

    def count(self, name: str) -> int:
        """Return the number of calls of a module."""
        return len(self._records_of(name))

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[tuple[str, int, Inspection]]:
        """Yield (name, index, record) for every call, module by module."""
        for name in self.names:
            for index, record in enumerate(self._records_of(name)):
                yield name, index, record

    def calls(self) -> Iterator[tuple[Call, Inspection]]:
        """Yield every call with its record, in running order."""
        yield from self._calls

    def __getitem__(self, key: str | int | tuple[str, int] | tuple[int, int]) -> Inspection:
        """Return the only call of a module, one of its calls, a layer, or a head of a layer.

        Raises:
            KeyError: The module has no recorded call.
            IndexError: There are fewer calls, layers or heads.
            ValueError: A module or layer has several calls, and no index was passed.
        """
        key = as_python(key)
        if isinstance(key, int):
            return self._layer(key)[1]
        if isinstance(key, tuple):
            name, index = key
            if isinstance(name, int):
                return self._layer(name)[1].of_head(index)
            calls = self._records_of(name)
            if not -len(calls) <= index < len(calls):
                raise IndexError(f"trace[{name!r}, {index}]: got call {index}; expected {-len(calls)} to "
                                 f"{len(calls) - 1}")  # fmt: skip
            return calls[index]
        calls = self._records_of(key)
        if len(calls) > 1:
            raise ValueError(
                f"trace[{key!r}]: got a module with {len(calls)} calls; expected trace[{key!r}, 0] to "
                f"trace[{key!r}, {len(calls) - 1}]"
            )
        return calls[0]

    def _records_of(self, name: str) -> list[Inspection]:
        records = [record for call, record in self._calls if call.name == name]
        if not records:
            raise KeyError(f"trace[{name!r}]: unknown module; expected one of {', '.join(map(repr, self.names))}")
        return records

    def _layer(self, number: int) -> tuple[Call, Inspection]:
        """Return the only call of a layer and its record. In a model without lists of modules, each call is a layer."""
        numbered = [call.layer for call, _ in self._calls]
        layers = numbered if max(numbered, default=-1) >= 0 else list(range(len(numbered)))
        index = number if number >= 0 else max(layers, default=-1) + 1 + number
        matches = [pair for layer, pair in zip(layers, self._calls, strict=True) if layer == index]
        if not matches or index < 0:
            layer_numbers = ", ".join(map(str, sorted({layer for layer in layers if layer >= 0})))
            raise IndexError(f"trace[{number}]: got an unknown layer; expected one of {layer_numbers}")
        if len(matches) > 1:
            names = ", ".join(dict.fromkeys(repr(call.name) for call, _ in matches))
            raise ValueError(f"trace[{number}]: got a layer with {len(matches)} calls; expected trace[name, call], "
                             f"with one of the modules {names}")  # fmt: skip
        return matches[0]

    def __sub__(self, subtrahend: "Trace") -> "Trace":
        """Return the difference of the weights of two recordings, as `dikkat.compare` aligns them."""
        if not isinstance(subtrahend, Trace):
            return NotImplemented
        if self.neutral != subtrahend.neutral:
            raise ValueError(f"trace - other: got weights divided for neutral={self.neutral!r} and "
                             f"{subtrahend.neutral!r}; expected the same neutral prompt, or none")  # fmt: skip
        difference, runs = Trace(), (self._calls, subtrahend._calls)
        difference._calls = subtract(runs, (self.tokens_of(0), subtrahend.tokens_of(0)))
        aligned = any(first.sizes != second.sizes for (_, first), (_, second) in zip(*runs, strict=True))
        difference._tokens = {
            element: merge_tokens(tokens, subtrahend.tokens_of(element or 0), aligned=aligned)
            for element, tokens in self._tokens.items()
        }
        difference.withheld, difference.neutral = _DIFFERENCE, self.neutral
        return difference

    def __repr__(self) -> str:
        rows = [("layer", "kind", "heads × queries × keys", "recorded", f"module (Trace of {len(self)} calls)")]
        for call, record in self._calls:
            layer, kind = "" if call.layer < 0 else str(call.layer), call.kind or "other"
            recorded = " ".join(filter(None, [", ".join(record.tensors()), call.source]))
            rows.append((layer, kind, " × ".join(map(str, record.sizes)), recorded, call.name or "model"))
        rows = rows if len(rows) <= 10 else [*rows[:8], ("…", "", "", f"{len(rows) - 9} more", ""), rows[-1]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def attentions(self) -> Attentions:
        """Return all weights before dropout, as "eager" attention in transformers does with `output_attentions=True`.

        For a Hugging Face model, the tuple has the layers that the model's configuration lists. For other models, it
        has all self-attention except that of an encoder with a decoder. Layers are in the order in which they ran. If
        the model ran more than once, as in `generate`, there is a tuple for each run.

        Raises:
            ValueError: The recording was made without `weights=True`, layers that the model returns were not recorded,
                or dikkat does not know which layers the model returns.
        """
        if self.withheld:
            raise ValueError(f"attentions: {self.withheld}")
        by_kind: dict[str, list[tuple[int, Tensor]]] = defaultdict(list)
        by_name: dict[str, tuple[Tensor, ...]] = {}
        for call, record in self._calls:
            if record.weights is None:
                raise ValueError(f"trace[{call.name!r}]: got no weights; expected a recording with weights=True")
            by_kind[call.kind].append((call.run, record.weights))
            by_name[call.name] = (*by_name.get(call.name, ()), record.weights)
        encoder = [weights for _, weights in by_kind["encoder"]]
        source = OWN_SOFTMAX if any(call.source for call, _ in self._calls) else ""
        return Attentions(_by_run(by_kind["self"]), encoder, _by_run(by_kind["cross"]), by_name, source)

    def scores(self, *, patterns: Mapping[str, Any] | None = None, element: int = 0) -> Any:
        r"""Return a table with a row for each head: scores from 0 to 1 for kinds of keys that the head attends to.

        $$ s = \max\Big(0, \operatorname{mean}_i \frac{\sum_{j \in J_i} w_{ij} - u_i}{1 - u_i}\Big), \qquad
           u_i = \frac{|J_i|}{c_i}, \qquad
           \text{evenly} = \operatorname{mean}_i \frac{\sum_j \min(w_{ij}, 1 / c_i) - 1 / c_i}{1 - 1 / c_i}, \qquad
           \text{information} = \frac{H(\bar w) - \operatorname{mean}_i H(w_i)}{\log \min(n, m)} $$

        where means are over the n queries that see more than one key, c_i is the number of keys that query i sees, u_i
        is the weight of J_i if weights are uniform, w̄ is the mean row, H is the entropy, m is the number of keys that
        any query sees, and J_i are these keys of query i:

        | column | the keys |
        | --- | --- |
        | `previous`, `next` | the previous key, the next key (for heads that are not causal) |
        | `itself` | the query's own position |
        | `first` | the first key |
        | `same` | other keys with the query's token; only for queries with such keys |
        | `induction` | keys after an earlier key with the query's token; only for queries with such keys |
        | `separator` | special tokens except the first; only for ordinary queries that see a special token |
        | `nearby` | the up to 8 patches around the query's patch in its `dikkat.Grid` |
        | `row`, `column` | other patches in the query's row or column of the grid |
        | `class`, `registers` | tokens named "[CLS]" or "class token", and "[REG]" or "register 1"; for other queries |

        The last three rows are only in tables of sequences with a grid.

        `looks` is the head's main pattern: the column with the largest share. A share of k queries is first multiplied
        by (k − 1) / (k + 1), and "evenly" wins only if all other shares are below 0.2. `queries` is the number k.
        Padding is neither a query nor the first key. `information` is larger if the weights depend more on the query, 0
        if all rows are equal. If only the largest weights were recorded, a query's other weights count as equal.

        Args:
            patterns: Boolean masks (n, m) or (m,) of further keys by name. Each becomes a column after `looks`: the
                mean weight of these keys, over the queries that see one of them and more than one key. It is NaN for
                calls with other numbers of queries and keys.
            element: The element of the batch.

        Returns:
            A `pandas.DataFrame`, or a NumPy record array if pandas is not installed: layer, module, kind, head,
            looks, the shares, information. NaN for unknown shares: without tokens, or in cross attention.

        Raises:
            TypeError: A mask is not boolean.
            ValueError: Neither `weights` nor `top_k` was recorded, the trace is a difference, a mask has the name of
                another column or fits no call, or `element` is out of range.

        Source:
            Previous, first and same: Clark et al. 2019, section 3; induction: Olsson et al. 2022.
        """
        if self.withheld == _DIFFERENCE:
            raise ValueError(f"scores: {_DIFFERENCE}. dikkat.compare ranks the heads of two runs")
        return tables.make_frame(tables.scores_columns(self._calls, element, self.tokens_of(element), patterns))

    def frame(self, *, element: int = 0) -> Any:
        """Return a table of all recorded weights except 0.

        Args:
            element: The element of the batch.

        Returns:
            A `pandas.DataFrame`, or a NumPy record array if pandas is not installed: layer, module, head, query, key,
            weight; with tokens also query_token and key_token.

        Raises:
            ValueError: Neither `weights` nor `top_k` was recorded, or `element` is out of range.
        """
        return tables.weights_table(self._calls, element, self.tokens_of(element))

    def distances(self, *, unit: Literal["patches", "pixels"] = "patches", element: int = 0) -> Any:
        r"""Return a table of the mean attention distance of each head: how far it looks on an image.

        $$ D = \operatorname{mean}_i \frac{\sum_j w_{ij} \lVert p_i - p_j \rVert}{\sum_j w_{ij}} $$

        where i and j are patches of the same grid, and p are their centres. Weights of other tokens do not count.

        Args:
            unit: Whether the distance is in patches, or in pixels of the image that you passed to `dikkat.Grid`.
            element: The element of the batch. The paper takes the mean over many images.

        Returns:
            A `pandas.DataFrame`, or a NumPy record array if pandas is not installed: layer, module, head, distance.

        Raises:
            ValueError: Some weights were not recorded, no self-attention has tokens with a grid, or `unit` is unknown
                or needs an image.

        Source:
            Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", section 4.5 and figure 7.
        """
        return distances_table(self._calls, element, self.tokens_of(element), unit)

    def contacts(self, *, residues: slice = slice(1, -1)) -> Tensor:
        r"""Return the (B, layers · heads, n, n) symmetric, average-product corrected weights of a protein's residues.

        $$ S = A + A^\top, \qquad F_{ij} = S_{ij} - \frac{\sum_k S_{ik} \, \sum_k S_{kj}}{\sum_{kl} S_{kl}} $$

        A logistic regression of these maps predicts contacts, such as `model.esm.contact_head.regression` of ESM in
        transformers.

        Args:
            residues: The positions of the residues. By default, all but the first and the last token.

        Raises:
            ValueError: As in `attentions`, or layers have different lengths.

        Source:
            Rao et al. 2021, "Transformer protein language models are unsupervised structure learners", section 3.
        """
        return contact_maps(self.attentions(), residues)

    def figure(
        self, layer: int, head: int, *, kind: Literal["lines", "map", "image"] = "lines", query: int | None = None,
        element: int = 0,
    ) -> Any:  # fmt: skip
        """Return a figure of a head, in the width of a column of a paper.

        Weights that were not recorded count as 0. In a difference, blue is more weight, orange is less, and the largest
        difference is opaque.

        Args:
            layer: The layer, as in `trace[layer, head]`.
            head: The head.
            kind: "lines" for two columns of tokens with lines whose opacity is the weight, "map" for a heat map,
                "image" for the weights of the keys on the image of their `dikkat.Grid`, or below their `Times`.
            query: With "image", the position of the query; None for the mean over all queries without padding.
            element: The element of the batch.

        Returns:
            A `matplotlib.figure.Figure`, which `dikkat.show.save` writes.

        Raises:
            IndexError: The layer, head or query was not recorded.
            ValueError: `kind` is unknown, there are more than 100 tokens for lines, no key is in a grid or time axis,
                only the largest weights are known for an image, or as in `frame`.
            ModuleNotFoundError: matplotlib is not installed.
        """
        from dikkat.show.figures import draw_head, draw_layouts

        if query is not None and kind != "image":
            raise ValueError(f"query: got {query} with kind={kind!r}; expected kind='image'")
        call, record = self._layer(layer)
        record.of_head(head)  # raises IndexError
        index = head if head < 0 else tables.heads_of(record).index(head)
        weights, queries, keys = tables.head_weights(call, record, index, element, self.tokens_of(element))
        if kind == "image":
            layouts = tables.layouts_of(call.kind, record, self.tokens_of(element))
            row, number = tables.query_weights(call, record, index, element, layouts, query)
            name = "mean of all queries" if number is None else queries[number]
            return draw_layouts(row, ", ".join(filter(None, [name, self._division])), layouts[1])
        return draw_head(weights, queries, keys, kind=kind, title=self._division)

    def rollout(self) -> Tensor:
        r"""Return the (B, n, n) share of each input position in each output position, if only weights mixed positions.

        $$ R = \tilde A_L \cdots \tilde A_1, \qquad \tilde A_l = \tfrac12 \operatorname{mean}_h A_{lh} + \tfrac12 I,
           \text{ rows scaled to a sum of 1} $$

        Raises:
            ValueError: Some weights were not recorded, no self-attention ran, or its layers have several lengths.

        Source:
            Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.
        """
        attentions = self.attentions()
        kind = "self" if attentions else "encoder"
        chain = [(call.reads, call.writes) for call, _ in self._calls if call.kind == kind]
        return rolled_out(attentions or attentions.encoder_attentions, chain)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to one safetensors file.

        A tensor's name is `<module>:<call>:<field>`, such as `encoder.self_attn:0:sums`.

        Args:
            path: The file; its folder must exist.

        Raises:
            OSError: The system could not write; an existing file is unchanged.
            ModuleNotFoundError: safetensors is not installed.
        """
        with require_extra("translation"):
            from safetensors.torch import save
        tensors = {f"{n}:{i}:{key}": t.contiguous() for n, i, record in self for key, t in record.tensors().items()}
        content = header(_FORMAT, _VERSION) | {
            "calls": [[*call, record.shape, record.positions] for call, record in self._calls],
            **describe_tokens(self._tokens), "withheld": self.withheld, "spans": self.spans, "neutral": self.neutral,
        }  # fmt: skip
        write_whole(path, save(tensors, metadata={"dikkat": json.dumps(content)}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        """Read a file that `save` wrote.

        Args:
            path: The file.

        Raises:
            ValueError: The file is truncated, damaged, no trace, or has another version.
            OSError: The file cannot be read.
            ModuleNotFoundError: safetensors is not installed.

        Example:
            >>> import tempfile, torch, dikkat
            >>> layer, x = dikkat.MultiHeadAttention(6, 2), torch.randn(1, 5, 6)
            >>> with dikkat.record(layer, entropy=True) as trace:
            ...     _ = layer(x, x, x)
            >>> path = tempfile.mkdtemp() + "/trace.safetensors"
            >>> trace.save(path)
            >>> torch.equal(Trace.load(path)[""].entropy, trace[""].entropy)
            True
        """
        with require_extra("translation"):
            from safetensors import SafetensorError
            from safetensors.torch import load
        data = read_regular(path, most=_MAX_BYTES)
        try:
            tensors = load(data)
            start = int.from_bytes(data[:8], "little")
            metadata = parse_json(data[8 : 8 + start]).get("__metadata__", {})
            content = parse_json(metadata.get("dikkat", "null").encode())
        except (SafetensorError, ValueError, KeyError, AttributeError) as error:
            raise ValueError(f"{os.fspath(path)}: truncated, damaged or not a trace ({error})") from error
        try:
            return cls._parse(check_header(content, _FORMAT, (_VERSION,), "record again"), tensors)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None

    @classmethod
    def _parse(cls, content: Mapping[str, object], tensors: dict[str, torch.Tensor]) -> "Trace":
        order = content.get("calls")
        if not isinstance(order, list) or not all(map(is_call, order)):
            raise ValueError("calls: got a malformed list; expected module, run, layer ... of each call. Record again")
        trace, recorded, counts = cls(), defaultdict[tuple[str, str], dict[str, Any]](dict), Counter[str]()
        for key, tensor in tensors.items():
            name, number, field = [*key.rsplit(":", 2), "", ""][:3]
            recorded[name, number][field] = tensor
        for name, *call, shape, positions in order:
            stored = recorded.pop((name, str(counts[name])), {})
            if not stored or not stored.keys() <= _FIELDS:
                raise ValueError(f"{name}:{counts[name]}: got {', '.join(stored) or 'no tensor'}; expected fields of "
                                 "`Inspection`. Record again")  # fmt: skip
            counts[name] += 1
            record = Inspection(**stored, shape=tuple(shape), positions=(positions[0], positions[1]))
            trace._calls.append((Call(name, *call), record))
        for (name, number), stored in recorded.items():
            raise ValueError(f"{name}:{number}:{next(iter(stored))}: got a tensor that belongs to no call; expected "
                             "<module>:<call>:<field>")  # fmt: skip
        trace._tokens, trace.withheld = parse_tokens(content), str(content.get("withheld", ""))
        trace.spans, trace.neutral = parse_spans(content.get("spans", [])), str(content.get("neutral", ""))
        return trace

    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        tokens: Tokens | Sequence[Tokens] | None = None,
        element: int | Sequence[int] = 0,
        title: str = PAGE_TITLE,
        effects: Any = None,
    ) -> None:
        """Write one self-contained page with pictures of all calls.

        With `weights` or `top_k`, the page has lines from token to token, all heads as small maps, and what each head
        attends to. It has maps of sums, rows, entropies and overviews.

        Args:
            path: The file; its folder must exist.
            tokens: The tokens of queries and keys, in the forms of `Trace.tokens`, or a list of such tokens for several
                elements. None for the tokens of the trace.
            element: The element of the batch on the page, or several to choose from, negative from the end.
            title: The heading.
            effects: A table of `dikkat.effects`, by which the page ranks and colours the heads. If it has only
                estimates, the page shows these.

        Raises:
            ValueError: The trace has nothing to draw (the message names the argument to add), tokens have another
                length, `element` is out of range, or `effects` lacks a column or has heads that the trace lacks.
            TypeError: Tokens are not strings.
            OSError: The system could not write; an existing file is unchanged.
        """
        write_whole(path, self._page(title, element, tokens, effects))

    def _repr_html_(self) -> str:
        page = html.escape(self._page(PAGE_TITLE, 0, None), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 46rem; border: 0"></iframe>'

    def _page(self, title: str, element: int | Sequence[int], tokens: Any, effects: Any = None) -> str:
        from dikkat.show.calls import calls_page

        if effects is not None and self.withheld == _DIFFERENCE:
            raise ValueError(f"effects: {_DIFFERENCE}")
        measured = None if effects is None else tables.effects_by_head(effects, self._calls)
        cards, views, images = list[tuple[str, Any]](), list[dict[str, Any]](), list[Any]()
        for number, element_tokens in self._by_element(tokens, element):
            element_cards, layers = content_of_page(self._calls, number, element_tokens, measured)
            cards = cards or element_cards
            shown, elements = (None, 1) if isinstance(element, int) else (number, len(element))
            views += views_of(layers, element_tokens, shown, images, elements)
        if effects is not None and not views:
            raise ValueError("effects: got a recording without weights or top_k; expected weights=True or top_k=8")
        title = ", ".join(filter(None, [title, self._division]))
        views = [view | {"note": self._division} for view in views]
        return calls_page(cards, title=title, count=len(self), views=views, images=images)

    @property
    def _division(self) -> str:
        return f"divided by the weights for {self.neutral!r}" if self.neutral else ""


def _by_run(calls: Iterable[tuple[int, Tensor]]) -> tuple[Any, ...]:
    """Return a tuple of weights for each run, or only the tuple of a single run."""
    runs: dict[int, list[Tensor]] = {}
    for run, weights in calls:
        runs.setdefault(run, []).append(weights)
    by_run = tuple(map(tuple, runs.values()))
    return by_run[0] if len(by_run) == 1 else by_run
