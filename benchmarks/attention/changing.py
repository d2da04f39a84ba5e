"""Time changes, effects, masses of passages, largest scores and watches, compared with the plain model on a CPU.

    python -m benchmarks.attention.changing [--only layer effects passages max_score watch] [--quick]

All take about 12 minutes on two idle cores, and must not share them.

- `layer`: one layer of 12 changed, (1, 12, 8192, 64), causal, compared with no change: time and peak memory;
- `effects`: effects of 12 × 12 heads, GPT-2's shape, 128 tokens, in units of one forward pass;
- `passages`: 256 tokens written after 8,192, Llama's shape with 12 layers: masses of 50 spans, compared with no
  recording;
- `max_score`: GPT-2's shape, 2,048 tokens: the largest score of each query, compared with no recording, and in addition
  to the entropy;
- `watch`: training steps of GPT-2's shape with 4 layers, 4 × 256 tokens, compiled and not compiled.

The models have random weights. Answers are compared with "eager" attention first. Runs alternate in one process: A, B,
C, A, B, C ... Peak memory is that of a new process, which has imported and compiled everything before.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from torch.nn import functional as F

import dikkat
from benchmarks.attention.recording import sharp
from benchmarks.kit.memory import process_status, reset_peak
from benchmarks.kit.report import RESULTS, spread, write
from benchmarks.kit.turns import in_turns, ratios

LAYERS, HEADS, WIDTH, MIB = 12, 12, 64, 2**20
LENGTHS = {False: 8192, True: 512}  # of the changed layer, by `quick`
FORWARDS = 9  # forward passes in a turn, since a single one is short compared with pauses of the machine
EVERY = 100
PLAIN = "plain"
Run = Callable[[], Any]


def compare(runs: dict[str, Run], turns: int) -> dict[str, Any]:
    """Return the seconds of each run, and the ratios to the first run, turn by turn."""
    seconds = in_turns(runs, turns)
    return {
        "seconds": {name: spread(samples) for name, samples in seconds.items()},
        "ratio": {name: spread(samples) for name, samples in ratios(seconds).items()},
    }


def peak(make_runs: Callable[[bool], dict[str, Run]], name: str, quick: bool) -> float:
    """Return the peak memory of one run in a new process, in MiB."""
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as fresh:
        return fresh.submit(_peak, make_runs, name, quick, torch.get_num_threads()).result()


def _peak(make_runs: Callable[[bool], dict[str, Run]], name: str, quick: bool, threads: int) -> float:
    torch.set_num_threads(threads)
    for warm_up in make_runs(True).values():  # import and compile
        warm_up()
    run = make_runs(quick)[name]
    reset_peak()
    run()
    return process_status("VmHWM") / MIB


# --- one layer of 12


class Attention(nn.Module):
    """Causal attention without projections."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class Stack(nn.Module):
    """Layers of attention that each read the output of the previous one."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(layers))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        for layer in self.layers:
            query = query + layer(query, key, value)
        return query


def layer_changes(length: int) -> dict[str, dict[str, Any]]:
    """Return the arguments of `dikkat.change` by name."""
    torch.manual_seed(1)
    table = torch.rand(length, length).tril_()
    table /= table.sum(-1, keepdim=True)
    span = {"span": slice(length // 8, length // 4)}
    return {
        "cut": {"cut": True},
        "mass": {"spans": span, "mass": 0.4},
        "edges": {"edges": (length - 1, 1)},
        "scale": {"spans": span, "scale": {"span": 3.0}},
        "weights": {"weights": table},
    }


def layer_runs(quick: bool, layers: int = 2) -> dict[str, Run]:
    """Return runs without a change and with each change of layer 1. Peak memory does not depend on `layers`."""
    length = LENGTHS[quick]
    torch.manual_seed(0)
    model, inputs = Stack(layers).eval(), [torch.randn(1, HEADS, length, WIDTH) for _ in range(3)]

    def run(arguments: dict[str, Any]) -> Tensor:
        with torch.no_grad(), dikkat.change(model, layers="layers.1", **arguments) if arguments else nullcontext():
            return model(*inputs)

    return {name: partial(run, arguments) for name, arguments in {"no change": {}, **layer_changes(length)}.items()}


def check_layer(length: int = 101) -> None:
    """Compare each change with attention weights edited in float64."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, HEADS, length, WIDTH) for _ in range(3))
    logits = (query.double() @ key.double().mT / WIDTH**0.5).masked_fill(
        torch.ones(length, length).triu(1).bool(), -torch.inf
    )
    weights, span = logits.softmax(-1), slice(length // 8, length // 4)
    inside = torch.zeros(length, dtype=torch.bool)
    inside[span] = True
    in_span, rest = (weights * group for group in (inside, ~inside))
    in_sum, rest_sum = in_span.sum(-1, keepdim=True), rest.sum(-1, keepdim=True)
    scaled, without_edge = weights + 2 * in_span, weights.clone()
    without_edge[..., -1, 1] = 0
    changes = layer_changes(length)
    expected = {
        "cut": 0 * weights,
        "mass": torch.where((in_sum > 0) & (rest_sum > 0), 0.4 * in_span / in_sum + 0.6 * rest / rest_sum, weights),
        "edges": without_edge / without_edge.sum(-1, keepdim=True),
        "scale": scaled / scaled.sum(-1, keepdim=True),
        "weights": changes["weights"]["weights"].double().expand_as(weights),
    }
    model = Attention()
    for name, arguments in changes.items():
        with dikkat.change(model, **arguments):
            result = model(query, key, value)
        difference = (result.double() - expected[name] @ value.double()).abs().max().item()
        assert difference < 1e-5, f"{name}: {difference}"


def layer(quick: bool) -> dict[str, Any]:
    check_layer()
    runs = layer_runs(quick, LAYERS)
    for warm_up in layer_runs(quick=True).values():
        warm_up()
    times = compare(runs, 2 if quick else 3)
    peaks = {name: peak(layer_runs, name, quick) for name in list(runs)[: 2 if quick else None]}
    table = LENGTHS[quick] ** 2 * 4 / MIB  # the weights that the caller passes, which each process has
    return times | {
        "peak MiB": peaks,
        "peak ratio": {name: (mebibytes - table) / (peaks["no change"] - table) for name, mebibytes in peaks.items()},
    }


# --- effects


def first_numbers(output: Any) -> Tensor:
    """Return a logit of the last position for each element of the batch."""
    return output.logits[:, -1, 7]


def first_number(output: Any) -> Tensor:
    """Return a logit of the last position."""
    return output.logits[0, -1, 7]


def check_effects(config: Any) -> float:
    """Return the largest difference to separate cuts, in float64."""
    model, ids = sharp(transformers.GPT2LMHeadModel(config)).double(), torch.randint(0, 1000, (1, 17))
    tables = [dikkat.effects(model, ids, target=target) for target in (first_number, first_numbers)]
    with torch.no_grad():
        plain, effects = float(first_number(model(ids))), []
        for number in range(config.n_layer):
            for head in range(config.n_head):
                with dikkat.change(model, layers=number, heads=head, cut=True):
                    effects.append(float(first_number(model(ids))) - plain)
    return max(abs(effect - value) for table in tables for effect, value in zip(effects, table["effect"], strict=True))


def effects(quick: bool) -> dict[str, Any]:
    layers, tokens, turns = (2, 32, 2) if quick else (12, 128, 3)
    config = transformers.GPT2Config(n_positions=128, vocab_size=1000, n_layer=layers, attn_implementation="sdpa")
    difference = check_effects(config)
    assert difference < 1e-6, difference
    model, ids = sharp(transformers.GPT2LMHeadModel(config)), torch.randint(0, 1000, (1, tokens))

    def forwards() -> None:
        with torch.no_grad():
            for _ in range(FORWARDS):
                model(ids)

    runs: dict[str, Run] = {
        "forward passes": forwards,
        "exact": lambda: dikkat.effects(model, ids, target=first_number),
        "estimate": lambda: dikkat.effects(model, ids, target=first_number, exact=False),
    }
    forwards()
    runs["estimate"]()
    seconds = in_turns(runs, turns)
    in_forwards = {name: [FORWARDS * ratio for ratio in samples] for name, samples in ratios(seconds).items()}
    seconds["forward passes"] = [second / FORWARDS for second in seconds["forward passes"]]
    return {
        "heads": layers * config.n_head,
        "largest difference to separate cuts": difference,
        "seconds": {name: spread(samples) for name, samples in seconds.items()},
        "ratio": {name: spread(samples) for name, samples in in_forwards.items()},
    }


# --- passages


class Writing:
    """A model with Llama's shape that writes tokens after a long text with 50 passages."""

    def __init__(self, quick: bool) -> None:
        tokens, self.new_tokens, layers = (500, 8, 2) if quick else (8192, 256, LAYERS)
        config = transformers.LlamaConfig(
            vocab_size=1000, hidden_size=384, intermediate_size=1024, num_hidden_layers=layers,
            num_attention_heads=HEADS, num_key_value_heads=4, max_position_embeddings=tokens + self.new_tokens,
            attn_implementation="dikkat",
        )  # fmt: skip
        dikkat.register_transformers()
        torch.manual_seed(0)
        self.model, self.ids = sharp(transformers.LlamaForCausalLM(config)), torch.randint(3, 1000, (1, tokens))
        words = Tokenizer(WordLevel({str(number): number for number in range(1000)}))
        words.pre_tokenizer = WhitespaceSplit()  # type: ignore[assignment]
        self.tokenizer, size = transformers.PreTrainedTokenizerFast(tokenizer_object=words), tokens // 50
        self.spans = {f"passage {number}": slice(number * size, (number + 1) * size) for number in range(50)}

    def write(self) -> None:
        self.model.generate(
            self.ids, max_new_tokens=self.new_tokens, min_new_tokens=self.new_tokens, do_sample=False, pad_token_id=0
        )

    def recorded(self) -> dikkat.Trace:
        """Write, and return the masses of the spans for each written token."""
        with dikkat.record(self.model, spans=self.spans, queries=[-1]) as trace:
            self.write()
        return trace

    def shown(self) -> Any:
        """Write, and return the page of `dikkat.show.generation` with the same spans."""
        pieces = [" ".join(map(str, self.ids[0, span].tolist())) for span in self.spans.values()]
        spans, start = dict[str, tuple[int, int]](), 0
        for name, piece in zip(self.spans, pieces, strict=True):
            spans[name], start = (start, start + len(piece)), start + len(piece) + 1
        rest = " ".join(map(str, self.ids[0, self.spans["passage 49"].stop :].tolist()))
        return dikkat.show.generation(
            self.model, self.tokenizer, " ".join([*pieces, rest]), spans=spans, max_new_tokens=self.new_tokens,
            min_new_tokens=self.new_tokens, do_sample=False, pad_token_id=0,
        )  # fmt: skip


def passages_runs(quick: bool) -> dict[str, Run]:
    writing = Writing(quick)
    return {"no recording": writing.write, "50 spans": writing.recorded, "a page of 50 spans": writing.shown}


def check_passages() -> None:
    """Compare the masses of the first written token with "eager" attention."""
    writing = Writing(quick=True)
    trace, page = writing.recorded(), writing.shown()
    writing.model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = writing.model(writing.ids, output_attentions=True).attentions
    for number, weights in enumerate(attentions):
        masses = weights[0, :, -1].unflatten(-1, (50, -1)).sum(-1)
        recorded = trace[f"model.layers.{number}.self_attn", 0].span_mass
        torch.testing.assert_close(recorded[0, :, 0], masses, rtol=1e-4, atol=1e-6)
        # On the page, the first token does not count as a part of the first passage.
        shown = torch.from_numpy(page.masses[0, number * HEADS : (number + 1) * HEADS, 1:50]).float()
        torch.testing.assert_close(shown, masses[:, 1:], rtol=1e-4, atol=1e-6)


def passages(quick: bool) -> dict[str, Any]:
    check_passages()  # imports and compiles, too
    runs = passages_runs(quick)
    times = compare(runs, 2 if quick else 3)
    peaks = {name: peak(passages_runs, name, quick) for name in runs}
    tensors = [tensor for _, record in runs["50 spans"]().calls() for tensor in record.tensors().values()]
    return times | {
        "peak MiB": peaks,
        "extra MiB": peaks["50 spans"] - peaks["no recording"],
        "MiB of the record": sum(tensor.nbytes for tensor in tensors) / MIB,
    }


# --- the largest score


@torch.no_grad()
def max_score(quick: bool) -> dict[str, Any]:
    tokens, layers, turns = (256, 2, 2) if quick else (2048, LAYERS, 3)
    config = transformers.GPT2Config(n_positions=tokens, vocab_size=1000, n_layer=layers, attn_implementation="dikkat")
    dikkat.register_transformers()
    model, ids = sharp(transformers.GPT2Model(config)), torch.randint(0, 1000, (1, tokens))
    requests = {"max_score": {"max_score": True}, "entropy": {"entropy": True}}
    requests["entropy, max_score"] = dict.fromkeys(requests, True)

    def recorded(request: dict[str, Any], inputs: Tensor = ids) -> dikkat.Trace:
        with dikkat.record(model, **request) as trace:
            model(inputs)
        return trace

    projections: list[Tensor] = []
    hook = model.h[1].attn.c_attn.register_forward_hook(lambda *call: projections.append(call[-1].double()))
    record = recorded(requests["max_score"], ids[:, :97])["h.1.attn"]
    hook.remove()
    query, key, _ = (t.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for t in projections[0].chunk(3, -1))
    scores = (query @ key.mT / WIDTH**0.5).masked_fill(torch.ones(97, 97).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(record.max_score.double(), scores.amax(-1), rtol=1e-4, atol=1e-4)

    runs: dict[str, Run] = {"no recording": lambda: model(ids)}
    runs |= {name: partial(recorded, request) for name, request in requests.items()}
    for run in runs.values():
        run()
    seconds = in_turns(runs, turns)
    both = {name: seconds[name] for name in ("entropy", "entropy, max_score")}
    return {
        "tokens": tokens,
        "seconds": {name: spread(samples) for name, samples in seconds.items()},
        "ratio": {name: spread(samples) for name, samples in ratios(seconds).items()},
        "ratio to the same recording without max_score": spread(ratios(both)["entropy, max_score"]),
    }


# --- watches


class Training:
    """Training steps of a model; with `every`, a watch that is created before the model is compiled."""

    def __init__(self, quick: bool, compiled: bool = False, every: int | None = None) -> None:
        layers, width, shape = (1, 96, (2, 32)) if quick else (4, 768, (4, 256))
        config = transformers.GPT2Config(
            n_positions=shape[1], vocab_size=1000, n_layer=layers, n_embd=width, n_head=HEADS, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa",
        )  # fmt: skip
        self.model = sharp(transformers.GPT2LMHeadModel(config)).train()
        self.ids = torch.randint(0, 1000, shape)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.watched = None if every is None else dikkat.watch(self.model, every=every)
        if compiled:
            self.model.compile()

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.model(self.ids, labels=self.ids).loss.backward()
        self.optimizer.step()


def check_watch() -> None:
    training = Training(quick=True, every=1)
    training.model(training.ids)
    rows = training.watched.latest
    training.model.set_attn_implementation("eager")
    with torch.no_grad():
        attentions = training.model(training.ids, output_attentions=True).attentions
    assert len(rows) == len(attentions) * training.model.config.n_head
    for row in rows:
        weights = attentions[row.layer][:, row.head]
        expected = torch.stack([torch.special.entr(weights).sum(-1).mean(), weights[..., 0].mean()])
        torch.testing.assert_close(torch.tensor([row.entropy, row.first_mass]), expected, rtol=1e-4, atol=1e-5)


def watch(quick: bool) -> dict[str, Any]:
    check_watch()
    return {"not compiled": watched_steps(quick, compiled=False), "compiled": watched_steps(quick, compiled=True)}


def watched_steps(quick: bool, compiled: bool) -> dict[str, Any]:
    """Compare plain training steps with watched steps, and with the other steps of a watched training."""
    plain, training = Training(quick, compiled), Training(quick, compiled, every=2)
    runs: dict[str, Run] = {PLAIN: plain.step, "watched": training.step, "not watched": training.step}
    in_turns(runs, 1)  # what is compiled at first
    seconds = in_turns(runs, 2 if quick else 3)
    rows = zip(*seconds.values(), strict=True)
    return {
        "seconds": {name: spread(samples) for name, samples in seconds.items()},
        "ratio": {
            "every=1": spread(ratios(seconds)["watched"]),
            f"every={EVERY}": spread([(first + (EVERY - 1) * later) / EVERY / alone for alone, first, later in rows]),
        },
    }


SECTIONS = {"layer": layer, "effects": effects, "passages": passages, "max_score": max_score, "watch": watch}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the records")
    options = parser.parse_args()
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    for name in options.only:
        results = SECTIONS[name](options.quick)
        print(write(f"changing-{name.replace('_', '-')}", results, "numba", "transformers", folder=options.out))


if __name__ == "__main__":
    main()
