"""One checkpoint in five frameworks: the tokens of 500 held-out sentences, greedy and with a beam of 5.

    python -m benchmarks.frameworks.cross_loading --model FOLDER [--mxnet PYTHON]

FOLDER is what `make demo` leaves in demo/model; PYTHON is the interpreter of the environment of `make test-mxnet`.
Every framework also saves what it loaded, and PyTorch translates with that.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.kit.processes import command, environment

SENTENCES = 500
FRAMEWORKS = ("torch", "keras-tensorflow", "keras-jax", "keras-torch", "mxnet")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="a model folder, of the phrasebook")
    parser.add_argument("--mxnet", type=Path, help="the interpreter of MXNet's environment")
    parser.add_argument("--framework", choices=FRAMEWORKS, help=argparse.SUPPRESS)
    parser.add_argument("--save", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.framework:
        print(json.dumps(translated(options.framework, options.model, options.save)))
        return
    from benchmarks.kit.report import write

    with tempfile.TemporaryDirectory() as folder:
        found = {name: in_a_process(name, options, Path(folder) / name) for name in FRAMEWORKS if runs(name, options)}
        right = found["torch"]["tokens"]
        results = {
            name: {
                "identical": sum(one == other for one, other in zip(each["tokens"], right, strict=True)),
                "of": len(right),
                "saved and loaded in PyTorch": each["back"],
                "seconds": each["seconds"],
            }
            for name, each in found.items()
        }
    for name, each in results.items():
        print(name, json.dumps(each))
    print(write("cross-loading", results, "keras", "tensorflow", "jax"))
    if options.mxnet is None:
        print("MXNet was left out: --mxnet names its interpreter")
    if not all(each["identical"] == each["of"] and each["saved and loaded in PyTorch"] for each in results.values()):
        raise SystemExit("the frameworks differ")


def runs(framework: str, options: argparse.Namespace) -> bool:
    return framework != "mxnet" or options.mxnet is not None


def in_a_process(framework: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    found = asked(framework, options, "--model", str(options.model), "--save", str(folder))
    again = asked("torch", options, "--model", str(folder))
    found["back"] = again["tokens"] == found["tokens"]
    return found


def asked(framework: str, options: argparse.Namespace, *words: str) -> Any:
    python = str(options.mxnet) if framework == "mxnet" else sys.executable
    around = environment(TF_CPP_MIN_LOG_LEVEL="3")
    if framework.startswith("keras"):
        around["KERAS_BACKEND"] = framework.partition("-")[2]
    done = subprocess.run(
        command("frameworks.cross_loading", "--framework", framework, *words, python=python),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=around,
    )
    return json.loads(done.stdout.splitlines()[-1])


def translated(framework: str, model: Path, save: Path | None) -> dict[str, Any]:
    from dikkat.translation import Search
    from dikkat.translation.phrasebook import split

    translator = translator_of(framework).load(model)
    sentences = [source for source, _ in split()[1][:SENTENCES]]
    started = time.perf_counter()
    tokens = [
        each.target_tokens
        for search in (Search(beam=1), Search(beam=5))
        for each in translator.translate(sentences, search=search)
    ]
    seconds = round(time.perf_counter() - started, 1)
    if save is not None:
        translator.save(save)
    return {"tokens": tokens, "seconds": seconds}


def translator_of(framework: str) -> Any:
    if framework == "torch":
        from dikkat.translation import Translator
    elif framework == "mxnet":
        from mxnet import npx

        npx.set_np()
        from dikkat.frameworks.mxnet import Translator
    else:
        from dikkat.frameworks.keras import Translator
    return Translator


if __name__ == "__main__":
    main()
