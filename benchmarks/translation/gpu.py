"""Time a Multi30k recipe on a GPU: target tokens per second, a full training, and translation compared with the CPU.

    python -m benchmarks.translation.gpu --data FOLDER --tokens-per-second --whole --decode [--out FOLDER]

FOLDER has train.en.gz, train.de.gz, val.en.gz … test_2016_flickr.de.gz. `--batch-tokens` and `--learning-rate` override
the recipe. Without `--batch-tokens`, tokens per second are measured with several batch sizes.
"""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from benchmarks.kit.processes import ROOT
from benchmarks.kit.report import write
from dikkat import scores
from dikkat.recurrent import AttentionalGRU, AttentionalLSTM
from dikkat.translation import Search, Settings, Translator, evaluate, settings_for, train
from dikkat.translation.data.corpus import AlignedCorpus, Pair
from dikkat.translation.formats.recipe import Recipe

WARM, SENTENCES, BEAM = 8.0, 1_000, 5
SIZES = 2_048, 4_096, 8_192  # batch_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of Multi30k's files")
    parser.add_argument("--target", choices=["de", "fr"], default="de")
    parser.add_argument("--tokens-per-second", action="store_true", help="train for some seconds after warming up")
    parser.add_argument("--waits", action="store_true", help="count what waits for the device in ten seconds")
    parser.add_argument("--whole", action="store_true", help="train by the whole recipe, score val and test")
    parser.add_argument("--decode", action="store_true", help=f"translate {SENTENCES} sentences here and on the CPU")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--model", type=Path, help="folder of a trained model, for --decode")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    if torch.cuda.is_available():
        check()
    pairs = {part: read(options.data, part, options.target) for part in ("train", "val", "test_2016_flickr")}
    settings = recipe(options, pairs["train"])
    print(settings, flush=True)
    results: dict[str, Any] = {"settings": settings.to_dict()}
    if options.tokens_per_second:
        speed(settings, pairs["train"], WARM)
        for tokens in (options.batch_tokens,) if options.batch_tokens else SIZES:
            sized = Settings.from_dict(settings.to_dict() | {"batch_tokens": tokens})
            name = f"target tokens per second, batch_tokens {tokens}"
            results[name] = speed(sized, pairs["train"], options.seconds)
            print(name, results[name], flush=True)
    if options.waits:
        results["waits"] = waits(settings, pairs["train"])
        print("waits", results["waits"], flush=True)
    translator = Translator.load(options.model) if options.model else None
    if options.whole:
        translator, results["whole"] = whole(settings, pairs)
        translator.save(options.out / f"multi30k-en-{options.target}")
        print("whole", results["whole"], flush=True)
    if options.decode:
        if translator is None:
            translator = train(short(settings, 60.0), pairs["train"], progress=False).translator
        results["decode"] = decode(translator, [source for source, _ in pairs["test_2016_flickr"]][:SENTENCES])
        print("decode", results["decode"], flush=True)
    print(write(f"translator-gpu-en-{options.target}", results, "tokenizers", "sacrebleu", folder=options.out))


def read(folder: Path, part: str, target: str) -> list[Pair]:
    return list(AlignedCorpus(*(folder / f"{part}.{language}.gz" for language in ("en", target))))


def recipe(options: argparse.Namespace, pairs: list[Pair]) -> Settings:
    """Return the settings of the recipe for this device, with the options of the command."""
    values = Recipe.load(ROOT / "recipes" / f"multi30k-en-{options.target}.toml").values
    overrides = {name: getattr(options, name) for name in ("batch_size", "batch_tokens", "learning_rate")}
    return settings_for(pairs, values | {name: value for name, value in overrides.items() if value is not None})


def short(settings: Settings, seconds: float) -> Settings:
    """Return the settings with a time limit and without validation."""
    changes = {"max_minutes": seconds / 60, "epochs": 1_000, "criterion": "loss", "average": 1}
    return Settings.from_dict(settings.to_dict() | changes)


def check() -> None:
    """Check the recurrence on the device against float64 on the CPU, gradients too."""
    for kind in (AttentionalGRU, AttentionalLSTM):
        torch.manual_seed(0)
        module = kind(7, 67, 13, scores.Additive(13, 67, 29), 2).double()
        tensors = torch.randn(5, 11, 7).double(), torch.randn(5, 17, 13).double(), torch.randn(2, 5, 67).double()
        source_lengths, lengths = torch.tensor([17, 4, 0, 9, 1]), torch.tensor([11, 3, 7, 1, 11])
        results_by_device = {}
        for device in ("cpu", "cuda"):
            module.to(device)
            inputs, encoded, state = (tensor.to(device).requires_grad_() for tensor in tensors)
            states = state if kind is AttentionalGRU else (state, state.cos())
            memory = module.prepare(encoded, source_lengths.to(device))
            results = module(inputs, memory, states, lengths=lengths, return_weights=True, impl="reference")
            outputs, contexts, weights, last = results
            last = last if isinstance(last, torch.Tensor) else last[0] + last[1]
            total = sum((tensor.sin() * tensor).sum() for tensor in (outputs, contexts, weights, last))
            grads = torch.autograd.grad(total, [inputs, encoded, state, *module.parameters()])
            results_by_device[device] = [tensor.cpu() for tensor in (outputs, contexts, weights, last, *grads)]
        for on_cpu, on_gpu in zip(*results_by_device.values(), strict=True):
            torch.testing.assert_close(on_cpu, on_gpu, rtol=1e-9, atol=1e-11)
    print("the recurrence gives what float64 on the CPU gives, gradients too", flush=True)


def speed(settings: Settings, pairs: list[Pair], seconds: float) -> int:
    return round(train(short(settings, seconds), pairs, progress=False).tokens_per_second)


def waits(settings: Settings, pairs: list[Pair]) -> dict[str, int]:
    """Count how often each line waits for the device: `loop.py` once a step, `module.py` to move the model."""
    if not torch.cuda.is_available():
        return {}
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(short(settings, 10.0), pairs, progress=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    counts: dict[str, int] = {}
    for warning in caught:
        if "synchroniz" in str(warning.message):
            line = f"{Path(warning.filename).name}:{warning.lineno}"
            counts[line] = counts.get(line, 0) + 1
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def whole(settings: Settings, pairs: dict[str, list[Pair]]) -> tuple[Translator, dict[str, Any]]:
    start = time.perf_counter()
    result = train(settings, pairs["train"], pairs["val"])
    minutes = (time.perf_counter() - start) / 60
    result.translator.model.to("cuda" if torch.cuda.is_available() else "cpu")
    record: dict[str, Any] = {
        "minutes": round(minutes, 2),
        "target tokens per second": round(result.tokens_per_second),
        "validations": [[v.step, round(v.loss, 4), v.bleu and round(v.bleu, 2)] for v in result.validations],
    }
    for part in ("val", "test_2016_flickr"):
        for name, search in {"greedy": Search(beam=1), "beam": Search(beam=BEAM)}.items():
            hypotheses = result.translator.translate([source for source, _ in pairs[part]], search=search)
            scores = evaluate([t.target for t in hypotheses], [target for _, target in pairs[part]])
            record[f"{part}, {name}"] = round(scores.bleu, 2)
    return result.translator, record


def decode(translator: Translator, sources: list[str]) -> dict[str, Any]:
    """Return the seconds for all sentences on each device (the faster of two runs), and the equal translations."""
    facts: dict[str, Any] = {}
    texts = {}
    for device, sizes in {"cuda": (64, None), "cpu": (64,)}.items():
        if device == "cuda" and not torch.cuda.is_available():
            continue
        translator.model.to(device)
        for beam, size in [(beam, size) for beam in (1, BEAM) for size in sizes]:
            search, seconds = Search(beam=beam), []
            for _ in range(2):
                start = time.perf_counter()
                translations = translator.translate(sources, search=search, batch_size=size)
                seconds.append(time.perf_counter() - start)
            texts[device, beam] = [translation.target for translation in translations]
            facts[f"{device}, beam {beam}, {size or 'as many as by default'} at once, seconds"] = round(min(seconds), 3)
    for beam in (1, BEAM) if torch.cuda.is_available() else ():
        pairs = zip(texts["cuda", beam], texts["cpu", beam], strict=True)
        facts[f"the same with beam {beam}"] = sum(on_gpu == on_cpu for on_gpu, on_cpu in pairs)
    return facts


if __name__ == "__main__":
    main()
