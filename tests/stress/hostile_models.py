"""Model folders that somebody damaged, or made to do harm: each is refused in one line, or is a model.

A list made by hand, and as many changes of a good model as are asked for, drawn at random. Each is translated with by
the command line, in a forked process whose time and memory are measured: first with the sums of the good model, so that
every changed byte must be noticed, then with new ones, as whoever means harm would write them.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file

from benchmarks.kit import report
from dikkat.translation import Settings, Tokenizer, TranslationModel, Translator

WEIGHTS, SETTINGS, SUMS = "model.safetensors", "settings.json", "SHA256SUMS"
MEMORY = "memory.safetensors"
SOURCE, TARGET = "source.tokenizer.json", "target.tokenizer.json"
PARTS = (WEIGHTS, SETTINGS, SOURCE, TARGET)
SECONDS, MEBIBYTES = 2.0, 200.0  # of processor time and of memory beyond the process's own, at most
PATIENCE = 60  # seconds after which a process is taken to hang
SENTENCE = "The man is calm, isn't he?" + " aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"
ENGLISH = ["Go.", "I lost.", "He's calm.", "I'm home.", "She sees Marie.", "Where is the man?", "The man is calm."]
FRENCH = ["Va !", "J'ai perdu.", "Il est calme.", "Je suis chez moi.", "Elle voit Marie.", "Où est l'homme ?"]

Change = Callable[[Path], None]


class Outcome(NamedTuple):
    """What came of a folder.

    Attributes:
        kind: refused, same (the good model), valid (another model that is one), or what is wrong with it.
        message: standard error.
        seconds: of processor time.
        mebibytes: of memory beyond what the process had at its beginning.
    """

    kind: str
    message: str
    seconds: float
    mebibytes: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        results = examine(Path(place), options.mutations, options.seed)
    path = report.write("hostile_models", results, "tokenizers", "safetensors")
    path.rename(path.with_name("hostile_models.json"))
    print(json.dumps({name: found for name, found in results.items() if name != "worst"}, indent=2))
    if results["wrong"]:
        sys.exit("a folder was neither refused in one line nor a model")


def examine(place: Path, mutations: int, seed: int) -> dict[str, Any]:
    """Every change of the list, and so many at random, of a model of words and one of parts of words."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads would be missing in the forked processes
    torch.set_num_threads(1)  # likewise
    good = {kind: make(place / kind, kind) for kind in ("word", "bpe")}
    for folder in good.values():
        Translator.load(folder).translate([SENTENCE])  # loads the kernels, once for all processes
        if (found := attempt(folder, folder)).kind != "same":
            sys.exit(f"a good model is not taken for one: {found}")
    chance = random.Random(seed)
    cases: list[tuple[str, str, Change]] = [("word", name, change) for name, change in by_hand()]
    for number in range(mutations):
        kind = chance.choice(["word", "bpe"])
        cases.append((kind, f"{number}", at_random(chance.randrange(2**32))))
    counts: dict[str, Counter[str]] = {"old sums": Counter(), "new sums": Counter()}
    wrong, worst = [], {"seconds": 0.0, "mebibytes": 0.0}
    for kind, name, change in cases:
        for sums in counts:
            found = damaged(good[kind], place / "damaged", change, reseal=sums == "new sums")
            counts[sums][found.kind if found.kind in ("refused", "same", "valid") else "wrong"] += 1
            worst = {what: max(most, getattr(found, what)) for what, most in worst.items()}
            if found.kind not in ("refused", "same", *(["valid"] if sums == "new sums" else [])):
                wrong.append({"case": name, "kind": kind, "sums": sums, "outcome": found.kind, "said": found.message})
                print(f"{kind} {name} ({sums}): {found.kind}: {found.message[-300:]}", file=sys.stderr, flush=True)
    return {
        "by hand": len(list(by_hand())),
        "at random": mutations,
        "seed": seed,
        "outcomes": {sums: dict(found) for sums, found in counts.items()},
        "worst": worst,
        "most allowed": {"seconds": SECONDS, "mebibytes": MEBIBYTES},
        "wrong": wrong,
    }


def make(folder: Path, kind: Any) -> Path:
    """A good model folder. Its weights were never trained: that makes no difference here."""
    torch.manual_seed(0)
    settings = Settings(embedding_size=7, hidden_size=10, min_freq=1, tokenizer=kind, vocabulary_size=300)
    english, french = (Tokenizer.train(text, kind, min_freq=1, vocabulary_size=300) for text in (ENGLISH, FRENCH))
    model = TranslationModel(settings, len(english), len(french)).eval()
    Translator(model, settings, english, french).save(folder)
    return folder


def damaged(good: Path, folder: Path, change: Change, *, reseal: bool) -> Outcome:
    """What comes of a changed copy of a good model."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(good, folder)
    change(folder)
    if reseal:
        seal(folder)
    return attempt(folder, good)


def seal(folder: Path) -> None:
    """New sums of what is there."""
    if (folder / SUMS).is_file() and not (folder / SUMS).is_symlink():
        lines = [
            f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"
            for name in (*PARTS, MEMORY)
            if (folder / name).is_file() and (folder / name).stat().st_size < 1 << 27
        ]
        (folder / SUMS).write_text("".join(lines))


def attempt(folder: Path, good: Path) -> Outcome:
    """Translate with a folder in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        with os.fdopen(writer, "w") as pipe:
            json.dump(_child(folder, good), pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe, _alarm(child):
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if not text:
        ended = f"killed by {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else f"ended {status}"
        return Outcome(ended, "", 0.0, 0.0)
    found = Outcome(**json.loads(text))
    if found.seconds > SECONDS or found.mebibytes > MEBIBYTES:
        return found._replace(kind=f"{found.seconds:.1f} s, {found.mebibytes:.0f} MiB")
    return found


@contextlib.contextmanager
def _alarm(child: int) -> Iterator[None]:
    """Kills a process that hangs."""
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)


def _child(folder: Path, good: Path) -> dict[str, Any]:
    from dikkat.cli import main as command

    written = Path(tempfile.mkdtemp(dir=folder.parent))
    for descriptor, name in enumerate(("output", "message"), start=1):  # catches what a library of Rust prints, too
        os.dup2(os.open(written / name, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.argv = ["dikkat", "translate", str(folder), SENTENCE]
    clock, memory = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        command()
        status: Any = 0
    except SystemExit as stopped:
        status = stopped.code or 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush(), sys.stderr.flush()
    seconds = time.process_time() - clock
    mebibytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    output, message = ((written / name).read_text(errors="replace") for name in ("output", "message"))
    return {"kind": _kind(status, output, message, folder, good), "message": message} | {
        "seconds": seconds,
        "mebibytes": mebibytes,
    }


def _kind(status: Any, output: str, message: str, folder: Path, good: Path) -> str:
    if status == 2:
        one_line = message.count("\n") == 1 and len(message) < 1500 and message[:-1].isprintable() and not output
        return "refused" if one_line and message.startswith("dikkat: ") else "refused in more than a line"
    if status != 0 or message or output.count("\n") != 1:
        return f"status {status}"
    found, own = Translator.load(folder), Translator.load(good)
    weights, others = found.model.state_dict(), own.model.state_dict()
    same = (
        found.settings == own.settings
        and found.source_tokenizer.to_json() == own.source_tokenizer.to_json()
        and found.target_tokenizer.to_json() == own.target_tokenizer.to_json()
        and all(torch.equal(weights[name], others[name]) for name in others)
    )
    return "same" if same else "valid"


def by_hand() -> Iterator[tuple[str, Change]]:
    """What somebody who means harm would think of."""
    for name in PARTS:
        yield f"{name}: empty", lambda folder, name=name: (folder / name).write_bytes(b"")
        yield f"{name}: half", lambda folder, name=name: _bytes(folder / name, lambda data: data[: len(data) // 2])
        yield f"{name}: a pipe", lambda folder, name=name: _replace(folder / name, os.mkfifo)
        yield f"{name}: a folder", lambda folder, name=name: _replace(folder / name, Path.mkdir)
        yield f"{name}: endless", lambda folder, name=name: _link(folder / name, "/dev/zero")
        yield f"{name}: a loop", lambda folder, name=name: _link(folder / name, name)
        yield f"{name}: missing", lambda folder, name=name: (folder / name).unlink()
        yield f"{name}: 10 GB", lambda folder, name=name: os.truncate(folder / name, 10**10)
        yield f"{name}: a kernel's file", lambda folder, name=name: _link(folder / name, "/proc/self/maps")
    yield f"{SUMS}: a pipe", lambda folder: _replace(folder / SUMS, os.mkfifo)
    yield f"{SUMS}: missing", lambda folder: (folder / SUMS).unlink()
    yield f"{SUMS}: endless", lambda folder: _link(folder / SUMS, "/dev/zero")
    for name in (SETTINGS, SOURCE, TARGET):
        for depth in (900, 100_000, 1_000_000):
            nested = b'{"version": ' + b"[" * depth + b"]" * depth + b"}"
            yield f"{name}: nested {depth}", lambda folder, n=name, data=nested: (folder / n).write_bytes(data)
        nested = b'{"a":' * 50_000 + b"1" + b"}" * 50_000
        yield f"{name}: objects nested", lambda folder, n=name, data=nested: (folder / n).write_bytes(data)
        yield f"{name}: UTF-16", lambda f, n=name: _bytes(f / n, lambda data: data.decode().encode("utf-16"))
        yield (
            f"{name}: a key twice",
            lambda f, n=name: _bytes(f / n, lambda data: data.replace(b"{", b'{"a":1,"a":1,', 1)),
        )
        yield f"{name}: two documents", lambda f, n=name: _bytes(f / n, lambda data: data + data)
        yield f"{name}: long number", lambda f, n=name: _text(f / n, r":\s*(1|2|256|0)\b", ": " + "9" * 5000)
        yield f"{name}: a null", lambda f, n=name: (f / n).write_bytes(b"null")
        yield f"{name}: half a letter", lambda f, n=name: _text(f / n, r'"version"', r'"\\ud800"')
    numbers = "NaN", "Infinity", "-Infinity", "1e999", "-1", "1e9", "1000000000", '"x"', "[]", "{}", "null", "true"
    for value in numbers:
        for key in ("hidden_size", "dropout", "num_layers"):
            yield f"{key} {value}", lambda f, k=key, v=value: _text(f / SETTINGS, rf'("{k}": )[\d.]+', rf"\g<1>{v}")
    for value in ("0", "3", "1.0", "2.0", "true", '"2"', "99999999999999999999"):
        yield f"version {value}", lambda f, v=value: _text(f / SETTINGS, r'"version": 2', f'"version": {v}')
    yield "a key that draws", lambda f: _text(f / SETTINGS, r'"seed"', r'"\\u001b[2J\\n\\u202eseed"')
    yield "a key of a megabyte", lambda f: _text(f / SETTINGS, r'"seed"', '"' + "s" * 900_000 + '"')
    yield "a value of a megabyte", lambda f: _text(f / SETTINGS, r'"gru"', '"' + "s" * 900_000 + '"')
    yield "tokenizers exchanged", lambda folder: _swap(folder / SOURCE, folder / TARGET)
    yield "weights are a pickle", lambda folder: (folder / WEIGHTS).write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    yield "weights are a zip", lambda folder: (folder / WEIGHTS).write_bytes(b"PK\x03\x04" + bytes(100))
    for length in (0, 1, 7, 10**6, 10**9, 2**63, 2**64 - 1):
        yield (
            f"a header of {length}",
            lambda folder, length=length: _bytes(folder / WEIGHTS, lambda data: struct.pack("<Q", length) + data[8:]),
        )
    for offsets in ([0, 2**62], [10**9, 10**9 + 4], [4, 0], [0, 0], [-1, 3], [0.5, 4], ["a", "b"]):
        yield f"offsets {offsets}", lambda f, o=offsets: _header(f, lambda h: h["bridge.bias"].update(data_offsets=o))
    for shape in ([10**9], [2**62, 4], [0], [], [-1], [10, 1], "x", [[10]], [True] * 10):
        yield f"shape {shape}", lambda f, s=shape: _header(f, lambda h: h["bridge.bias"].update(shape=s))
    for dtype in ("F64", "F16", "BF16", "I32", "F8_E4M3", "F8_E8M0", "F4", "C64", "BOOL", "X", None, 3):
        yield f"dtype {dtype}", lambda f, d=dtype: _header(f, lambda h: h["bridge.bias"].update(dtype=d))
    for dtype in (torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn):
        yield f"a tensor of {dtype}", lambda f, d=dtype: _tensor(f, "bridge.bias", lambda t: t.to(d))
    for name, value in (("NaN", float("nan")), ("infinite", float("inf")), ("enormous", 3e38)):
        yield f"weights {name}", lambda f, v=value: _tensor(f, "bridge.bias", lambda t: torch.full_like(t, v))
    yield "a name of a path", lambda f: _header(f, lambda h: h.update({"../../etc/passwd": h.pop("bridge.bias")}))
    yield "a name that draws", lambda f: _header(f, lambda h: h.update({"\x1b[2J\n": h.pop("bridge.bias")}))
    yield "a header nested", lambda f: (f / WEIGHTS).write_bytes(struct.pack("<Q", 10**5) + b'{"a":' * 20_000)
    patterns = r"(a+)+$", r"(?:a|a)*b", r"(a*)*\1b", "(", "[", "(?<!a*)b", r"\p{L", "a{1000}{1000}{1000}", "", "\0"
    for pattern in patterns:
        for where in ("pre_tokenizer", "decoder", "normalizer"):
            yield f"{where} {pattern!r}", lambda f, w=where, p=pattern: _pattern(f, w, p)
    for number in (-1, 10**9, 2**32, 2**64, 1.5, True, None, "4", 4):
        yield (
            f"a token's number {number!r}",
            lambda f, n=number: _json(f / TARGET, lambda c: c["model"]["vocab"].update({"calme": n})),
        )
    for name, (file, change) in _TOKENIZERS.items():
        yield name, lambda f, file=file, change=change: _json(f / file, change)


def _many(steps: list[Any]) -> None:
    steps[3:3] = [steps[2]] * 10_000


_TRUNCATION = {"max_length": 0, "strategy": "LongestFirst", "stride": 9, "direction": "Right"}
_PADDING = {
    "strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
    "pad_token": "<pad>",
}  # fmt: skip
_TOKENIZERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a decoder of ten thousand steps": (TARGET, lambda c: _many(c["decoder"]["decoders"])),
    "a template": (SOURCE, lambda c: c.update(post_processor={"type": "ByteLevel"})),
    "truncation": (SOURCE, lambda c: c.update(truncation=_TRUNCATION)),
    "padding": (SOURCE, lambda c: c.update(padding=_PADDING)),
    "special tokens elsewhere": (TARGET, lambda c: c["added_tokens"].reverse()),
    "a special token of a word": (TARGET, lambda c: c["added_tokens"][0].update(content="va")),
    "another kind": (TARGET, lambda c: c.update(model={"type": "Unigram", "vocab": [["a", 0]]})),
    "the kind of the other": (TARGET, lambda c: c["model"].update(type="BPE", merges=[])),
    "merges": (TARGET, lambda c: c["model"].update(merges=[["a", "b"]])),
}


def at_random(seed: int) -> Change:
    """One change, of a byte, a value or a tensor."""
    chance = random.Random(seed)
    name = chance.choice(PARTS)
    kinds: list[Change] = [
        lambda f: _bytes(f / name, lambda data: _flipped(data, chance)),
        lambda f: _bytes(f / name, lambda data: data[: chance.randrange(len(data))]),
        lambda f: _bytes(f / name, lambda data: _inserted(data, chance)),
        lambda f: _bytes(f / name, lambda data: _cut(data, chance)),
        lambda f: _value(f, chance),
        lambda f: _value(f, chance),
        lambda f: _value(f, chance),
        lambda f: _key(f, chance),
        lambda f: _key(f, chance),
        lambda f: _any_header(f, chance),
        lambda f: _any_header(f, chance),
        lambda f: _renamed(f, chance),
        lambda f: _swap(*(f / each for each in chance.sample(PARTS, 2))),
    ]
    return chance.choice(kinds)


_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 10**9, 2**64, 1.5, 1e308, "", "x", "a" * 1000, [], {}, [[]], {"a": 1},
]  # fmt: skip


def _value(folder: Path, chance: random.Random) -> None:
    """Another value somewhere in a file of JSON, mostly of another type."""

    def change(content: Any) -> None:
        holder, key = chance.choice(list(_places(content)))
        holder[key] = chance.choice(_VALUES)

    _json(folder / chance.choice((SETTINGS, SOURCE, TARGET)), change)


def _key(folder: Path, chance: random.Random) -> None:
    """A key, or an item, that goes, or another."""

    def change(content: Any) -> None:
        holder, key = chance.choice(list(_places(content)))
        value = holder.pop(key)
        if isinstance(holder, dict) and chance.random() < 0.5:
            holder[chance.choice(["", "x", "type", "Regex", f"{key} "])] = value

    _json(folder / chance.choice((SETTINGS, SOURCE, TARGET)), change)


def _any_header(folder: Path, chance: random.Random) -> None:
    def change(header: Any) -> None:
        holder, key = chance.choice(list(_places(header)))
        holder[key] = chance.choice(_VALUES)

    _header(folder, change)


def _renamed(folder: Path, chance: random.Random) -> None:
    tensors = load_file(folder / WEIGHTS)
    names = chance.sample(sorted(tensors), 2)
    if chance.random() < 0.5:
        tensors[names[0]], tensors[names[1]] = tensors[names[1]], tensors[names[0]]
    else:
        tensors[f"{names[0]}.x"] = tensors.pop(names[0])
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / WEIGHTS)


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(content) if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    for key in keys:
        yield content, key
        yield from _places(content[key])


def _flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 3, 20])):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _inserted(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data))
    return data[:place] + chance.randbytes(chance.randrange(1, 100)) + data[place:]


def _cut(data: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(data))
    return data[:place] + data[place + chance.randrange(1, 100) :]


def _replace(path: Path, make: Callable[[Path], Any]) -> None:
    path.unlink()
    make(path)


def _link(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


def _swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def _bytes(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def _text(path: Path, pattern: str, value: str) -> None:
    path.write_text(re.sub(pattern, value, path.read_text(encoding="utf-8"), count=1), encoding="utf-8")


def _json(path: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def _header(folder: Path, change: Callable[[Any], Any]) -> None:
    data = (folder / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    written = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(written)) + written + data[8 + length :])


def _tensor(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors[name] = change(tensors[name])
    save_file(tensors, folder / WEIGHTS)


def _pattern(folder: Path, where: str, pattern: str) -> None:
    def change(content: Any) -> None:
        step = {"type": "Replace", "pattern": {"Regex": pattern}, "content": "b"}
        if where == "pre_tokenizer":
            content[where]["pattern"]["Regex"] = pattern
        elif where == "decoder":
            content[where]["decoders"].insert(2, step)
        else:
            content[where]["normalizers"].insert(0, step)

    _json(folder / (TARGET if where == "decoder" else SOURCE), change)


if __name__ == "__main__":
    main()
