"""Time the recording of a part of a Hugging Face model, compared with the model without a recording.

    python -m benchmarks.attention.recording [--only layer generate] [--quick]

- `layer`: GPT-2's shape, 4,096 tokens: sums and top-8 weights of one layer of twelve; memory growth compared with the
  bytes of all maps, which `output_attentions=True` returns;
- `generate`: Llama's shape, 200 tokens: all weights of two heads of one layer.

The models have random weights. Runs alternate in one process: without, with, without, with ... Answers are compared
with "eager" attention first.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import dikkat
from benchmarks.kit.memory import peak_growth
from benchmarks.kit.report import RESULTS, write
from benchmarks.kit.turns import in_turns, ratios


def compare(runs: dict[str, Callable[[], object]], turns: int) -> dict[str, Any]:
    """Return the seconds of two runs in turn, and the ratios of the second to the first."""
    seconds = in_turns(runs, turns)
    (second_run,) = ratios(seconds).values()
    return {
        "seconds": {name: [round(second, 4) for second in samples] for name, samples in seconds.items()},
        "ratio": {"median": statistics.median(second_run), "least": min(second_run), "most": max(second_run)},
    }


def sharp(model: Any) -> Any:
    """Set weights with which attention is not nearly uniform."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.05)
    return model.eval()


@torch.no_grad()
def layer(quick: bool) -> dict[str, Any]:
    tokens, turns = (256, 2) if quick else (4096, 3)
    config = transformers.GPT2Config(n_positions=tokens, vocab_size=1000, attn_implementation="dikkat")
    model, ids = sharp(transformers.GPT2Model(config)), torch.randint(0, 1000, (1, tokens))
    short = ids[:, :128]
    with dikkat.record(model, layers=5, sums=True, top_k=8) as trace:
        model(short)
    model.set_attn_implementation("eager")
    expected = model(short, output_attentions=True).attentions[5]
    model.set_attn_implementation("dikkat")
    torch.testing.assert_close(trace["h.5.attn"].sums, expected.sum(-2), rtol=1e-4, atol=1e-5)

    def recorded() -> None:
        with dikkat.record(model, layers=5, sums=True, top_k=8):
            model(ids)

    model(ids)
    growth = peak_growth(recorded)
    times = compare({"alone": lambda: model(ids), "recorded": recorded}, turns)
    maps = config.n_layer * config.n_head * tokens**2 * 4
    return times | {"tokens": tokens, "growth of memory, bytes": growth, "bytes of all maps": maps}


@torch.no_grad()
def generate(quick: bool) -> dict[str, Any]:
    new_tokens, turns = (20, 2) if quick else (200, 9)
    config = transformers.LlamaConfig(
        vocab_size=1000, hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, attn_implementation="dikkat",
    )  # fmt: skip
    model, ids = sharp(transformers.LlamaForCausalLM(config)), torch.randint(3, 1000, (1, 32))
    options = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False, "pad_token_id": 0}

    def recorded() -> dikkat.Trace:
        with dikkat.record(model, layers=5, heads=[2, 7], weights=True) as trace:
            model.generate(ids, **options)
        return trace

    attentions = recorded().attentions()
    model.set_attn_implementation("eager")
    expected = model.generate(ids, **options, output_attentions=True, return_dict_in_generate=True).attentions
    model.set_attn_implementation("dikkat")
    for (recorded_weights,), layers in zip(attentions, expected, strict=True):
        torch.testing.assert_close(recorded_weights, layers[5][:, [2, 7]], rtol=1e-4, atol=1e-5)
    return compare({"alone": lambda: model.generate(ids, **options), "recorded": recorded}, turns) | {
        "tokens": new_tokens
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measures = {"layer": layer, "generate": generate}
    parser.add_argument("--only", nargs="+", choices=measures, default=list(measures))
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the records")
    options = parser.parse_args()
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    dikkat.register_transformers()
    for name in options.only:
        print(write(f"recording-{name}", measures[name](options.quick), "numba", folder=options.out).read_text())


if __name__ == "__main__":
    main()
