"""Records of a model's calls, by module and call: in memory, in a file, and as a page."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path

import torch

from dikkat.extras import needing
from dikkat.inspection.request import Inspection
from dikkat.storage.files import parse_json, read_regular, write_whole
from dikkat.storage.headers import check_header, header

_FORMAT, _VERSION = "dikkat trace", 1
_LARGEST = 2**36  # bytes of a file that is read
_FIELDS = {field.name for field in fields(Inspection)}


class Trace:
    """Records of the calls of a model's attention, in the order in which they came. Made by `dikkat.record`.

    `trace[name]` is the `Inspection` of the one call of a module; of a module that was called several times,
    `trace[name, 0]` is that of the first one, and `trace[name, -1]` that of the last.
    """

    def __init__(self) -> None:
        self._calls: dict[str, list[Inspection]] = {}

    def add(self, name: str, seen: Inspection) -> None:
        """Add a call, as copies on the CPU."""
        copies = {field: tensor.detach().cpu().clone() for field, tensor in seen.tensors().items()}
        self._calls.setdefault(name, []).append(replace(seen, **copies))

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
        content = header(_FORMAT, _VERSION) | {"modules": {name: len(calls) for name, calls in self._calls.items()}}
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
            >>> path = Path(tempfile.mkdtemp()) / "trace.safetensors"
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
        modules, made = content.get("modules"), cls()
        if not isinstance(modules, dict) or not all(type(count) is int and count > 0 for count in modules.values()):
            raise ValueError("modules: got something else; expected each module's number of calls. Record again")
        if sum(modules.values()) > len(tensors):
            raise ValueError(f"modules: got more calls than the {len(tensors)} tensors; expected no more. Record again")
        calls: dict[tuple[str, int], dict[str, torch.Tensor]] = {
            (name, index): {} for name, count in modules.items() for index in range(count)
        }
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
        from dikkat.show.calls import save_calls

        save_calls(Path(path), [(f"{n or 'model'} · {i}" if self.count(n) > 1 else n or "model", seen.tensors())
                                for n, i, seen in self], title=title)  # fmt: skip
