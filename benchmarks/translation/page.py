"""Pages in a browser: a translator, two hundred translated sentences, and a map of 10,000 × 10,000 weights.

    python -m benchmarks.translation.page [MODEL --data FOLDER] [--only page,sentences,maps] [--out FOLDER]

- `page`: a translator's tokens beside Python's int8 search, its speed in Node, and how long a reader waits for it;
- `sentences`: the size of a page of translations, and how long until it is painted;
- `maps`: frames a second while a map is dragged.

MODEL is a translator of Multi30k, FOLDER has `test_2016_flickr.en.gz`; `maps` needs neither. Browsers are fresh and
headless, without a network or a GPU.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.kit.processes import ROOT
from benchmarks.kit.report import RESULTS, spread, write
from dikkat.show import save_page
from dikkat.translation import Search, Translator
from dikkat.translation.data.corpus import read_lines

Record = dict[str, Any]
WEB, SHOW = ROOT / "web" / "test", ROOT / "src" / "dikkat" / "show"
BEAMS = (1, 5)
COMPARED, TIMED, ROUNDS = 500, 40, 5  # sentences whose tokens are compared, sentences that are timed, and how often
SHOWN = 200  # sentences of a page
SIDE, BROWSERS = 10_000, 3  # of a map


def node(script: str, *words: object, given: str | None = None) -> Any:
    """What a script of `web/test` prints, as JSON."""
    command = ["node", str(WEB / script), *map(str, words)]
    found = json.loads(subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout)
    if isinstance(found, dict) and found["wrong"]:
        raise SystemExit(f"the page complains: {found['wrong']}")
    return found


def chromium() -> str:
    found = shutil.which("chromium")
    if found is None:
        raise SystemExit("there is no chromium here")
    return found


def page(translator: Translator, sentences: list[str], folder: Path) -> list[Record]:
    """A translator's page."""
    path = folder / "page.html"
    translator.export_html(path, examples=sentences[:1])
    waits = node("measure.mjs", path, chromium(), sentences[1])
    return [
        {"part": "file", "megabytes": path.stat().st_size / 1e6},
        *(tokens(translator, path, sentences, beam) for beam in BEAMS),
        *(speed(path, sentences[:TIMED], beam) for beam in BEAMS),
        {
            "part": "browser",
            "milliseconds": {name: spread(waits[name]) for name in ("opening", "translating", "pinning")},
        },
    ]


def in_node(path: Path, sentences: list[str], beam: int) -> list[Record]:
    """What the page's decoder finds."""
    asked = [{"text": text, "options": {"beam": beam, "best": 1, "light": True}} for text in sentences]
    found: list[Record] = node("translate.mjs", path, given=json.dumps(asked))
    return found


def tokens(translator: Translator, path: Path, sentences: list[str], beam: int) -> Record:
    """How many translations are Python's, token for token and letter for letter."""
    expected = translator.translate(sentences, search=Search(beam=beam, precision="int8"))
    pairs = list(zip(in_node(path, sentences, beam), expected, strict=True))
    equal = [
        (each["best"][0]["tokens"], each["best"][0]["target"]) == (other.target_tokens, other.target)
        for each, other in pairs
    ]
    apart = max(abs(each["best"][0]["score"] - other.score) for each, other in pairs)
    return {"part": "tokens", "beam": beam, "equal": sum(equal), "sentences": len(equal), "scores_apart": apart}


def speed(path: Path, sentences: list[str], beam: int) -> Record:
    """Tokens a second in Node, of one sentence after the other, ends included; reading the sentence counts too."""
    rates, warm = [], sentences[:5]  # until the engine has compiled what is called often
    for _ in range(ROUNDS):
        found = in_node(path, [*warm, *sentences], beam)[len(warm) :]
        made = sum(len(each["best"][0]["ids"]) + 1 for each in found)
        rates.append(made / sum(each["seconds"] for each in found))
    return {"part": "speed", "beam": beam, "kind": found[0]["kind"], "tokens_per_second": spread(rates)}


def sentences_page(translator: Translator, sentences: list[str], folder: Path) -> list[Record]:
    """A page of translations, without and with the model inside."""
    translations, records = translator.translate(sentences[:SHOWN]), []
    for what, inside in (("Multi30k", None), ("Multi30k, the model inside", translator)):
        path = folder / "sentences.html"
        save_page(path, translations, translator=inside)
        found = node("paint.mjs", path, chromium())
        waits = {name: spread(found[name]) for name in ("painted", "drawn")}
        size = {"sentences": SHOWN, "megabytes": path.stat().st_size / 1e6, "chromium": found["browser"]}
        records.append({"part": what, **size, "milliseconds": waits})
    return records


def maps() -> list[Record]:
    """A large map: until it stands, and while it is dragged at each of its enlargements."""
    words = (SHOW / "living.js", SHOW / "living.css", chromium(), SIDE)
    runs = [node("pan.mjs", *words) for _ in range(BROWSERS)]
    opening = {name: spread([run["opening"][name] for run in runs]) for name in ("first", "whole", "longest")}
    common = {"side": SIDE, "canvas": runs[0]["canvas"], "chromium": runs[0]["browser"]}
    records: list[Record] = [{"part": "opening", **common, "milliseconds": opening}]
    for each in zip(*(run["rounds"] for run in runs), strict=True):
        records.append(
            {
                "part": "panning",
                "pixels_of_a_cell": each[0]["cell"],
                "frames_per_second": spread([1000 * len(one["frames"]) / sum(one["frames"]) for one in each]),
                "longest_frame_milliseconds": spread([max(one["frames"]) for one in each]),
            }
        )
    return records


OF_A_MODEL: dict[str, Callable[[Translator, list[str], Path], list[Record]]] = {
    "page": page,
    "sentences": sentences_page,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[*OF_A_MODEL, "maps"], help="by ','")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the records")
    arguments = parser.parse_args()
    for part in arguments.only:
        if part == "maps":
            records = maps()
        elif arguments.model and arguments.data:
            lines = list(read_lines(arguments.data / "test_2016_flickr.en.gz"))[:COMPARED]
            with tempfile.TemporaryDirectory() as folder:
                records = OF_A_MODEL[part](Translator.load(arguments.model), lines, Path(folder))
        else:
            print(f"{part}: left out, needs MODEL and --data")
            continue
        print(*records, sep="\n", flush=True)
        print(write(part, records, folder=arguments.out))


if __name__ == "__main__":
    main()
