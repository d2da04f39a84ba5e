"""Records of a model's calls, by module and call: in memory, in a file, and as a page."""

import html
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
from dikkat.inspection.heads import scores_of
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

    If the model ran several times, as in `generate`, it is a tuple for each run, of one for each layer. The model's
    configuration says which layers belong to it. `by_name` has the weights of every module.

    Attributes:
        encoder_attentions: The weights of an encoder's layers if the model has a decoder too; else ().
        cross_attentions: The weights with which a decoder looks at an encoder, in the form of the tuple itself; or ().
        by_name: The weights of each call of every module, including poolings, towers and predictors.
        source: "returned by the model" if they were not recorded; "by its own softmax" if some are from a softmax of
            the model's own; else "".
    """

    encoder_attentions: tuple[Tensor, ...]
    cross_attentions: tuple[Any, ...]
    by_name: dict[str, tuple[Tensor, ...]]
    source: str

    def __new__(
        cls, own: Iterable[Any], encoder: Iterable[Tensor], cross: Iterable[Any],
        by_name: dict[str, tuple[Tensor, ...]], source: str,
    ) -> "Attentions":  # fmt: skip
        """The weights by layer, those of other kinds, and all by name."""
        made = super().__new__(cls, own)
        made.encoder_attentions, made.cross_attentions = tuple(encoder), tuple(cross)
        made.by_name, made.source = by_name, source
        return made

    def __repr__(self) -> str:
        """The number of layers of each kind, and every module with the shape of its weights."""
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
    """Records of a model's calls of attention, in the order in which they ran, made by `dikkat.record`.

    `trace[name]` is the `Inspection` of the only call of a module. If the module was called several times,
    `trace[name, 0]` is the first call and `trace[name, -1]` the last. `trace[10]` is layer 10, and `trace[10, 5]` is
    its head 5. A layer that ran twelve times counts as twelve layers. A notebook shows a trace as its page.

    Attributes:
        withheld: Why `attentions` would lack layers that "eager" attention returns; "" if it has all.
        lacking: The kinds of the layers that were not recorded, if it lacks some; all kinds if these are not known.
    """

    def __init__(self) -> None:
        self._calls: list[tuple[Call, Inspection]] = []
        self._tokens: dict[int | None, dict[str, list[Token]]] = {}  # by element; None for all other elements
        self.withheld, self.lacking = "", {"self", "encoder", "cross"}

    @property
    def tokens(self) -> Mapping[str, list[Token]]:
        """The tokens that queries and keys stand for, on pages and in tables ("self": the text; "encoder": a source).

        Set a list of strings, or of `Token`, or two lists, (source, target): as many as there are queries or keys.
        """
        return MappingProxyType(self._tokens.get(None, {}))

    @tokens.setter
    def tokens(self, given: Tokens) -> None:
        self._tokens = {None: self._checked(given)}

    def set_tokens(self, tokens: Any, element: int | Sequence[int]) -> None:
        """Set the tokens of all elements of the batch, or a list with the tokens of each of several elements."""
        by_element = self._by_element(tokens, element)
        self._tokens = {None: by_element[0][1]} if isinstance(element, int) else dict[int | None, Any](by_element)

    def _by_element(self, tokens: Any, element: int | Sequence[int]) -> list[tuple[int, dict[str, list[Token]]]]:
        one = isinstance(element, int)
        if one and isinstance(tokens, list) and len(tokens) == 1 and not isinstance(tokens[0], str | Token):
            tokens = tokens[0]  # the list of a batch of one
        elements: Any = [element] if one else element
        listed = [tokens] * len(elements) if one or tokens is None else tokens
        if len(listed) != len(elements):
            raise ValueError(
                f"tokens: got {len(listed)} lists; expected {len(elements)}, as there are elements to show"
            )
        return [(number, self._tokens_of(number) if each is None else self._checked(each))
                for number, each in zip(elements, listed, strict=True)]  # fmt: skip

    def _tokens_of(self, element: int) -> dict[str, list[Token]]:
        batch = max((math.prod(seen.shape[:-3]) if len(seen.shape) > 3 else seen.shape[0] for _, seen in self._calls
                     if len(seen.shape) > 2), default=1)  # fmt: skip
        known = {place % batch: tokens for place, tokens in self._tokens.items() if place is not None}
        return known.get(element % batch, self._tokens.get(None, {}))

    def _checked(self, given: Tokens) -> dict[str, list[Token]]:
        tokens = tokens_of(given)
        for kind, labels in tokens.items():
            sizes = sorted(self._sizes(kind))
            if self._calls and len(labels) not in sizes:
                wanted = " or ".join(map(str, sizes)) or "none, as nothing looks at a source"
                wanted = wanted if len(sizes) < 4 else f"{sizes[0]} to {sizes[-1]}"
                raise ValueError(f"tokens: got {len(labels)} ({kind!r}); expected {wanted}, as there are queries or "
                                 "keys, padding among them")  # fmt: skip
        return tokens

    def _sizes(self, kind: str) -> set[int]:
        """How many tokens there may be: of a source as many as keys, of a text as queries or keys."""
        found = set[int]()
        for call, seen in self._calls:
            _, queries, keys = seen.sizes
            first, first_key = seen.positions
            if kind == "encoder":
                found |= {keys} if call.kind in ("encoder", "cross") or first_key < 0 else set()
            elif call.kind != "encoder":
                found |= {first + queries} if first_key < 0 else {first + queries, first_key + keys}
            if call.run > self._calls[0][0].run and found:  # the last token that was written is no query
                found.add(max(found) + 1)
        return found - {0}

    def add(self, seen: Inspection, call: Call) -> None:
        """Add what was recorded of a call, as copies on the CPU."""
        copies: dict[str, Any] = {field: tensor.detach().cpu().clone() for field, tensor in seen.tensors().items()}
        self._calls.append((call, replace(seen, **copies)))

    def keep(self, wanted: Callable[[Call], bool]) -> None:
        """Remove all calls that are not wanted."""
        self._calls = [(call, seen) for call, seen in self._calls if wanted(call)]

    def set_kinds(self, kinds: Iterable[str]) -> None:
        """Set the kind of each call."""
        self._calls = [(call._replace(kind=kind), seen) for (call, seen), kind in zip(self._calls, kinds, strict=True)]

    @property
    def names(self) -> list[str]:
        """The modules that attended, in the order of their first calls; the model itself is ''."""
        return list(dict.fromkeys(call.name for call, _ in self._calls))

    def count(self, name: str) -> int:
        """The number of calls of a module."""
        return len(self._of(name))

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[tuple[str, int, Inspection]]:
        """Yield (name, index, record) for every call, module by module."""
        for name in self.names:
            for index, seen in enumerate(self._of(name)):
                yield name, index, seen

    def calls(self) -> Iterator[tuple[Call, Inspection]]:
        """Yield every call with its record, in the order in which they ran."""
        yield from self._calls

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
                raise IndexError(f"trace[{name!r}, {index}]: got call {index}; expected {-len(calls)} to "
                                 f"{len(calls) - 1}")  # fmt: skip
            return calls[index]
        calls = self._of(which)
        if len(calls) > 1:
            raise ValueError(
                f"trace[{which!r}]: got a module that was called {len(calls)} times; expected which call as well: "
                f"trace[{which!r}, 0] to trace[{which!r}, {len(calls) - 1}]"
            )
        return calls[0]

    def _of(self, name: str) -> list[Inspection]:
        found = [seen for call, seen in self._calls if call.name == name]
        if not found:
            raise KeyError(f"trace[{name!r}]: got no such module; expected one of {', '.join(map(repr, self.names))}")
        return found

    def _layer(self, number: int) -> Inspection:
        """The only call of a layer; of a model without layers in lists, the calls are its layers."""
        numbered = [call.layer for call, _ in self._calls]
        layers = numbered if max(numbered, default=-1) >= 0 else list(range(len(numbered)))
        wanted = number if number >= 0 else max(layers, default=-1) + 1 + number
        found = [pair for layer, pair in zip(layers, self._calls, strict=True) if layer == wanted]
        if not found or wanted < 0:
            there = ", ".join(map(str, sorted({layer for layer in layers if layer >= 0})))
            raise IndexError(f"trace[{number}]: got no such layer; expected one of {there}")
        if len(found) > 1:
            names = ", ".join(dict.fromkeys(repr(call.name) for call, _ in found))
            raise ValueError(f"trace[{number}]: got a layer that attended {len(found)} times; expected "
                             f"trace[name, call], with one of the modules {names}")  # fmt: skip
        return found[0][1]

    def __repr__(self) -> str:
        """The layers: their number, module, shape, and what was recorded."""
        rows = [("layer", "kind", "heads × queries × keys", "recorded", f"module (Trace of {len(self)} calls)")]
        for call, seen in self._calls:
            layer, kind = "" if call.layer < 0 else str(call.layer), call.kind or "other"
            recorded = " ".join(filter(None, [", ".join(seen.tensors()), call.source]))
            rows.append((layer, kind, " × ".join(map(str, seen.sizes)), recorded, call.name or "model"))
        rows = rows if len(rows) <= 10 else [*rows[:8], ("…", "", "", f"{len(rows) - 9} more", ""), rows[-1]]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(f"{each:<{width}}" for each, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def attentions(self) -> Attentions:
        """Return all weights before dropout, as "eager" attention in transformers does with `output_attentions=True`.

        The configuration of a model of Hugging Face says which layers are in the tuple. For other models, the tuple has
        all self-attention except an encoder's that has a decoder. Layers are in the order in which they ran. If the
        model ran more than once, as in `generate`, there is a tuple for each run.

        Raises:
            ValueError: The recording was made without `weights=True`; layers that the model returns were not recorded,
                or the model does not say which layers it returns.
        """
        if self.withheld:
            raise ValueError(f"attentions: {self.withheld}")
        found: dict[str, list[tuple[int, Tensor]]] = defaultdict(list)
        by_name: dict[str, tuple[Tensor, ...]] = {}
        for call, seen in self._calls:
            if seen.weights is None:
                raise ValueError(f"trace[{call.name!r}]: got no whole map; expected a recording with weights=True")
            found[call.kind].append((call.run, seen.weights))
            by_name[call.name] = (*by_name.get(call.name, ()), seen.weights)
        encoder = [weights for _, weights in found["encoder"]]
        source = OWN if any(call.source for call, _ in self._calls) else ""
        return Attentions(_by_run(found["self"]), encoder, _by_run(found["cross"]), by_name, source)

    def scores(self, *, element: int = 0) -> Any:
        r"""What each head does: a table with a row for each head, of scores in 0 … 1.

        $$ s = \max\Big(0, \operatorname{mean}_i \frac{\sum_{j \in J_i} w_{ij} - u_i}{1 - u_i}\Big), \qquad
           u_i = \frac{|J_i|}{c_i}, \qquad
           \text{evenly} = \operatorname{mean}_i \frac{\sum_j \min(w_{ij}, 1 / c_i) - 1 / c_i}{1 - 1 / c_i}, \qquad
           \text{information} = \frac{H(\bar w) - \operatorname{mean}_i H(w_i)}{\log \min(n, m)} $$

        where means are over the queries that see more than one key, c_i is how many keys query i sees, u_i what J_i has
        of weight that is spread evenly, w̄ the mean row, H the entropy, n the number of these queries, m the number of
        keys that some query sees, and J_i are, of query i:

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
        return scores_table(self._calls, element, self._tokens_of(element))

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
        return weights_table(self._calls, element, self._tokens_of(element))

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
        chain = [(call.reads, call.writes) for call, _ in self._calls if call.kind == kind]
        return rolled_out(found or found.encoder_attentions, chain)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all to one safetensors file, whole or not at all.

        A tensor's name is `<module>:<call>:<what>`, such as `encoder.self_attn:0:sums`.

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
            "calls": [[*call, seen.shape, seen.positions] for call, seen in self._calls],
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
        order, labels = content.get("calls"), content.get("tokens")
        if not isinstance(order, list) or not all(map(_is_call, order)):
            raise ValueError("calls: got something else; expected each call's module, run, layer ... Record again")
        made, recorded, counts = cls(), defaultdict[tuple[str, str], dict[str, Any]](dict), Counter[str]()
        for key, tensor in tensors.items():
            name, number, what = [*key.rsplit(":", 2), "", ""][:3]
            recorded[name, number][what] = tensor
        for name, *call, shape, positions in order:
            named = recorded.pop((name, str(counts[name])), {})
            if not named or not named.keys() <= _FIELDS:
                raise ValueError(f"{name}:{counts[name]}: got {', '.join(named) or 'no tensor'}; expected what was "
                                 "recorded. Record again")  # fmt: skip
            counts[name] += 1
            seen = Inspection(**named, shape=tuple(shape), positions=(positions[0], positions[1]))
            made._calls.append((Call(name, *call), seen))
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
        """Write one self-contained page with pictures of all calls, whole or not at all.

        If all weights or the largest of each query were recorded, the page has lines from token to token, all heads as
        small maps, and what each head does. Of sums, rows, entropies and overviews it has maps.

        Args:
            path: The file; its folder must exist.
            tokens: What queries and keys are, in the forms of `tokens`; a list with such tokens for each element if
                `element` has several. None for those of the trace.
            element: The element of the batch on the page, or several to choose from, negative from the end.
            title: The heading.

        Raises:
            ValueError: Nothing that was recorded can be drawn (the message has the argument to add); tokens of another
                length; no such element.
            TypeError: Tokens that are no strings.
            OSError: The system could not write; an existing file is left as it was.
        """
        write_whole(path, self._page(title, element, tokens))

    def _repr_html_(self) -> str:
        page = html.escape(self._page("What the model looks at", 0, None), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 46rem; border: 0"></iframe>'

    def _page(self, title: str, element: int | Sequence[int], tokens: Any) -> str:
        from dikkat.show.calls import calls_page

        cards, views = list[tuple[str, Any]](), list[dict[str, Any]]()
        for number, named in self._by_element(tokens, element):
            maps, layers = self._pictures(number, named)
            cards = cards or maps
            views += views_of(layers, named, None if isinstance(element, int) else number)
        return calls_page(cards, title=title, count=len(self), views=views)

    def _pictures(self, element: int, tokens: Mapping[str, list[Token]]) -> tuple[list[tuple[str, Any]], list[Layer]]:
        groups, cards = dict[tuple[str, int], list[tuple[Call, str, Inspection]]](), list[tuple[str, Any]]()
        counts, in_run = Counter[str](), Counter[tuple[str, int]]()
        total = Counter(call.name for call, _ in self._calls)
        for call, seen in self._calls:
            name = (call.name or "model") + (f" · {counts[call.name]}" if total[call.name] > 1 else "")
            own = seen.of_batch(element)
            empty = 0 in seen.shape  # without a query or a key, as of an empty sequence
            drawn = None if empty else _drawn(own)
            if drawn is not None:
                label = call.name if call.layer >= 0 and call.run == self._calls[0][0].run else name
                groups.setdefault((call.name, in_run[call.name, call.run]), []).append((call, label, drawn))
            if not empty and (drawn is None or own.tensors().keys() & {"rows", "sums", "entropy"}):
                cards.append((name, own.tensors() if element else seen.tensors()))
            counts[call.name] += 1
            in_run[call.name, call.run] += 1
        layers = []
        for call, label, seen in (one for group in groups.values() for one in _joined(group)):
            known = known_of(seen, call.kind)
            found, text = scores_of(known, keys_of(known, call.kind, tokens)), _in_the_text(seen)
            looks = [*zip(found.looks, found.asked, strict=True)]
            layers.append(Layer(label, call.layer, call.kind, text.sizes, text.tensors(), found.shares, looks))
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
