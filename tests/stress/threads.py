"""Many threads on one object of each kind: does each find what one thread finds?

    python -m tests.stress.threads [--threads 16] [--seconds 60]
        [--only stepping translating regressing attending]

Answers are reckoned by one thread first. Then all threads ask for them, in an order of their own, for so many seconds
each kind: one prepared memory is stepped, one `Translator` translates, one `NadarayaWatson` predicts, one layer
attends, forward and backward. What differs, or raises, is counted and shown; the exit status is 1 if there was any.
A crash of compiled code ends the process.
"""

import argparse
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from dikkat import scores
from dikkat.layers import MultiHeadAttention
from dikkat.recurrent import AttentionalGRU
from dikkat.regression import NadarayaWatson
from dikkat.translation import Settings, Tokenizer, TranslationModel, Translator, phrasebook

QUESTIONS = 11  # of a kind
Ask = Callable[[int], Any]


def stepping() -> Ask:
    """One memory without gradients, of which some threads select rows."""
    torch.manual_seed(0)
    layer = AttentionalGRU(13, 37, 29, scores.Additive(29, 37, 41), num_layers=2).eval()
    with torch.no_grad():
        memory = layer.prepare(torch.randn(17, 23, 29), torch.randint(1, 24, (17,)))
    rows = [torch.randint(17, (5 + number,)) for number in range(QUESTIONS)]
    inputs = [torch.randn(4, len(row), 13) for row in rows]

    @torch.no_grad()
    def ask(number: int) -> Any:
        chosen = memory.select(rows[number])
        state, found = torch.zeros(2, len(rows[number]), 37), []
        for each in inputs[number]:
            _, context, weights, state = layer.step(each, chosen, state, return_weights=True)
            found += [context, weights]
        return [*found, *layer.step(torch.ones(17, 13), memory, torch.ones(2, 17, 37))[:2]]

    return ask


def translating() -> Ask:
    """A small model as it begins: what it writes means nothing, and is the same each time."""
    torch.manual_seed(1)
    pairs = phrasebook.pairs()[:600]
    source, target = (
        Tokenizer.train(side, "word", min_freq=1, vocabulary_size=1000) for side in zip(*pairs, strict=True)
    )
    settings = Settings(embedding_size=24, hidden_size=32)
    translator = Translator(TranslationModel(settings, len(source), len(target)), settings, source, target)
    sentences = [[english for english, _ in pairs[-1 - number :: -97]] for number in range(QUESTIONS)]

    def ask(number: int) -> Any:
        found = translator.translate(sentences[number])
        return [(each.target, torch.tensor(each.score), each.weights) for each in found]

    return ask


def regressing() -> Ask:
    """Estimates, and the standard errors that need a second order of the points, made when first asked for."""
    generator = np.random.default_rng(2)
    x = generator.uniform(0, 7, (503, 2))
    model = NadarayaWatson(bandwidth=0.7).fit(x, np.sin(x).sum(1))
    queries = [generator.uniform(0, 7, (61, 2)) for _ in range(QUESTIONS)]

    def ask(number: int) -> Any:
        mean, deviation = model.predict(queries[number], return_std=True)
        lower, upper = model.confidence_interval(queries[number])
        return [torch.from_numpy(part) for part in (mean, deviation, lower, upper, model.log_density(queries[number]))]

    return ask


def attending() -> Ask:
    """A layer with an additive score, large enough for the compiled kernels, forward and backward."""
    torch.manual_seed(3)
    layer = MultiHeadAttention(32, 4, score=scores.Additive(8, 8, 16))
    tokens = [torch.randn(2, 67, 32) for _ in range(QUESTIONS)]
    lens = [torch.randint(1, 68, (2,)) for _ in range(QUESTIONS)]

    def ask(number: int) -> Any:
        x = tokens[number].clone().requires_grad_()
        output = layer(x, x, x, lens[number])
        return [output.detach(), *torch.autograd.grad(output.square().sum(), [x, layer.score.W_q.weight])]

    return ask


KINDS = {each.__name__: each for each in (stepping, translating, regressing, attending)}


def same(found: Any, wanted: Any) -> bool:
    """To rounding, which may depend on how many threads an operation got."""
    if isinstance(wanted, torch.Tensor):
        return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-4, atol=1e-5, equal_nan=True)
    if isinstance(wanted, (list, tuple)):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return bool(found == wanted)


def contest(make: Callable[[], Ask], count: int, seconds: float) -> tuple[int, list[str]]:
    """How many answers there were, and what was wrong with some of them.

    What is asked for the answers is another object than the threads', whose caches are yet to be filled.
    """
    alone = make()
    wanted = [alone(number) for number in range(QUESTIONS)]
    ask, answers, wrong = make(), [0] * count, list[str]()
    together, end = threading.Barrier(count), time.monotonic() + seconds

    def work(thread: int) -> None:
        order = random.Random(thread)
        together.wait(60)
        while time.monotonic() < end or not answers[thread]:
            number = order.randrange(QUESTIONS)
            try:
                if not same(ask(number), wanted[number]):
                    wrong.append(f"thread {thread}: question {number} was answered otherwise")
            except Exception as error:  # whatever it is, it is to be counted
                wrong.append(f"thread {thread}: question {number} raised {type(error).__name__}: {error}")
            answers[thread] += 1

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return sum(answers), wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each kind")
    parser.add_argument("--only", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    options = parser.parse_args(arguments)
    failed = 0
    for name in options.only:
        answers, wrong = contest(KINDS[name], options.threads, options.seconds)
        print(f"{name}: {options.threads} threads, {answers:,} answers, {len(wrong):,} wrong", flush=True)
        for line in wrong[:5]:
            print(f"  {line}")
        failed += len(wrong)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
