"""Records of a model's calls, by module and call: in memory, in a file, and as a page."""

import html
import itertools
import json
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dikkat.extras import needing
from dikkat.inspection.front import of_all_weights
from dikkat.inspection.heads import Scores, scores_of
from dikkat.inspection.relevance import rolled_out
from dikkat.inspection.request import Inspection, Request
from dikkat.inspection.tables import keys_of, known_of, scores_table, weights_table
from dikkat.show.views import CELLS, TOP, Layer, Token, Tokens, tokens_of, views_of
from dikkat.storage.files import parse_json, read_regular, write_whole
from dikkat.storage.headers import check_header, header

_FORMAT, _VERSION = "dikkat trace", 4
_LARGEST = 2**36  # bytes of a file that is read
_FIELDS = {field.name for field in fields(Inspection)} - {"shape", "positions"}
OWN = "by its own softmax"


class Attentions(tuple[Any, ...]):
    """Weights as transformers returns them: a tuple of (B, H, n, m) for each layer.

    Of a model that ran several times, as in `generate`, it is a tuple for each run, of one for each layer. Which layers
    belong to it is said by a model's configuration; nothing that attended is missing in `by_name`.

    Attributes:
        encoder_attentions: Those of the encoder beside a decoder, a tuple of each layer's; () for other models.
        cross_attentions: Those with which a decoder looks at an encoder, as the tuple itself; () where there are none.
        by_name: Of every module that attended the weights of each of its calls: those above, and poolings, towers,
            predictors and the like.
        source: "returned by the model" if they were not recorded; "by its own softmax" if some are from a softmax of
            the model's own; else "".
    """

    encoder_attentions: tuple[Tensor, ...]
    cross_attentions: tuple[Any, ...]
    by_name: dict[str, tuple[Tensor, ...]]
    source: str

    def __new__(
        cls,
        own: Iterable[Any],
        encoder: Iterable[Tensor] = (),
        cross: Iterable[Any] = (),
        by_name: Mapping[str, tuple[Tensor, ...]] | None = None,
        source: str = "",
    ) -> "Attentions":
        """The weights by layer, those of other kinds, and all by name."""
        made = super().__new__(cls, own)
        made.encoder_attentions, made.cross_attentions = tuple(encoder), tuple(cross)
        made.by_name, made.source = dict(by_name or {}), source
        return made

    def __repr__(self) -> str:
        """How many layers there are of each kind, and every module with the shape of its weights."""
        parts = {"": self, "encoder_attentions": self.encoder_attentions, "cross_attentions": self.cross_attentions}
        said = [f"{len(each)} {name}".rstrip() for name, each in parts.items() if each or not name]
        calls = [f"  {name!r}: {len(each)} × {tuple(each[0].shape)}" for name, each in self.by_name.items()]
        parts_of = ", ".join([*said, self.source] if self.source else said)
        return "\n".join([f"Attentions of {parts_of}; by_name:", *calls])


class Call(NamedTuple):
    """A call of attention.

    Attributes:
        name: The module.
        run: How often the whole model had been called.
        layer: Which layer of the model it was of, as they ran; −1 for none.
        kind: "self", "encoder" or "cross", as `Attentions` has them; "" for another.
        source: How its weights were recorded; "" for attention functions.
        reads: The number of the sequence that self-attention reads; −1 for another arrangement of its positions.
        writes: The number of the sequence that it returns.
    """

    name: str
    run: int = 0
    layer: int = -1
    kind: str = "self"
    source: str = ""
    reads: int = 0
    writes: int = 0


class Trace:
    """Records of the calls of a model's attention, in the order in which they came. Made by `dikkat.record`.

    `trace[name]` is the `Inspection` of the one call of a module; of a module that was called several times,
    `trace[name, 0]` is that of the first one, and `trace[name, -1]` that of the last. `trace[10]` is layer 10, and
    `trace[10, 5]` head 5 of it. Layers are counted as they ran: one that ran twelve times is twelve. A notebook shows
    its page, `repr` a table of the layers.

    Attributes:
        withheld: Why `attentions` would lack layers that "eager" returns; "" where it has all.
    """

    def __init__(self) -> None:
        self._calls: dict[str, list[Inspection]] = {}
        self._order: list[Call] = []
        self._tokens: dict[int | None, dict[str, list[Token]]] = {}  # by element; None for those of all others
        self.withheld = ""

    @property
    def tokens(self) -> Mapping[str, list[Token]]:
        """The tokens that queries and keys stand for, on pages and in tables ("self": the text; "encoder": a source).

        Set a list of strings, or of `Token`, or two lists, (source, target): as many as there are queries or keys.
        """
        return MappingProxyType(self._tokens.get(None, {}))

    @tokens.setter
    def tokens(self, given: Tokens) -> None:
        self._tokens = {None: self._checked(given)}

    def set_tokens_of(self, element: int, tokens: Tokens) -> None:
        """Set the tokens of one element of the batch, as `tokens` are set."""
        self._tokens[element] = self._checked(tokens)

    def _tokens_of(self, element: int) -> dict[str, list[Token]]:
        """The tokens of an element, counted from either end."""
        batch = max((math.prod(seen.shape[:-3]) if len(seen.shape) > 3 else seen.shape[0] for _, seen in self.calls()
                     if len(seen.shape) > 2), default=1)  # fmt: skip
        known = {place % batch: tokens for place, tokens in self._tokens.items() if place is not None}
        return known.get(element % batch, self._tokens.get(None, {}))

    def _checked(self, given: Tokens) -> dict[str, list[Token]]:
        tokens = tokens_of(given)
        for kind, labels in tokens.items():
            sizes = sorted(self._sizes(kind))
            if self._order and len(labels) not in sizes:
                wanted = " or ".join(map(str, sizes)) or "none, as nothing looks at a source"
                if len(sizes) > 3:
                    wanted = f"{sizes[0]} to {sizes[-1]}"
                raise ValueError(
                    f"tokens: got {len(labels)} ({kind!r}); "
                    f"expected {wanted}, as there are queries or keys, padding among them"
                )
        return tokens

    def _sizes(self, kind: str) -> set[int]:
        """How many tokens there may be: of a source as many as keys, of a text as queries or keys."""
        found = set[int]()
        for call, seen in self.calls():
            _, queries, keys = seen.sizes
            first, first_key = seen.positions
            if kind == "encoder":
                found |= {keys} if call.kind in ("encoder", "cross") or first_key < 0 else set()
            elif call.kind != "encoder":
                found |= {first + queries} if first_key < 0 else {first + queries, first_key + keys}
            if call.run > self._order[0].run and found:  # the last token that was written is no query
                found.add(max(found) + 1)
        return found - {0}

    def add(self, seen: Inspection, call: Call) -> None:
        """Add what was recorded of a call, as copies on the CPU."""
        copies: dict[str, Any] = {field: tensor.detach().cpu().clone() for field, tensor in seen.tensors().items()}
        self._calls.setdefault(call.name, []).append(replace(seen, **copies))
        self._order.append(call)

    def keep(self, wanted: Callable[[Call], bool]) -> None:
        """Keep some calls alone."""
        kept = [(call, seen) for call, seen in self.calls() if wanted(call)]
        self._order, self._calls = [call for call, _ in kept], {}
        for call, seen in kept:
            self._calls.setdefault(call.name, []).append(seen)

    def set_kinds(self, kinds: Iterable[str]) -> None:
        """Say of each call what it is of a model."""
        self._order = [call._replace(kind=kind) for call, kind in zip(self._order, kinds, strict=True)]

    @property
    def names(self) -> list[str]:
        """The modules that attended, in the order of their first calls; the model itself is ''."""
        return list(self._calls)

    def count(self, name: str) -> int:
        """The number of calls of a module."""
        return len(self._of(name))

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[tuple[str, int, Inspection]]:
        """Every call: the module's name, the call's number among its own, what it looked at."""
        for name, calls in self._calls.items():
            for index, seen in enumerate(calls):
                yield name, index, seen

    def calls(self) -> Iterator[tuple[Call, Inspection]]:
        """Every call in the order in which they came, with what it looked at."""
        counts = Counter[str]()
        for call in self._order:
            yield call, self._calls[call.name][counts[call.name]]
            counts[call.name] += 1

    def __getitem__(self, which: str | int | tuple[str, int] | tuple[int, int]) -> Inspection:
        """The only call of a module, or one of its calls; a layer, or a head of it.

        Raises:
            KeyError: No such module attended.
            IndexError: There are fewer calls, layers or heads.
            ValueError: There are several, and no number was given.
        """
        if isinstance(which, int):
            return self._layer(which)
        if isinstance(which, tuple):
            name, index = which
            if isinstance(name, int):
                return self._layer(name).of_head(index)
            calls = self._of(name)
            if not -len(calls) <= index < len(calls):
                raise IndexError(
                    f"trace[{name!r}, {index}]: got call {index}; expected {-len(calls)} to {len(calls) - 1}"
                )
            return calls[index]
        calls = self._of(which)
        if len(calls) > 1:
            raise ValueError(
                f"trace[{which!r}]: got a module that was called {len(calls)} times; expected which call as well: "
                f"trace[{which!r}, 0] to trace[{which!r}, {len(calls) - 1}]"
            )
        return calls[0]

    def _of(self, name: str) -> list[Inspection]:
        if name not in self._calls:
            raise KeyError(f"trace[{name!r}]: got no such module; expected one of {', '.join(map(repr, self._calls))}")
        return self._calls[name]

    def _layer(self, number: int) -> Inspection:
        """The only call of a layer; of a model without layers in lists, the calls are its layers."""
        numbered = [call.layer for call in self._order]
        layers = numbered if max(numbered, default=-1) >= 0 else list(range(len(numbered)))
        wanted = number if number >= 0 else max(layers, default=-1) + 1 + number
        found = [pair for layer, pair in zip(layers, self.calls(), strict=True) if layer == wanted]
        if not found or wanted < 0:
            there = ", ".join(map(str, sorted({layer for layer in layers if layer >= 0})))
            raise IndexError(f"trace[{number}]: got no such layer; expected one of {there}")
        if len(found) > 1:
            names = ", ".join(dict.fromkeys(repr(call.name) for call, _ in found))
            raise ValueError(
                f"trace[{number}]: got a layer that attended {len(found)} times; expected the module, and which of its "
                f"calls: trace[name, call], of {names}"
            )
        return found[0][1]

    def __repr__(self) -> str:
        """The layers: their number, module, shape, and what was recorded."""
        rows = [("layer", "kind", "heads × queries × keys", "recorded", f"module (Trace of {len(self)} calls)")]
        for call, seen in self.calls():
            layer, kind = "" if call.layer < 0 else str(call.layer), call.kind or "other"
            recorded = " ".join(filter(None, [", ".join(seen.tensors()), call.source]))
            rows.append((layer, kind, " × ".join(map(str, seen.sizes)), recorded, call.name or "model"))
        rows = rows if len(rows) <= 10 else [*rows[:8], ("…", "", "", f"{len(rows) - 9} more", ""), rows[-1]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(f"{each:<{width}}" for each, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def attentions(self) -> Attentions:
        """All weights, as `output_attentions=True` returns them with transformers' "eager" attention, before dropout.

        Which layers are in the tuple is said by the configuration of one of Hugging Face's models; of any other it is
        all but cross attention and the encoder beside a decoder. All that attended is in `by_name`. Of a model that ran
        more than once, as in `generate` of more than one token, it has a tuple for each run: with a prompt in parts, or
        an assistant, more or fewer than tokens. Layers are in the order in which they ran.

        Raises:
            ValueError: The recording was made without `weights=True`; layers that the model returns were not seen,
                or it does not say which it returns.
        """
        if self.withheld:
            raise ValueError(f"attentions: {self.withheld}")
        found: dict[str, list[tuple[int, Tensor]]] = {}
        by_name: dict[str, list[Tensor]] = {}
        for call, seen in self.calls():
            if seen.weights is None:
                raise ValueError(f"trace[{call.name!r}]: got no whole map; expected a recording with weights=True")
            found.setdefault(call.kind, []).append((call.run, seen.weights))
            by_name.setdefault(call.name, []).append(seen.weights)
        encoder = [weights for _, weights in found.get("encoder", ())]
        everything = {name: tuple(each) for name, each in by_name.items()}
        source = OWN if any(call.source for call in self._order) else ""
        return Attentions(_by_run(found.get("self", ())), encoder, _by_run(found.get("cross", ())), everything, source)

    def scores(self, *, element: int = 0) -> Any:
        r"""What each head does: a table with a row for each head, of scores in 0 … 1.

        $$ s = \max\Big(0, \operatorname{mean}_i \frac{\sum_{j \in J_i} w_{ij} - u_i}{1 - u_i}\Big), \qquad
           u_i = \frac{|J_i|}{c_i}, \qquad
           \text{evenly} = \operatorname{mean}_i \frac{\sum_j \min(w_{ij}, 1 / c_i) - 1 / c_i}{1 - 1 / c_i}, \qquad
           \text{information} = \frac{H(\bar w) - \operatorname{mean}_i H(w_i)}{\log \min(n, m)} $$

        where means are over the queries that see more than one key, c_i is how many keys query i sees, u_i what J_i has
        of weight that is spread evenly, w̄ the mean row, H the entropy, and J_i are, of query i:

        | column | the keys |
        | --- | --- |
        | `previous`, `next` | the one before it, the one behind it (of heads that look ahead) |
        | `itself` | itself |
        | `first` | the first one |
        | `same` | the others with its token; of the queries that have such |
        | `induction` | those behind an earlier one with its token; of the queries that have such |
        | `separator` | the special tokens but the first; of the queries that see one and are none |

        `looks` is what the head does most, of as many queries as `queries` says: the column of the largest share, where
        a share of k queries counts (k − 1) / (k + 1), and "evenly" only if no other of these reaches 0.2. Padding is
        neither a query nor the first key. `information` how much the query tells of where the head looks: 0
        where all queries look alike. Where only the largest weights were recorded, a query's others count as equal.

        Args:
            element: Which element of the batch.

        Returns:
            A `pandas.DataFrame`, or where pandas is not installed a NumPy record array: layer, module, kind, head,
            looks, the shares, information. NaN for what cannot be said: without tokens, or of cross attention.

        Raises:
            ValueError: Neither the weights nor the largest of them were recorded; no such element.

        Source:
            Previous, first and same: Clark et al. 2019, section 3; induction: Olsson et al. 2022.
        """
        return scores_table(self._rows(element), self._tokens_of(element))

    def frame(self, *, element: int = 0) -> Any:
        """Every weight above 0 that was recorded, all or the largest of each query, as a table.

        Args:
            element: Which element of the batch.

        Returns:
            A `pandas.DataFrame`, or where pandas is not installed a NumPy record array: layer, module, head, query,
            key, weight; with tokens also query_token, key_token.

        Raises:
            ValueError: Neither the weights nor the largest of them were recorded; no such element.
        """
        return weights_table(self._rows(element), self._tokens_of(element))

    def rollout(self) -> Tensor:
        r"""How much of each input position is in each output position, if weights alone moved it: (B, n, n).

        $$ R = \tilde A_L \cdots \tilde A_1, \qquad \tilde A_l = \tfrac12 \operatorname{mean}_h A_{lh} + \tfrac12 I,
           \text{ rows made to add up to 1} $$

        Raises:
            ValueError: Not all weights were recorded; the layers of self-attention have several lengths, or none ran.

        Source:
            Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.
        """
        found = self.attentions()
        kind = "self" if found else "encoder"
        chain = [(call.reads, call.writes) for call in self._order if call.kind == kind]
        return rolled_out(found or found.encoder_attentions, chain)

    def _rows(self, element: int) -> Iterator[tuple[int, str, str, Inspection]]:
        """One element of every call, as tables take it."""
        for call, seen in self.calls():
            yield call.layer, call.name, call.kind, seen.of_batch(element)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all to one safetensors file, whole or not at all.

        A tensor is called `<module>:<call>:<what>`, such as `encoder.self_attn:0:sums`.

        Args:
            path: The file; its folder must exist.

        Raises:
            OSError: The system could not write; an existing file is left as it was.
            ModuleNotFoundError: safetensors is not installed.
        """
        with needing("translation"):
            from safetensors.torch import save
        tensors = {f"{n}:{i}:{what}": t.contiguous() for n, i, seen in self for what, t in seen.tensors().items()}
        content = header(_FORMAT, _VERSION) | {
            "calls": [[*call, seen.shape, seen.positions] for call, seen in self.calls()],
            "tokens": [*self._tokens.items()], "withheld": self.withheld,
        }  # fmt: skip
        write_whole(path, save(tensors, metadata={"dikkat": json.dumps(content)}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        """Read what `save` wrote.

        Args:
            path: The file.

        Raises:
            ValueError: The file is truncated, damaged, no trace, or of another version.
            OSError: It cannot be read.
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
        with needing("translation"):
            from safetensors import SafetensorError
            from safetensors.torch import load
        data = read_regular(path, most=_LARGEST)
        try:
            tensors = load(data)
            start = int.from_bytes(data[:8], "little")
            metadata = parse_json(data[8 : 8 + start]).get("__metadata__", {})
            content = parse_json(metadata.get("dikkat", "null").encode())
        except (SafetensorError, ValueError, KeyError, AttributeError) as error:
            raise ValueError(f"{os.fspath(path)}: truncated, damaged or no trace ({error})") from error
        try:
            return cls._parsed(check_header(content, _FORMAT, (_VERSION,), "record again"), tensors)
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None

    @classmethod
    def _parsed(cls, content: Mapping[str, object], tensors: dict[str, torch.Tensor]) -> "Trace":
        """The trace of a file's content."""
        order, labels = content.get("calls"), content.get("tokens")
        if not isinstance(order, list) or not all(map(_is_call, order)):
            raise ValueError("calls: got something else; expected each call's module, run, layer ... Record again")
        made, recorded = cls(), defaultdict[tuple[str, str], dict[str, Any]](dict)
        for key, tensor in tensors.items():
            name, number, what = [*key.rsplit(":", 2), "", ""][:3]
            recorded[name, number][what] = tensor
        for *call, shape, positions in order:
            calls = made._calls.setdefault(call[0], [])
            named = recorded.pop((call[0], str(len(calls))), {})
            if not named or not named.keys() <= _FIELDS:
                raise ValueError(f"{call[0]}:{len(calls)}: got {', '.join(named) or 'no tensor'}; expected what was "
                                 "recorded. Record again")  # fmt: skip
            calls.append(Inspection(**named, shape=tuple(shape), positions=(positions[0], positions[1])))
            made._order.append(Call(*call))
        for (name, number), named in recorded.items():
            raise ValueError(f"{name}:{number}:{next(iter(named))}: got a tensor that belongs to no call; expected "
                             "<module>:<call>:<what>")  # fmt: skip
        made._tokens, made.withheld = _tokens(labels), str(content.get("withheld", ""))
        return made

    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        tokens: Tokens | Sequence[Tokens] | None = None,
        element: int | Sequence[int] = 0,
        title: str = "What the model looks at",
    ) -> None:
        """Write one self-contained page with pictures of all calls, to move about in, whole or not at all.

        Where all weights were recorded, or the largest of each query, the page has lines from token to token, all heads
        as small maps, and what each head does; of sums, rows, entropies and overviews it has maps.

        Args:
            path: The file; its folder must exist.
            tokens: What queries and keys are, as `tokens` takes them; those of the trace, where not given. Of several
                elements a list, with those of each.
            element: Which element of a batch is shown, counted from the end below 0; of several, a choice on the page.
            title: The heading.

        Raises:
            ValueError: Nothing that was recorded can be drawn, with the argument to add; tokens of another length; no
                such element.
            TypeError: Tokens that are no strings.
            OSError: The system could not write; an existing file is left as it was.
        """
        write_whole(path, self._page(title, element, tokens))

    def _repr_html_(self) -> str:
        """The page, in a frame for notebooks."""
        page = html.escape(self._page("What the model looks at", 0, None), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 46rem; border: 0"></iframe>'

    def _page(self, title: str, element: int | Sequence[int], tokens: Any) -> str:
        from dikkat.show.calls import calls_page

        one = isinstance(element, int)
        elements: Any = [element] if one else element
        named = [tokens] * len(elements) if one or tokens is None else tokens
        if len(named) != len(elements):
            raise ValueError(f"tokens: got {len(named)} lists; expected {len(elements)}, as there are elements to show")
        cards, views = list[tuple[str, Any]](), list[dict[str, Any]]()
        for number, labels in zip(elements, named, strict=True):
            own = self._tokens_of(number) if labels is None else self._checked(labels)
            maps, layers = self._pictures(number, own)
            cards = cards or maps
            views += views_of(layers, own, None if one else number)
        return calls_page(cards, title=title, count=len(self), views=views)

    def _pictures(self, element: int, tokens: Mapping[str, list[Token]]) -> tuple[list[tuple[str, Any]], list[Layer]]:
        """The maps of an element, and the layers that are drawn as lines."""
        groups, cards = dict[tuple[str, int], list[tuple[Call, str, Inspection]]](), list[tuple[str, Any]]()
        counts, in_run = Counter[str](), Counter[tuple[str, int]]()
        for call, seen in self.calls():
            several = len(self._calls[call.name]) > 1
            name = f"{call.name or 'model'} · {counts[call.name]}" if several else call.name or "model"
            own = seen.of_batch(element)
            drawn = _drawn(own)
            if drawn is not None:
                label = call.name if call.layer >= 0 and call.run == self._order[0].run else name
                groups.setdefault((call.name, in_run[call.name, call.run]), []).append((call, label, drawn))
            if drawn is None or own.tensors().keys() & {"rows", "sums", "entropy"}:
                cards.append((name, own.tensors() if element else seen.tensors()))
            counts[call.name] += 1
            in_run[call.name, call.run] += 1
        layers = []
        for call, label, seen in itertools.chain.from_iterable(map(_joined, groups.values())):
            known = known_of(seen, call.kind)
            found = Scores({}, [], []) if known is None else scores_of(known, keys_of(known, call.kind, tokens))
            looks = list(zip(found.looks, found.asked, strict=True))
            seen = _in_the_text(seen)
            layers.append(Layer(label, call.layer, call.kind, seen.sizes, seen.tensors(), found.shares, looks))
        return cards, layers


def _drawn(seen: Inspection) -> Inspection | None:
    """The largest weights (H, n, k) with their keys and the map (H, a, b) of a call; None where none was recorded."""
    found = seen
    if seen.weights is not None:
        request = Request(top_k=TOP, overview=CELLS, pool="max")
        found = of_all_weights(seen.weights[..., 0], seen.weights, request)
    if found.top_weights is None or found.top_keys is None:
        return None
    return Inspection(
        top_weights=found.top_weights, top_keys=found.top_keys, overview=found.overview, heads=seen.heads,
        queries=seen.queries, shape=seen.shape, positions=seen.positions, hidden=seen.hidden,
    )  # fmt: skip


def _in_the_text(seen: Inspection) -> Inspection:
    """A call with its keys from position 0 on, and the positions of its queries."""
    (first, first_key), (heads, count, keys) = seen.positions, seen.sizes
    queries = seen.queries
    if first:
        queries = (torch.arange(count) if queries is None else queries) + first
    if first_key <= 0 or seen.top_keys is None:
        return replace(seen, queries=queries, hidden=None)
    top_keys = torch.where(seen.top_keys < 0, seen.top_keys, seen.top_keys + first_key)
    shape = (1, heads, count, first_key + keys)
    return replace(seen, top_keys=top_keys, queries=queries, overview=None, hidden=None, shape=shape)


def _joined(runs: Sequence[tuple[Call, str, Inspection]]) -> Iterator[tuple[Call, str, Inspection]]:
    """A module's runs; those that write a text on, each with keys for what it adds, as one."""
    whole: tuple[Call, str, Inspection] | None = None
    for call, label, seen in runs:
        if whole is not None:
            first, name, so_far = whole
            kept = seen.positions[0] - so_far.positions[0]
            alike = call.kind == first.kind and (seen.positions[1] >= 0 or so_far.sizes[2] == seen.sizes[2])
            if alike and call.run > first.run and 0 < kept <= so_far.sizes[1] and seen.queries is None:
                whole = first, name, _continued(so_far, seen, kept)
                continue
            yield whole
        whole = call, label, seen
    if whole is not None:
        yield whole


def _continued(whole: Inspection, seen: Inspection, kept: int) -> Inspection:
    """The first queries of a text, and those that follow them in a later run."""
    (first, first_key), (heads, count, keys) = seen.positions, seen.sizes
    before, after = _in_the_text(whole), _in_the_text(seen)
    tops = {what: torch.cat([before.tensors()[what][:, :kept], after.tensors()[what]], -2)
            for what in ("top_weights", "top_keys")}  # fmt: skip
    hidden = seen.hidden
    if first_key >= 0 and hidden is not None and whole.hidden is not None:
        new = hidden[:, first - first_key :][:, :count]
        hidden = torch.cat([whole.hidden[:, :first], new], -1)
        keys = first + count
    return Inspection(
        **tops, hidden=hidden, heads=seen.heads, shape=(1, heads, kept + count, keys),
        positions=(whole.positions[0], min(first_key, 0)),
    )  # fmt: skip


def _is_call(entry: object) -> bool:
    if not isinstance(entry, list) or [*map(type, entry)] != [*map(type, Call("")), list, list]:
        return False
    return entry[1] >= 0 and len(entry[-1]) == 2 and all(type(size) is int for size in (*entry[-2], *entry[-1]))


def _tokens(content: object) -> dict[int | None, dict[str, list[Token]]]:
    """The labels of a file, by element, checked."""
    found = dict[int | None, dict[str, list[Token]]]()
    for pair in content if isinstance(content, list) else [None]:
        labelled: Any = pair if isinstance(pair, list) and len(pair) == 2 else (0, None)
        element, kinds = labelled
        checked = isinstance(kinds, dict) and (element is None or type(element) is int)
        if not checked or not all(isinstance(each, list) and all(map(_is_token, each)) for each in kinds.values()):
            raise ValueError("tokens: got something else; expected each element's labels. Record again")
        found[element] = {kind: [Token(*entry) for entry in entries] for kind, entries in kinds.items()}
    return found


def _is_token(entry: object) -> bool:
    return isinstance(entry, list) and [type(part) for part in entry] == [str, bool, bool]


def _by_run(calls: Iterable[tuple[int, Tensor]]) -> tuple[Any, ...]:
    """The weights of each run in a tuple; those of a single run as they are."""
    runs: dict[int, list[Tensor]] = {}
    for run, weights in calls:
        runs.setdefault(run, []).append(weights)
    parts = tuple(map(tuple, runs.values()))
    return parts[0] if len(parts) == 1 else parts
