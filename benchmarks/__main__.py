"""List and run the benchmarks.

    python -m benchmarks                      # lists them
    python -m benchmarks SUITE [--only NAME,...] [-- ARGUMENTS...]

The benchmarks get the arguments after `--`; `-- --help` lists them. Some benchmarks run in the environment of
`make peers`. A benchmark that needs a corpus, a model or a commit is skipped with a message if the option is missing.
"""

import argparse
import subprocess
import sys
from typing import NamedTuple

from benchmarks.kit.processes import ROOT, command, environment

VENV, PEERS = ".venv", ".venv-peers"
INPUTS = {
    "corpus": "a folder with Multi30k's train, val and test_2016_flickr, .en.gz and .fr.gz",
    "model": "the folder of a translator that a Multi30k recipe trained",
    "seeds": "a folder with one translator for each seed, trained with default options, and val.tsv",
    "corpora": "a folder with a translator NAME, NAME.train.tsv and NAME.val.tsv for each corpus",
    "commit": "a commit to compare with",
}


class Bench(NamedTuple):
    """A module of this package, its purpose, its arguments (`{corpus}` comes from an option), and its environment."""

    module: str
    purpose: str
    words: tuple[str, ...] = ()
    venv: str = VENV

    @property
    def suite(self) -> str:
        return self.module.partition(".")[0]

    @property
    def name(self) -> str:
        return self.module.rpartition(".")[2] + "".join(f"-{word}" for word in self.words if word in ("memory", "time"))

    def needs(self) -> list[str]:
        return [name for name in INPUTS if f"{{{name}}}" in self.words]


_DATA = ("--data", "{corpus}")
BENCHES = (
    Bench("attention.core", "import time"),
    Bench("attention.additive", "additive and distance attention, compared with peers", (), PEERS),
    Bench("attention.small", "small calls over a grid, compared with plain PyTorch"),
    Bench("attention.bags", "concatenated bags, compared with a padded batch and the eager module"),
    Bench("attention.ragged", "concatenated sequences, compared with a padded batch and single calls"),
    Bench("attention.host", "first call of a process"),
    Bench("attention.crossovers", "thresholds between implementations"),
    Bench("attention.looking", "weights on request: time compared with the forward, and memory"),
    Bench("attention.recording", "recording a part of a Hugging Face model, compared with no recording"),
    Bench("attention.captions", "maps of the words that a model writes about an image, compared with no recording"),
    Bench("attention.changing", "changes, effects, passages and watches, compared with the plain model"),
    Bench("regression.speed", "kernel regression, compared with peers", (), PEERS),
    Bench("regression.judgement", "predictions of regressors and classifiers over tables", (), PEERS),
    Bench("regression.intervals", "prediction intervals: coverage and width, compared with MAPIE", (), PEERS),
    Bench("translation.phrasebook", "scores and time of `make demo`"),
    Bench("translation.links", "word links of the phrasebook"),
    Bench("translation.translating", "BLEU of int8, time of a new process", ("--model", "{model}", *_DATA)),
    Bench("translation.multi30k", "scores of a translator of Multi30k", ("{model}",)),
    Bench("translation.own", "scores of translators trained with default options", ("{seeds}",)),
    Bench("translation.confidence", "calibration of the confidence of translators", ("{corpora}",)),
    Bench("translation.terms", "use of terms by translators: their number, their forms, BLEU", ("{corpora}",)),
    Bench("translation.page", "pages in a browser: a translator, sentences, a map, an image", ("{model}", *_DATA)),
    Bench("translation.serving", "a server under load", ("--model", "{model}", *_DATA)),
    Bench("against", "the README's rows, compared with another commit", ("{commit}",)),
)
SUITES = dict.fromkeys(bench.suite for bench in BENCHES)


def main() -> int:
    """Run the selected benchmarks and return the exit status."""
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", nargs="?", choices=SUITES)
    parser.add_argument("--only", help="these benchmarks of the suite, by ','")
    for name, text in INPUTS.items():
        parser.add_argument(f"--{name}", help=text)
    options, extra_words = parser.parse_args(words[:split]), words[split + 1 :]
    if options.suite is None:
        for bench in BENCHES:
            needs = "".join(f"; needs --{input_name}, {INPUTS[input_name]}" for input_name in bench.needs())
            print(f"{bench.suite:12} {bench.name:14} {bench.purpose} ({bench.venv}{needs})")
        return 0
    suite = {bench.name: bench for bench in BENCHES if bench.suite == options.suite}
    selected = options.only.split(",") if options.only else list(suite)
    if unknown := [name for name in selected if name not in suite]:
        parser.error(f"--only: got {', '.join(unknown)}; expected {', '.join(suite)}")
    inputs = {name: value for name in INPUTS if (value := getattr(options, name)) is not None}
    statuses = {name: run(suite[name], inputs, extra_words) for name in selected}
    failed = [name for name, status in statuses.items() if status or (status is None and options.only)]
    print(f"failed: {', '.join(failed)}" if failed else "done")
    return int(bool(failed))


def run(bench: Bench, inputs: dict[str, str], extra_words: list[str]) -> int | None:
    """Run a benchmark; return its exit status, or None if an input is missing."""
    python = ROOT / bench.venv / "bin" / "python"
    missing = [f"--{input_name}, {INPUTS[input_name]}" for input_name in bench.needs() if input_name not in inputs]
    if not python.exists():
        missing.append(f"the environment {bench.venv}")
    if missing:
        print(f"{bench.name}: left out, needs {'; '.join(missing)}", flush=True)
        return None
    print(f"{bench.name}: {bench.purpose}", flush=True)
    command_line = command(bench.module, *(word.format(**inputs) for word in bench.words), *extra_words, python=python)
    return subprocess.run(command_line, env=environment(), cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
