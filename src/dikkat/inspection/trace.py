"""Records of a model's calls, by module and call: in memory, in a file, and as a page."""

import html
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from dikkat.extras import needing
from dikkat.inspection.front import of_all_weights
from dikkat.inspection.request import Inspection, Request
from dikkat.show.views import CELLS, TOP, Token, views_of
from dikkat.storage.files import parse_json, read_regular, write_whole
from dikkat.storage.headers import check_header, header

_FORMAT, _VERSION = "dikkat trace", 2
_LARGEST = 2**36  # bytes of a file that is read
_FIELDS = {field.name for field in fields(Inspection)}


# Modules that look from a decoder at an encoder, as transformers and PyTorch call them.
_CROSS = re.compile(r"cross|encoder_attn|encdec|multihead_attn$", re.IGNORECASE)


class Attentions(tuple[Any, ...]):
    """Weights as transformers returns them: a tuple of (B, H, n, m) for each layer.

    Of a model that ran several times, as in `generate`, it is a tuple for each run, of one for each layer.

    Attributes:
        encoder_attentions: Those of the encoder beside a decoder, a tuple of each layer's; () for other models.
        cross_attentions: Those with which a decoder looks at an encoder, as the tuple itself; () where there are none.
    """

    encoder_attentions: tuple[Tensor, ...]
    cross_attentions: tuple[Any, ...]

    def __new__(cls, own: Iterable[Any], encoder: Iterable[Tensor] = (), cross: Iterable[Any] = ()) -> "Attentions":
        """The weights by layer, and those of other kinds."""
        made = super().__new__(cls, own)
        made.encoder_attentions, made.cross_attentions = tuple(encoder), tuple(cross)
        return made


class Trace:
    """Records of the calls of a model's attention, in the order in which they came. Made by `dikkat.record`.

    `trace[name]` is the `Inspection` of the one call of a module; of a module that was called several times,
    `trace[name, 0]` is that of the first one, and `trace[name, -1]` that of the last. A notebook shows its page.

    Attributes:
        tokens: What the queries and keys are, for the page: of "self" attention, and of the "encoder" beside it.
    """

    def __init__(self) -> None:
        self._calls: dict[str, list[Inspection]] = {}
        self._order: list[tuple[str, int]] = []  # every call's module, and how often the model had been called
        self.tokens: dict[str, list[Token]] = {}

    def add(self, name: str, seen: Inspection, run: int = 0) -> None:
        """Add a call, as copies on the CPU.

        Args:
            name: The module.
            seen: What was recorded of the call.
            run: How often the whole model had been called.
        """
        copies = {field: tensor.detach().cpu().clone() for field, tensor in seen.tensors().items()}
        self._calls.setdefault(name, []).append(replace(seen, **copies))
        self._order.append((name, run))

    @property
    def names(self) -> list[str]:
        """The modules that attended, in the order of their first calls; the model itself is ''."""
        return list(self._calls)

    def count(self, name: str) -> int:
        """The number of calls of a module."""
        return len(self._of(name))

    def __len__(self) -> int:
        return sum(map(len, self._calls.values()))

    def __iter__(self) -> Iterator[tuple[str, int, Inspection]]:
        """Every call: the module's name, the call's number among its own, what it looked at."""
        for name, calls in self._calls.items():
            for index, seen in enumerate(calls):
                yield name, index, seen

    def __getitem__(self, which: str | tuple[str, int]) -> Inspection:
        """The only call of a module, or one of its calls.

        Raises:
            KeyError: No such module attended.
            IndexError: There are fewer calls.
            ValueError: There are several, and no number was given.
        """
        if isinstance(which, tuple):
            name, index = which
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

    def attentions(self) -> Attentions:
        """All weights, as `output_attentions=True` returns them with transformers' "eager" attention, before dropout.

        Of several towers without a decoder, such as one for pictures and one for words, it has those of the last one
        that ran; record others alone, by `layers`. Of a model that ran more than once, as in `generate` of more than
        one token, it has a tuple for each run: with a prompt in parts, or an assistant, more or fewer than tokens.
        Layers are in the order in which they ran.

        Raises:
            ValueError: The recording was made without `weights=True`.
        """
        found: dict[str, list[tuple[int, Tensor]]] = {}
        for kind, calls in self.by_kind().items():
            for name, run, seen in calls:
                if seen.weights is None:
                    raise ValueError(f"trace[{name!r}]: got no whole map; expected a recording with weights=True")
                found.setdefault(kind, []).append((run, seen.weights))
        encoder = [weights for _, weights in found.get("encoder", ())]
        return Attentions(_by_run(found.get("self", ())), encoder, _by_run(found.get("cross", ())))

    def by_kind(self) -> dict[str, list[tuple[str, int, Inspection]]]:
        """The calls of the encoder beside a decoder ("encoder"), "self", "cross", as `attentions` sorts them.

        Of each its module, how often the model had been called, and what it looked at.
        """
        counts, towers = Counter[str](), dict[str, list[tuple[str, int, Inspection]]]()
        for name, run in self._order:
            tower = re.split(r"(?:^|\.)\d", name)[0] if re.search(r"\d", name) else ""
            call = name, run, self._calls[name][counts[name]]
            towers.setdefault("cross" if _CROSS.search(name) else f"/{tower}", []).append(call)
            counts[name] += 1
        cross, own = towers.pop("cross", None), list(towers)[-1:]
        encoders = [tower for tower in towers if "encoder" in tower and tower not in own]
        found = {"encoder": towers[encoders[-1]]} if encoders else {}
        found |= {"self": towers[own[0]]} if own else {}
        return found if cross is None else found | {"cross": cross}

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
        content = header(_FORMAT, _VERSION) | {"calls": self._order, "tokens": self.tokens}
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
        order, made = content.get("calls"), cls()
        if not isinstance(order, list) or not all(map(_is_call, order)):
            raise ValueError("calls: got something else; expected each call's module and run. Record again")
        if len(order) > len(tensors):
            raise ValueError(f"calls: got more than the {len(tensors)} tensors; expected no more. Record again")
        calls, counts = dict[tuple[str, int], dict[str, torch.Tensor]](), Counter[str]()
        for name, run in order:
            calls[name, counts[name]] = {}
            counts[name] += 1
            made._order.append((name, run))
        made.tokens = _tokens(content.get("tokens"))
        for key, tensor in tensors.items():
            name, number, what = [*key.rsplit(":", 2), "", ""][:3]
            call = (name, int(number) if number.isdecimal() else -1)
            if call not in calls or what not in _FIELDS:
                raise ValueError(f"{key}: got a tensor that belongs to no call; expected <module>:<call>:<what>")
            calls[call][what] = tensor
        for (name, index), named in calls.items():
            if not named:
                raise ValueError(f"{name}:{index}: got no tensor; expected what was recorded. Record again")
            made._calls.setdefault(name, []).append(Inspection(**named))
        return made

    def to_html(self, path: str | os.PathLike[str], *, title: str = "What the model looks at") -> None:
        """Write one self-contained page with pictures of all calls, to move about in, whole or not at all.

        Args:
            path: The file; its folder must exist.
            title: The heading.

        Raises:
            OSError: The system could not write; an existing file is left as it was.
        """
        write_whole(path, self._page(title))

    def _repr_html_(self) -> str:
        """The page, in a frame for notebooks."""
        page = html.escape(self._page("What the model looks at"), quote=True)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 46rem; border: 0"></iframe>'

    def _page(self, title: str) -> str:
        from dikkat.show.calls import calls_page

        if self.tokens:
            kinds = self.by_kind().items()  # of each kind the first run
            seen = {
                kind: [(n, _described(n, one)) for n, run, one in calls if run == calls[0][1]] for kind, calls in kinds
            }
            return calls_page([], title=title, count=len(self), views=views_of(seen, self.tokens))
        calls = [
            (f"{n or 'model'} · {i}" if self.count(n) > 1 else n or "model", seen.tensors()) for n, i, seen in self
        ]
        return calls_page(calls, title=title, count=len(self))


def _described(name: str, seen: Inspection) -> dict[str, Tensor]:
    """The largest weights (H, n, k) with their keys and the map (H, a, b), of the first element of a batch."""
    if seen.weights is not None:
        request = Request(top_k=TOP, overview=CELLS, pool="max")
        of_map = of_all_weights(seen.weights[..., 0], seen.weights, request)
        seen = replace(of_map, heads=seen.heads, queries=seen.queries)
    if seen.top_weights is None or seen.top_keys is None or seen.overview is None:
        raise ValueError(f"trace[{name!r}]: got {', '.join(seen.tensors())}; expected weights, or top_k and overview")
    maps = {"top_weights": seen.top_weights, "top_keys": seen.top_keys, "overview": seen.overview}
    found = {what: tensor.reshape(-1, *tensor.shape[-3:])[0] if tensor.ndim > 3 else tensor[:1]
             for what, tensor in maps.items()}  # fmt: skip
    numbers = {"heads": seen.heads, "queries": seen.queries}
    return found | {what: tensor for what, tensor in numbers.items() if tensor is not None}


def _is_call(entry: object) -> bool:
    return isinstance(entry, list) and [type(part) for part in entry] == [str, int] and entry[1] >= 0


def _tokens(content: object) -> dict[str, list[Token]]:
    """The labels of a file, checked."""
    kinds = content.items() if isinstance(content, dict) else ()
    found = {kind: [Token(*entry) for entry in entries if _is_token(entry)] for kind, entries in kinds
             if isinstance(entries, list)}  # fmt: skip
    if not isinstance(content, dict) or any(len(found.get(kind, ())) != len(entries) for kind, entries in kinds):
        raise ValueError("tokens: got something else; expected each kind's labels. Record again")
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
