"""The parts of a step, each on its own: forward and backward."""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.kit.turns import Task, measured, milliseconds, once
from benchmarks.translation import textbook
from benchmarks.translation.agreement import objection, truth
from benchmarks.translation.corpora import Corpus
from benchmarks.translation.networks import LOOP, OURS, OURS_HALF, REFERENCE, Ours, Way, real, way
from dikkat.translation.network.model import Batch, expected

Record = dict[str, Any]
Forwards = tuple[Callable[[], tuple[Tensor, ...]], ...]


def stages(corpus: Corpus, arguments: argparse.Namespace) -> list[Record]:
    """Milliseconds of each part of a step, forward and backward."""
    batch = corpus.batches(1)[0]
    right, records, tasks = truth(corpus.sizes, batch), [], {}
    for name in (LOOP, REFERENCE, OURS, OURS_HALF):
        entrant = way(name, corpus.sizes)
        why = objection(right, entrant, batch)
        made = {} if why else parts(entrant, batch)
        tasks |= {f"{stage}/{name}": task for stage, task in made.items()}
        records += [{"stage": stage, "who": name} for stage in made] or [{"who": name, "not_run": why}]
    samples = measured(dict(sorted(tasks.items())), arguments.seconds)
    return [r if "not_run" in r else r | {"ms": milliseconds(samples[f"{r['stage']}/{r['who']}"])} for r in records]


def parts(entrant: Way, batch: Batch) -> dict[str, Task]:
    """Each on what comes out of the one before; the embeddings' forward and backward are the encoder's."""
    batch, model = entrant.prepare(batch), entrant.model
    entrant.backward(batch)
    encoder, decoder, output = (loop_parts if isinstance(model, textbook.Loop) else our_parts)(model, batch)
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    kept = [parameter.grad.clone() for parameter in parameters]

    def restore() -> None:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient.clone()

    def optimise() -> None:
        entrant.clip()
        entrant.optimizer.step()

    def both(forward: Callable[[], tuple[Tensor, ...]]) -> Task:
        with entrant.precision(), torch.no_grad():
            upstream = [torch.randn_like(result) for result in forward()]

        def run() -> None:
            with entrant.precision():
                results = forward()
            torch.autograd.backward(results, upstream)

        return once(run, before=entrant.optimizer.zero_grad)

    made = {"encoder": both(encoder), "decoder": both(decoder), "output layer and loss": both(output)}
    return made | {"clipping and Adam": once(optimise, before=restore)}


def loop_parts(model: textbook.Loop, batch: Batch) -> Forwards:
    def encoder() -> tuple[Tensor, ...]:
        return model.encode(model.source_embedding(batch.source), batch.source_lengths)

    with torch.no_grad():
        encoded, state = encoder()
        inputs = model.target_embedding(batch.target[:, :-1])
        features = model.decode(inputs, encoded, batch.source_lengths, state)[0]
    encoded, state, inputs, features = _leaves(encoded, state, inputs, features)

    def decoder() -> tuple[Tensor, ...]:
        return model.decode(inputs, encoded, batch.source_lengths, state)[:1]

    return encoder, decoder, lambda: (textbook.masked_loss(model.output(features), batch),)


def our_parts(model: Ours, batch: Batch) -> Forwards:
    def encoder() -> tuple[Tensor, ...]:
        return model.encoder(model.source_embedding(batch.source), batch.source_lengths, impl=model.impl)

    with torch.no_grad():
        encoded, state = encoder()
        inputs = model.target_embedding(batch.target[:, :-1])
        features = model.features(batch)
    encoded, state, inputs, features = _leaves(encoded, state, inputs, features)

    def decoder() -> tuple[Tensor, ...]:
        memory = model.decoder.prepare(encoded, batch.source_lengths)
        return (model.decode(inputs, memory, state, batch.target_lengths)[real(batch)],)

    return encoder, decoder, lambda: (model.output_loss(features, expected(batch)),)


def _leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().requires_grad_() for tensor in tensors]
