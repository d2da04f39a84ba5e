"""Train English to French on Multi30k for a quarter of an hour, and record what it reaches.

    python benchmarks/translation_multi30k.py --data FOLDER [--minutes 15] [--threads 2]

FOLDER holds Multi30k's task 1 as published: train, val and test_2016_flickr, each .en.gz and .fr.gz. Everything is
chosen on val; the test set is translated once, at the end.
"""

import argparse
from pathlib import Path

import torch

from dikkat.translation import Search, Settings, Translator, evaluate, read_aligned, train
from report import write


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
        precision=arguments.precision,
    )
    corpora = {
        name: read_aligned(arguments.data / f"{name}.en.gz", arguments.data / f"{name}.fr.gz")
        for name in ("train", "val", "test_2016_flickr")
    }
    result = train(settings, corpora["train"], corpora["val"])
    scores = {name: score(result.translator, corpora[name]) for name in ("val", "test_2016_flickr")}
    results = {
        "what": "Multi30k task 1, English to French, greedy search, text as published (cased, not tokenised)",
        "settings": settings.to_dict(),
        "training": {
            "pairs": result.pairs,
            "seconds": round(result.seconds, 1),
            "target_tokens_per_second": round(result.tokens_per_second),
            "validation_losses": [round(epoch.validation_loss, 4) for epoch in result.epochs],
        },
        "scores": scores,
    }
    name = f"translation-multi30k-en-fr-{arguments.minutes:g}min-{arguments.precision}"
    path = write(name, results, "lightning", "tokenizers", "sacrebleu")
    if arguments.save:
        result.translator.save(arguments.save)
    for name, found in scores.items():
        print(f"{name}: {found['bleu_line']} [{found['bleu_signature']}]; {found['chrf_line']}")
    print(path)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with train.en.gz and the others")
    parser.add_argument("--minutes", type=float, default=15.0, help="time to train for")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=2, help="threads of PyTorch; 1 where the cores are shared")
    parser.add_argument("--save", type=Path, help="where to keep the model; default: nowhere")
    return parser.parse_args()


def score(translator: Translator, corpus: list[tuple[str, str]]) -> dict[str, object]:
    translations = translator.translate([source for source, _ in corpus], search=Search(beam=1))
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


if __name__ == "__main__":
    main()
