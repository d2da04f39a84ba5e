"""Every benchmark, by suite: what it measures, and what it needs.

    python -m benchmarks                                 # what there is
    python -m benchmarks SUITE                           # the suite, one benchmark after the other
    python -m benchmarks SUITE --only NAME,... [-- WORDS...]

The words go to the benchmark; `-- --help` says which it knows. Each runs in its environment, which is a folder of the
repository (`make test-keras`, `make peers`, `make test-mxnet` build them). One that needs a corpus, a model or a commit
runs where that is given (`--corpus`, `--model`, `--book`, `--out`, `--commit`), and is said to be left out otherwise.
"""

import argparse
import subprocess
import sys
from dataclasses import dataclass

from benchmarks.kit.processes import ROOT, command, environment

VENV, PEERS, MXNET = ".venv", ".venv-peers", ".venv-mxnet"
INPUTS = {
    "corpus": "a folder with Multi30k's train.en.gz and train.fr.gz",
    "model": "the folder of a translator that a Multi30k recipe trained",
    "book": "a checkout of the textbook's repository",
    "out": "a folder for a profile, on a machine with a GPU",
    "commit": "a commit to compare with",
}


@dataclass(frozen=True)
class Bench:
    """A benchmark.

    Attributes:
        module: Its name in this package.
        what: What it measures.
        words: Its arguments; `{corpus}` and the like stand for what has to be given.
        venv: The environment whose Python runs it.
    """

    module: str
    what: str
    words: tuple[str, ...] = ()
    venv: str = VENV

    def needs(self) -> list[str]:
        """The inputs without which it does not run."""
        return [name for name in INPUTS if f"{{{name}}}" in self.words]


_MXNET = ("--mxnet", f"{MXNET}/bin/python")
SUITES: dict[str, dict[str, Bench]] = {
    "attention": {
        "core": Bench("attention.core", "import time, memory of `chunked`, speed of each implementation"),
        "additive": Bench("attention.additive", "additive and distance attention beside its peers", venv=PEERS),
        "small": Bench("attention.small", "small calls beside plain PyTorch, over a grid"),
        "host": Bench("attention.host", "what a call costs beside its arithmetic, and a process's first call"),
        "crossovers": Bench("attention.crossovers", "sizes at which one implementation overtakes another"),
        "looking": Bench("attention.looking", "weights on request: time beside the forward, memory"),
        "threads": Bench("attention.threads", "many threads on one object of each kind"),
        "profiles": Bench("attention.profiles", "where the time goes on a GPU", ("{out}",)),
    },
    "regression": {
        "estimators": Bench("regression.estimators", "kernel regression beside its peers", venv=PEERS),
        "many": Bench("regression.many", "a million rows: bandwidths along one feature, predictions", ("--write",)),
        "trust": Bench("regression.trust", "noise, bands' coverage, oscillation, broken refits, nested scores"),
        "judgement": Bench("regression.judgement", "which order and criterion predict best", venv=PEERS),
        "review": Bench("regression.review", "six methods over tables that nothing was tuned to", venv=PEERS),
    },
    "scale": {
        "memory": Bench("scale.ranks", "memory of a rank of attention over four", ("memory", "--write")),
        "time": Bench("scale.ranks", "two ranks of a thread beside one process of two", ("time", "--write")),
        "network": Bench("scale.network", "from which size a ring hides its messages", ("--back", "--write")),
        "shards": Bench("scale.shards", "10⁶ lines translated by workers that are killed", ("--write",)),
    },
    "translation": {
        "phrasebook": Bench("translation.phrasebook", "what `make demo` reaches, and its time"),
        "book": Bench("translation.book", "the textbook's recipe on three seeds"),
        "speed": Bench("translation.speed", "training and decoding beside the textbook's loop", ("--size", "book")),
        "sentence": Bench(
            "translation.sentence",
            "one sentence: beside its rivals, its bound, int8, a new process, Ctrl-C, ONNX",
            ("--model", "{model}", "--data", "{corpus}", "--out", "{out}"),
        ),
        "serving": Bench(
            "translation.serving", "a server under load", ("--model", "{model}", "--data", "{corpus}", "--out", "{out}")
        ),
        "speed-real": Bench(
            "translation.speed", "the same at a real size", ("--size", "real", "--data", "{corpus}")
        ),
        "waiting": Bench("translation.waiting", "the wait for the next batch of Multi30k", ("--data", "{corpus}")),
        "beside": Bench("translation.beside", "one and two threads beside a busy core", ("--write",)),
        "multi30k": Bench("translation.multi30k", "scores of a translator of Multi30k", ("{model}",)),
        "page": Bench(
            "translation.page", "a page: tokens, speed, waits", ("{model}", "--data", "{corpus}", "--write")
        ),
        "sentences": Bench(
            "translation.sentences",
            "a page of 200 sentences: its size, its first paint",
            ("{model}", "--data", "{corpus}", "--write"),
        ),
        "maps": Bench("translation.maps", "a map of 10,000 × 10,000: frames a second", ("--write",)),
        "large_corpus": Bench("translation.large_corpus", "memory and time of five million pairs"),
        "kills": Bench("translation.kills", "trainings that are killed and go on"),
        "hostile_models": Bench("translation.hostile_models", "damaged and hostile model folders"),
    },
    "frameworks": {
        "keras_additive": Bench("frameworks.keras_additive", "the Keras layer beside Keras's own"),
        "textbook_experiment": Bench(
            "frameworks.textbook_experiment", "the textbook's experiment in each framework", _MXNET
        ),
        "textbook_chapters": Bench(
            "frameworks.textbook_chapters", "the textbook's chapters, unchanged", ("--book", "{book}")
        ),
    },
    "commits": {
        "against": Bench("against", "the README's rows beside another commit", ("{commit}",)),
    },
}  # fmt: skip


def main() -> int:
    """The exit status."""
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", nargs="?", choices=SUITES)
    parser.add_argument("--only", help="these benchmarks of the suite, by ','")
    for name, text in INPUTS.items():
        parser.add_argument(f"--{name}", help=text)
    options, more = parser.parse_args(words[:split]), words[split + 1 :]
    if options.suite is None:
        print(listed())
        return 0
    suite = SUITES[options.suite]
    chosen = options.only.split(",") if options.only else list(suite)
    if unknown := [name for name in chosen if name not in suite]:
        parser.error(f"--only: got {', '.join(unknown)}; expected {', '.join(suite)}")
    given = {name: value for name in INPUTS if (value := getattr(options, name)) is not None}
    ran = {name: run(name, suite[name], given, more) for name in chosen}
    failed = [name for name, status in ran.items() if status or (status is None and options.only)]
    print(f"failed: {', '.join(failed)}" if failed else "done")
    return int(bool(failed))


def listed() -> str:
    """The suites with their benchmarks."""
    lines = []
    for suite, benches in SUITES.items():
        lines.append(suite)
        for name, bench in benches.items():
            needs = "".join(f"; needs --{each}, {INPUTS[each]}" for each in bench.needs())
            lines.append(f"  {name:20} {bench.what} ({bench.venv}{needs})")
    return "\n".join(lines)


def run(name: str, bench: Bench, given: dict[str, str], more: list[str]) -> int | None:
    """Run a benchmark: its exit status, or None where it was left out."""
    python = ROOT / bench.venv / "bin" / "python"
    lacking = [f"--{each}, {INPUTS[each]}" for each in bench.needs() if each not in given]
    if not python.exists():
        lacking.append(f"the environment {bench.venv}")
    if lacking:
        print(f"{name}: left out, needs {'; '.join(lacking)}", flush=True)
        return None
    words = [word.format(**given) for word in bench.words]
    print(f"{name}: {bench.what}", flush=True)
    everything = command(bench.module, *words, *more, python=python)
    return subprocess.run(everything, env=environment(), cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
