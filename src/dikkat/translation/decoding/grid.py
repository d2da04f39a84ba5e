"""A search on an accelerator: the places of all sentences as one grid, on which nothing waits for the host.

The places of a sentence read one memory, so that hypotheses are reordered without a copy of it. Tables go to the host
some steps at once, where `StepBeams` does its bookkeeping with them; meanwhile a sentence that is decided goes on.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dikkat._engine import cancellation
from dikkat._engine.addresses import sent
from dikkat.recurrent import sequence
from dikkat.recurrent.fused.calls import to_dtype
from dikkat.recurrent.steps import Keys, project_states, step_layers
from dikkat.translation.decoding.compiled.beams import StepBeams
from dikkat.translation.decoding.compiled.record import ENDED
from dikkat.translation.decoding.hypothesis import Hypothesis, Sentence
from dikkat.translation.decoding.options import Search
from dikkat.translation.decoding.stepwise import mean_log
from dikkat.translation.network.model import TranslationModel, pad
from dikkat.translation.network.weights import undescribed
from dikkat.translation.text.special_tokens import BEGIN, END

_AT_ONCE = 8  # steps from one look at the tables to the next


def runs(models: Sequence[TranslationModel], search: Search) -> bool:
    """Return whether the weights describe the models, and the device is no CPU."""
    return not search.sample and not models[0].output_bias.is_cpu and not any(map(undescribed, models))


@torch.no_grad()
def searched(
    models: Sequence[TranslationModel], sentences: Sequence[Sentence], search: Search, slot_bits: Tensor
) -> list[list[Hypothesis]]:
    """The hypotheses of each sentence, best first; of equally likely tokens any goes first."""
    beams, device = StepBeams(sentences, search, slot_bits), models[0].output_bias.device
    count, beam = len(sentences), search.beam
    numbers, lengths = pad([each.tokens for each in sentences])
    grids = [Grid(model.eval(), sent(numbers, device), lengths, beam) for model in models]
    vocabulary = len(models[0].output_bias)
    bonus = sent(ENDED * F.one_hot(torch.tensor(END), vocabulary), device)
    once = sent(torch.tensor([0.0, *[-torch.inf] * (beam - 1)]), device)
    origins = torch.arange(count * beam, device=device).view(count, beam)
    parents, tokens = origins.repeat_interleave(beam, 1), torch.full_like(origins, BEGIN)
    totals = once.double().repeat(count, 1)
    tables: list[tuple[Tensor, Tensor, Tensor]] = []
    weights: list[Tensor | None] = []
    fewest = max(each.min_tokens for each in sentences)
    for step in range(beams.table_steps):
        cancellation.check()
        if step <= fewest:
            allowed = beams.allowed(step, np.arange(count), np.zeros(count, np.int64))
            special = torch.zeros(allowed.shape).masked_fill_(~allowed, -torch.inf)
            barred = sent(torch.zeros(count, 1, vocabulary).index_copy_(2, beams.limited, special[:, None]), device)
        found, looked_at = zip(*(grid.step(tokens.flatten(), origins.flatten()) for grid in grids), strict=True)
        scores = mean_log(found) if len(found) > 1 else found[0].log_softmax(1)
        likeliest, chosen = (scores.unflatten(0, (count, beam)) + barred).topk(beam)
        # What has ended stands in front and keeps one place, whatever the network says behind it.
        likeliest = torch.where((totals > ENDED / 2).unsqueeze(2), once, likeliest)
        totals, best = (totals.unsqueeze(2) + likeliest).flatten(1).topk(beam)
        tokens, origins = chosen.flatten(1).gather(1, best), parents.gather(1, best)
        tables.append((tokens, origins, totals))
        attending = [each for each, model in zip(looked_at, models, strict=True) if model.attends]
        weights.append(torch.stack(attending).mean(0) if len(attending) > 1 else next(iter(attending), None))
        totals = totals + bonus.index_select(0, tokens.flatten()).view_as(totals)
        if len(tables) == _AT_ONCE or step == beams.table_steps - 1:
            beams.take_chosen(tables, weights)
            tables, weights = [], []
            if not beams.state["rows"]:
                break
    return beams.results()


class Grid:
    """A model's steps of several hypotheses of each sentence, which share its memory.

    What a token's embedding and what a position's values add to gates and readout is computed once for all steps.
    """

    def __init__(self, model: TranslationModel, numbers: Tensor, lengths: Tensor, beam: int) -> None:
        memory, state = model.encode(numbers, lengths)
        decoder, rows = model.decoder, len(numbers) * beam
        kind = torch.promote_types(memory.value.dtype, torch.float32)
        operands, self._layers, shown = sequence.prepare_operands(decoder, memory, len(numbers), kind)
        of_state, of_context, of_word = model.readout.weight.to(kind).split(
            [decoder.hidden_size, decoder.context_size, decoder.input_size], 1
        )
        lexical = model.lexical.weight.to(kind) if model.is_lexical else torch.zeros_like(of_word)
        to_lexical = F.pad(lexical, (decoder.context_size - lexical.shape[1], 0))
        words = model.target_embedding.weight.to(kind) * math.sqrt(decoder.input_size)
        shares = (
            to_dtype(decoder.first_gates(words.to(memory.value.dtype)), kind),
            F.linear(words, of_word, to_dtype(model.readout.bias, kind)),
        )
        self._words = torch.cat([*shares, torch.zeros_like(shares[1])], 1)
        further = F.linear(memory.value.to(kind), torch.cat([of_context, to_lexical]))
        if shown is not None:
            further = torch.where(shown.mT, further, 0.0)
        self._values = torch.cat([cast(Tensor, operands.value), further], 2)
        self._sizes = [shares[0].shape[1], *[len(of_word)] * 2]
        self._readout, self._output = of_state.t(), (model.output_bias.to(kind), model.output_table.to(kind).t())
        states = state if isinstance(state, tuple) else (state,)
        parts = [list(each.to(kind).repeat_interleave(beam, 1)) for each in states]
        self._state: Sequence[Tensor] = parts[0]
        self._cell: Any = parts[1] if len(parts) > 1 else None
        operands = operands._replace(gates=self._words[:1].expand(rows, -1))
        self._look = Keys(operands, decoder.score.pair, decoder.score.profile).look
        self._query_and_gates = project_states(operands, self._layers[-1])

    def step(self, tokens: Tensor, origins: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (R, V) of the next tokens behind tokens (R,) of rows (R,), and where they looked (R, m)."""
        state = [each.index_select(0, origins) for each in self._state]
        cell = [None] * len(state) if self._cell is None else [each.index_select(0, origins) for each in self._cell]
        query, recurrent = self._query_and_gates(state[-1])
        weights = self._look(query)
        words = self._words.index_select(0, tokens).unflatten(0, weights.shape[:2])
        gates, readout, lexical = torch.baddbmm(words, weights, self._values).flatten(0, 1).split(self._sizes, 1)
        moves = step_layers(self._layers, gates, recurrent, state, cell)
        self._state, cells, _ = zip(*moves, strict=True)
        self._cell = self._cell and cells
        features = torch.addmm(readout, self._state[-1], self._readout).tanh_().add_(lexical)
        return torch.addmm(self._output[0], features, self._output[1]), weights.flatten(0, 1)
