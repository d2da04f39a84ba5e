"""Train English to French on Multi30k for a quarter of an hour, and record what it reaches.

    python benchmarks/translation_multi30k.py --data FOLDER [--minutes 15] [--threads 2]

FOLDER holds Multi30k's task 1 as published: train, val and test_2016_flickr, each .en.gz and .fr.gz. Everything is
chosen on val; the test set is translated once, at the end.
"""

import argparse
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from dikkat.files import write_whole
from dikkat.translation import Settings, Translator, evaluate, read_aligned, train

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    settings = Settings(
        tokenizer="bpe",
        min_freq=2,
        vocabulary_size=5000,
        embedding_size=256,
        hidden_size=256,
        dropout=0.3,
        label_smoothing=0.1,
        learning_rate=2e-3,
        warmup_steps=200,
        batch_size=64,
        epochs=40,
        patience=5,
        max_minutes=arguments.minutes,
    )
    corpora = {
        name: read_aligned(arguments.data / f"{name}.en.gz", arguments.data / f"{name}.fr.gz")
        for name in ("train", "val", "test_2016_flickr")
    }
    result = train(settings, corpora["train"], corpora["val"])
    scores = {name: score(result.translator, corpora[name]) for name in ("val", "test_2016_flickr")}
    record = {
        "what": "Multi30k task 1, English to French, greedy search, text as published (cased, not tokenised)",
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"processor": processor(), "cores": os.cpu_count(), "threads": arguments.threads},
        "versions": {name: version(name) for name in ("torch", "lightning", "tokenizers", "sacrebleu")}
        | {"python": platform.python_version()},
        "commit": commit(),
        "settings": settings.to_dict(),
        "training": {
            "pairs": result.pairs,
            "seconds": round(result.seconds, 1),
            "target_tokens_per_second": round(result.tokens_per_second),
            "validation_losses": [round(epoch.validation_loss, 4) for epoch in result.epochs],
        },
        "scores": scores,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"translation-multi30k-en-fr-{datetime.now(UTC):%Y-%m-%d}.json"
    write_whole(arguments.result or path, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    if arguments.save:
        result.translator.save(arguments.save)
    for name, found in scores.items():
        print(f"{name}: {found['bleu_line']} [{found['bleu_signature']}]; {found['chrf_line']}")
    print(arguments.result or path)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with train.en.gz and the others")
    parser.add_argument("--minutes", type=float, default=15.0, help="time to train for")
    parser.add_argument("--threads", type=int, default=2, help="threads of PyTorch; 1 where the cores are shared")
    parser.add_argument("--result", type=Path, help="where to write the record; default: results/ beside this file")
    parser.add_argument("--save", type=Path, help="where to keep the model; default: nowhere")
    return parser.parse_args()


def score(translator: Translator, corpus: list[tuple[str, str]]) -> dict[str, object]:
    translations = translator.translate([source for source, _ in corpus])
    found = evaluate([translation.target for translation in translations], [target for _, target in corpus])
    return {
        "sentences": len(corpus),
        "bleu": round(found.bleu, 2),
        "bleu_line": found.bleu_line,
        "bleu_signature": found.bleu_signature,
        "chrf": round(found.chrf, 2),
        "chrf_line": found.chrf_line,
        "chrf_signature": found.chrf_signature,
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + (" with changes" if git("status", "--porcelain", "--", "../src") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


if __name__ == "__main__":
    main()
