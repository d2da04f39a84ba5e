"""Measure pages in a browser: a translator, two hundred sentences, a map of 10,000 × 10,000 weights, and an image.

    python -m benchmarks.translation.page [MODEL --data FOLDER] [--only page,sentences,maps,images] [--out FOLDER]

- `page`: a translator's tokens compared with Python's int8 search, its speed in Node, and its loading time;
- `sentences`: the size of a page of translations, and the time until it is painted;
- `maps`: frames per second while a map is dragged;
- `images`: the size of a page with the shape of ViT-L, the time until it is drawn, and while a pointer moves over it.

MODEL is a translator of Multi30k, FOLDER has `test_2016_flickr.en.gz`; `maps` and `images` need neither. Browsers are
new and headless, without a network or a GPU.
"""

import argparse
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import dikkat
from benchmarks.kit.processes import ROOT
from benchmarks.kit.report import RESULTS, spread, write
from dikkat.inspection import Token
from dikkat.show import save_page
from dikkat.translation import Search, Translator
from dikkat.translation.data.corpus import read_lines

Record = dict[str, Any]
WEB, SHOW = ROOT / "web" / "test", ROOT / "src" / "dikkat" / "show"
BEAMS = (1, 5)
COMPARED, TIMED, ROUNDS = 500, 40, 5  # sentences whose tokens are compared, sentences that are timed, and how often
SHOWN = 200  # sentences of a page
SIDE, BROWSERS = 10_000, 3  # of a map
LAYERS, HEADS, PATCHES = 24, 16, 32  # of ViT-L with 32 × 32 patches and a class token


def node(script: str, *arguments: object, stdin: str | None = None) -> Any:
    """Run a script of `web/test` and parse its JSON output."""
    command = ["node", str(WEB / script), *map(str, arguments)]
    output = json.loads(subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout)
    if isinstance(output, dict) and output["wrong"]:
        raise SystemExit(f"the page printed errors: {output['wrong']}")
    return output


def chromium() -> str:
    path = shutil.which("chromium")
    if path is None:
        raise SystemExit("chromium: not found; install it or add it to PATH")
    return path


def page(translator: Translator, sentences: list[str], folder: Path) -> list[Record]:
    """Measure a translator's page."""
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
    """Translate with the page's decoder."""
    requests = [{"text": text, "options": {"beam": beam, "best": 1, "light": True}} for text in sentences]
    results: list[Record] = node("translate.mjs", path, stdin=json.dumps(requests))
    return results


def tokens(translator: Translator, path: Path, sentences: list[str], beam: int) -> Record:
    """Count the translations that equal Python's in tokens and letters."""
    expected = translator.translate(sentences, search=Search(beam=beam, precision="int8"))
    pairs = list(zip(in_node(path, sentences, beam), expected, strict=True))
    equal = [
        (result["best"][0]["tokens"], result["best"][0]["target"]) == (python.target_tokens, python.target)
        for result, python in pairs
    ]
    difference = max(abs(result["best"][0]["score"] - python.score) for result, python in pairs)
    return {"part": "tokens", "beam": beam, "equal": sum(equal), "sentences": len(equal), "scores_apart": difference}


def speed(path: Path, sentences: list[str], beam: int) -> Record:
    """Measure tokens per second in Node, sentence by sentence, with end tokens and encoding."""
    rates, warm = [], sentences[:5]  # until the engine has compiled what is called often
    for _ in range(ROUNDS):
        results = in_node(path, [*warm, *sentences], beam)[len(warm) :]
        token_count = sum(len(result["best"][0]["ids"]) + 1 for result in results)
        rates.append(token_count / sum(result["seconds"] for result in results))
    return {"part": "speed", "beam": beam, "kind": results[0]["kind"], "tokens_per_second": spread(rates)}


def sentences_page(translator: Translator, sentences: list[str], folder: Path) -> list[Record]:
    """Measure a page of translations, without and with the model."""
    translations, records = translator.translate(sentences[:SHOWN]), []
    for title, embedded in (("Multi30k", None), ("Multi30k, the model inside", translator)):
        path = folder / "sentences.html"
        save_page(path, translations, translator=embedded)
        timings = node("paint.mjs", path, chromium())
        waits = {name: spread(timings[name]) for name in ("painted", "drawn")}
        size = {"sentences": SHOWN, "megabytes": path.stat().st_size / 1e6, "chromium": timings["browser"]}
        records.append({"part": title, **size, "milliseconds": waits})
    return records


def maps() -> list[Record]:
    """Measure a large map: until it is drawn, and while it is dragged at each zoom level."""
    arguments = (SHOW / "living.js", SHOW / "living.css", chromium(), SIDE)
    runs = [node("pan.mjs", *arguments) for _ in range(BROWSERS)]
    opening = {name: spread([run["opening"][name] for run in runs]) for name in ("first", "whole", "longest")}
    common = {"side": SIDE, "canvas": runs[0]["canvas"], "chromium": runs[0]["browser"]}
    records: list[Record] = [{"part": "opening", **common, "milliseconds": opening}]
    for rounds in zip(*(run["rounds"] for run in runs), strict=True):
        records.append(
            {
                "part": "panning",
                "pixels_of_a_cell": rounds[0]["cell"],
                "frames_per_second": spread([1000 * len(r["frames"]) / sum(r["frames"]) for r in rounds]),
                "longest_frame_milliseconds": spread([max(r["frames"]) for r in rounds]),
            }
        )
    return records


def images(folder: Path) -> list[Record]:
    """Measure a page of attention on an image, of an untrained model."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(4 * HEADS, HEADS, 8 * HEADS, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).eval()
    picture = Image.linear_gradient("L").resize((16 * PATCHES, 16 * PATCHES))
    tokens = [Token("[CLS]", special=True), dikkat.Grid(PATCHES, PATCHES, image=picture)]
    with torch.no_grad(), dikkat.record(model, top_k=4, blocks=tokens) as trace:
        model(3 * torch.randn(1, 1 + PATCHES**2, 4 * HEADS))
    trace.tokens = tokens
    path = folder / "image.html"
    trace.to_html(path)
    waits = node("pointing.mjs", path, chromium())
    milliseconds = {name: spread(waits[name]) for name in ("opening", "maps", "handling", "frames")}
    return [{"part": "image", "megabytes": path.stat().st_size / 1e6, "milliseconds": milliseconds}]


OF_A_MODEL: dict[str, Callable[[Translator, list[str], Path], list[Record]]] = {
    "page": page,
    "sentences": sentences_page,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--data", type=Path)
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=[*OF_A_MODEL, "maps", "images"], help="by ','"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the records")
    arguments = parser.parse_args()
    for part in arguments.only:
        if part == "maps":
            records = maps()
        elif part == "images":
            with tempfile.TemporaryDirectory() as folder:
                records = images(Path(folder))
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
