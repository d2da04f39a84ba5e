"""Memory and time of a corpus that is larger than memory should have to be: 5 million generated pairs.

    python -m benchmarks.translation.large_corpus [--pairs N] [--lines N] [--minutes M] [--folder FOLDER]

Each phase is a process of its own, so that none stands on what another left: writing the corpus, building the store,
opening it, going through all of its batches, training, translating lines that stream by. While a phase works, its
memory is sampled. What counts is anonymous memory (RssAnon): the pages of a mapped file are the system's to take back.
The X"""

import argparse
import json
import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.kit.processes import command, environment
from benchmarks.kit.report import write

PHASES = ("write", "build", "open", "batches", "train", "translate")
WARM = 0.2  # of a phase's time, in which memory may still grow
SAMPLES_PER_SECOND = 10
LENGTHS = {4: 1, 5: 1, 6: 2, 7: 4, 8: 20, 9: 36, 10: 36}  # words, and per cent of the sentences: few of them are equal

ENGLISH = (
    "the a every some this that", "old young small big new quiet red green tired clever",
    "teacher sailor doctor baker friend child neighbor farmer painter king", "sees finds calls likes follows hears",
    "today often never always now slowly", "near behind before without with", "the a every some this that",
    "river house garden bridge forest market school boat window street", "in before after during",
    "winter summer spring autumn",
)  # fmt: skip
FRENCH = (
    "le un chaque quelque ce cet", "vieux jeune petit grand nouveau calme rouge vert fatigué malin",
    "maître marin médecin boulanger ami enfant voisin fermier peintre roi", "voit trouve appelle aime suit entend",
    "aujourd'hui souvent jamais toujours maintenant lentement", "près derrière devant sans avec",
    "le un chaque quelque ce cet", "fleuve maison jardin pont forêt marché école bateau fenêtre rue",
    "en avant après pendant",
    "hiver été printemps automne",
)  # fmt: skip


def pairs(count: int) -> Iterator[tuple[str, str]]:
    """Sentences of four to ten words, translated word by word."""
    chance = random.Random(0)
    words = [list(zip(one.split(), other.split(), strict=True)) for one, other in zip(ENGLISH, FRENCH, strict=True)]
    for _ in range(count):
        (length,) = chance.choices(list(LENGTHS), list(LENGTHS.values()))
        source, target = zip(*(chance.choice(some) for some in words[:length]), strict=True)
        yield " ".join(source).capitalize() + ".", " ".join(target).capitalize() + "."


class Memory:
    """Samples of this process's memory, in MiB, while it works."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self._samples: list[tuple[float, float, float]] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._started = time.perf_counter()
        self._thread.start()

    def restart(self) -> None:
        """What came before was preparation."""
        self._samples.clear()
        self._started = time.perf_counter()

    def _watch(self) -> None:
        while not self._done.wait(1 / SAMPLES_PER_SECOND):
            self._samples.append((time.perf_counter() - self._started, _mib("RssAnon"), _mib("VmRSS")))

    def end(self) -> dict[str, Any]:
        """What it came to."""
        seconds = time.perf_counter() - self._started
        self._done.set()
        self._thread.join()
        warm = [sample for sample in self._samples if sample[0] > WARM * seconds] or self._samples[-1:]
        found: dict[str, Any] = {"seconds": round(seconds, 2), "peak_mib": round(_mib("VmHWM"), 1)}
        for place, name in ((1, "anonymous"), (2, "resident")):
            values = [sample[place] for sample in warm]
            if values:
                low, high = min(values), max(values)
                flat = 100 * (high - low) / (high + low)
                found[name] = {
                    "lowest_mib": round(low, 1),
                    "highest_mib": round(high, 1),
                    "flat_percent": round(flat, 2),
                }
        return found


def _mib(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"this system's /proc/self/status has no {name}")


def write_corpus(folder: Path, options: argparse.Namespace, memory: Memory) -> dict[str, Any]:
    with (folder / "pairs.tsv").open("w", encoding="utf-8") as file:
        for source, target in pairs(options.pairs):
            file.write(f"{source}\t{target}\n")
    return {"pairs": options.pairs, "bytes": (folder / "pairs.tsv").stat().st_size}


def _tokenizers(folder: Path) -> tuple[Any, Any]:
    from dikkat.translation import Tokenizer, TsvCorpus

    some = list(islice(TsvCorpus(folder / "pairs.tsv"), 20_000))
    one, other = (
        Tokenizer.train([pair[side] for pair in some], "word", min_freq=1, vocabulary_size=1000) for side in (0, 1)
    )
    return one, other


def build(folder: Path, options: argparse.Namespace, memory: Memory) -> dict[str, Any]:
    from dikkat.translation import TsvCorpus
    from dikkat.translation.data.store import Store

    tokenizers = _tokenizers(folder)
    memory.restart()
    store = Store.build(TsvCorpus(folder / "pairs.tsv"), *tokenizers, max_length=100)
    size = sum(path.stat().st_size for path in (folder / "cache" / "tokenised").iterdir())
    return {"pairs": len(store), "duplicates": store.counts.duplicates, "bytes": size}


def batches(folder: Path, options: argparse.Namespace, memory: Memory, *, count: int | None = None) -> dict[str, Any]:
    from dikkat.translation import TsvCorpus
    from dikkat.translation.data.batches import Batches
    from dikkat.translation.data.store import Store

    tokenizers = _tokenizers(folder)
    memory.restart()
    started = time.perf_counter()
    store = Store.build(TsvCorpus(folder / "pairs.tsv"), *tokenizers, max_length=100)
    opened = time.perf_counter()
    made = Batches(store, 64, 0, batch_tokens=2048, buffer=options.buffer)
    cut = time.perf_counter()
    if count is None:
        memory.restart()
    for _ in islice(made, count):
        pass
    seconds = {"open": opened - started, "cut": cut - opened, "batches": time.perf_counter() - cut}
    return {"batches": count or len(made), "seconds_of": {name: round(each, 3) for name, each in seconds.items()}}


def open_store(folder: Path, options: argparse.Namespace, memory: Memory) -> dict[str, Any]:
    return batches(folder, options, memory, count=1)


def train(folder: Path, options: argparse.Namespace, memory: Memory) -> dict[str, Any]:
    from dikkat.translation import Corpus, Settings, TsvCorpus, hold_out
    from dikkat.translation import train as train_translator

    class Watched(Corpus):
        """Sampling begins anew when the corpus has been read: what follows is training."""

        def __init__(self, corpus: Corpus) -> None:
            self.corpus = corpus

        def __iter__(self) -> Iterator[tuple[str, str]]:
            yield from self.corpus
            memory.restart()

        def __str__(self) -> str:
            return str(self.corpus)

        def fingerprint(self) -> str | None:
            return self.corpus.fingerprint()

    settings = Settings(
        embedding_size=64, hidden_size=64, vocabulary_size=1000, batch_size=256, shuffle_buffer=options.buffer,
        epochs=1, max_minutes=options.minutes, warmup_steps=50,
    )  # fmt: skip
    training, held_out = hold_out(TsvCorpus(folder / "pairs.tsv"), min(0.5, 500 / options.pairs))
    done = train_translator(settings, Watched(training), list(held_out), progress=False)
    done.translator.save(folder / "model")
    loss = min(validation.loss for validation in done.validations)
    return {"tokens_per_second": round(done.tokens_per_second), "validation_loss": round(loss, 4)}


def translate(folder: Path, options: argparse.Namespace, memory: Memory) -> dict[str, Any]:
    from dikkat.translation import Search, Translator

    translator = Translator.load(folder / "model")
    memory.restart()
    lines = (source for source, _ in pairs(options.lines))
    count = sum(1 for _ in translator.translate_lines(lines, search=Search(beam=1)))
    return {"lines": count}


WORK: dict[str, Callable[[Path, argparse.Namespace, Memory], dict[str, Any]]] = dict(
    zip(PHASES, (write_corpus, build, open_store, batches, train, translate), strict=True)
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5_000_000)
    parser.add_argument("--lines", type=int, default=50_000, help="sentences to translate")
    parser.add_argument("--minutes", type=float, default=3.0, help="of training")
    parser.add_argument("--buffer", type=int, default=200_000, help="pairs shuffled together")
    parser.add_argument("--folder", type=Path, help="where the files are put, and stay; otherwise a temporary one")
    parser.add_argument("--phase", action="append", choices=PHASES, help="only these; others' files must be there")
    parser.add_argument("--within", action="store_true", help=argparse.SUPPRESS)  # this process is the phase's own
    options = parser.parse_args()
    if options.within:
        memory = Memory()
        found = WORK[options.phase[0]](options.folder, options, memory)
        print(json.dumps(found | memory.end()))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        record = folder / "phases.json"  # phases may be run one by one
        results = json.loads(record.read_text()) if record.exists() else {}
        for phase in options.phase or PHASES:
            results[phase] = _alone(phase, folder, options)
            record.write_text(json.dumps(results))
    given = {name: getattr(options, name) for name in ("pairs", "lines", "minutes", "buffer")}
    print(write("large-corpus", {"options": given, "phases": results}, "pyarrow", "tokenizers"))


def _alone(phase: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    words = command("translation.large_corpus", "--within", "--phase", phase, "--folder", folder)
    for name in ("pairs", "lines", "minutes", "buffer"):
        words += [f"--{name}", str(getattr(options, name))]
    around = environment(DIKKAT_CACHE=str(folder / "cache"))
    done = subprocess.run(
        command("translation.large_corpus", *words), env=around, stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(phase, found, flush=True)
    return found


if __name__ == "__main__":
    main()
