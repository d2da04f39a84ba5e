"""The page of a translator: its tokens beside Python's int8 search, its speed in Node, and how long a reader waits.

    python -m benchmarks.translation.page MODEL --data FOLDER [--only tokens,speed,browser] [--write]

MODEL is a translator of Multi30k, FOLDER has `test_2016_flickr.en.gz`.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.kit.processes import ROOT
from benchmarks.kit.report import spread, write
from dikkat.translation import Search, Translator
from dikkat.translation.data.corpus import read_lines

WEB = ROOT / "web" / "test"
PARTS = ("tokens", "speed", "browser")
BEAMS = (1, 5)
COUNT = 500  # sentences whose tokens are compared
TIMED = 40  # of these, so many are timed
ROUNDS = 5


def main() -> None:
    """Print the parts that are asked for, and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS), help="parts, by ','")
    parser.add_argument("--write", action="store_true", help="keep the results")
    arguments = parser.parse_args()
    translator = Translator.load(arguments.model)
    sentences = list(read_lines(arguments.data / "test_2016_flickr.en.gz"))[:COUNT]
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        translator.export_html(page, examples=sentences[:1])
        megabytes = page.stat().st_size / 1e6
        results.append({"part": "file", "megabytes": megabytes})
        print(f"file: {megabytes:.2f} MB")
        if "tokens" in arguments.only:
            results += [tokens(translator, page, sentences, beam) for beam in BEAMS]
        if "speed" in arguments.only:
            results += [speed(page, sentences[:TIMED], beam) for beam in BEAMS]
        if "browser" in arguments.only:
            results.append(browser(page, sentences[1]))
    if arguments.write:
        print(write("page" if set(PARTS) <= set(arguments.only) else f"page-{'-'.join(arguments.only)}", results))


def in_node(page: Path, sentences: list[str], beam: int) -> list[dict[str, Any]]:
    """What the page's decoder finds."""
    asked = [{"text": text, "options": {"beam": beam, "best": 1, "light": True}} for text in sentences]
    found = subprocess.run(
        ["node", str(WEB / "translate.mjs"), str(page)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    answers: list[dict[str, Any]] = json.loads(found.stdout)
    return answers


def tokens(translator: Translator, page: Path, sentences: list[str], beam: int) -> dict[str, Any]:
    """How many translations are Python's, token for token and letter for letter."""
    expected = translator.translate(sentences, search=Search(beam=beam, precision="int8"))
    found = in_node(page, sentences, beam)
    equal = [
        (each["best"][0]["tokens"], each["best"][0]["target"]) == (other.target_tokens, other.target)
        for each, other in zip(found, expected, strict=True)
    ]
    apart = max(abs(each["best"][0]["score"] - other.score) for each, other in zip(found, expected, strict=True))
    print(f"beam {beam}: {sum(equal)} of {len(equal)} sentences equal, scores up to {apart:.2g} apart")
    for text, same in zip(sentences, equal, strict=True):
        if not same:
            print(f"  differs: {text}")
    return {"part": "tokens", "beam": beam, "equal": sum(equal), "sentences": len(equal), "scores_apart": apart}


def speed(page: Path, sentences: list[str], beam: int) -> dict[str, Any]:
    """Tokens a second in Node, of one sentence after the other, ends included; reading the sentence counts too."""
    rates = []
    warm = sentences[:5]  # until the engine has compiled what is called often
    for _ in range(ROUNDS):
        found = in_node(page, [*warm, *sentences], beam)[len(warm) :]
        made = sum(len(each["best"][0]["ids"]) + 1 for each in found)
        rates.append(made / sum(each["seconds"] for each in found))
    found_rates = spread(rates)
    print(f"beam {beam}: {found_rates['median']:.0f} tokens a second, {min(rates):.0f} to {max(rates):.0f}")
    return {"part": "speed", "beam": beam, "kind": found[0]["kind"], "tokens_per_second": found_rates}


def browser(page: Path, sentence: str) -> dict[str, Any]:
    """Milliseconds in headless Chromium without a network."""
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("there is no chromium here")
    command = ["node", str(WEB / "measure.mjs"), str(page), chromium, sentence]
    waits = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    if waits["wrong"]:
        raise SystemExit(f"the page complains: {waits['wrong']}")
    found = {name: spread(waits[name]) for name in ("opening", "translating", "pinning")}
    for name, each in found.items():
        print(f"{name}: {each['median']:.0f} ms, {each['min']:.0f} to {each['max']:.0f}")
    return {"part": "browser", "milliseconds": found}


if __name__ == "__main__":
    main()
