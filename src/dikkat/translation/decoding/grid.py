"""A search on an accelerator: the hypotheses of all sentences form a grid, and no step waits for the host.

All hypotheses of a sentence read one memory, so reordering them copies nothing. The tables of several steps are sent
to the host together, where `StepBeams` records them. A sentence that has ended continues until then.
"""

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dikkat._engine import cancellation
from dikkat._engine.addresses import to_device
from dikkat.recurrent import sequence
from dikkat.recurrent.fused.calls import to_dtype
from dikkat.recurrent.steps import Keys, project_states, step_layers
from dikkat.translation.decoding.compiled.beams import StepBeams
from dikkat.translation.decoding.compiled.record import ENDED
from dikkat.translation.decoding.hypothesis import Hypothesis, Sentence
from dikkat.translation.decoding.options import Search
from dikkat.translation.decoding.stepwise import mean_log
from dikkat.translation.memory.states import Nearest, States
from dikkat.translation.network.model import TranslationModel, pad
from dikkat.translation.network.weights import undescribed
from dikkat.translation.text.special_tokens import BEGIN, END

_STEPS_AT_ONCE = 8  # steps between two transfers of tables


def can_run(models: Sequence[TranslationModel], search: Search) -> bool:
    """Return whether this engine can run the search: no samples, no CPU, and models determined by their weights."""
    return not search.sample and not models[0].output_bias.is_cpu and not any(map(undescribed, models))


@torch.no_grad()
def search_grid(
    models: Sequence[TranslationModel],
    sentences: Sequence[Sentence],
    search: Search,
    slot_bits: Tensor,
    states: Sequence[States | None],
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each sentence, best first. Equally likely tokens come in any order."""
    beams, device = StepBeams(sentences, search, slot_bits), models[0].output_bias.device
    count, beam = len(sentences), search.beam
    source_tokens, lengths = pad([sentence.tokens for sentence in sentences])
    grids = [
        Grid(model.eval(), to_device(source_tokens, device), lengths, beam, stored)
        for model, stored in zip(models, states, strict=True)
    ]
    vocabulary = len(models[0].output_bias)
    end_bonus = to_device(ENDED * F.one_hot(torch.tensor(END), vocabulary), device)
    first_place = to_device(torch.tensor([0.0, *[-torch.inf] * (beam - 1)]), device)
    origins = torch.arange(count * beam, device=device).view(count, beam)
    parents, tokens = origins.repeat_interleave(beam, 1), torch.full_like(origins, BEGIN)
    totals = first_place.double().repeat(count, 1)
    tables: list[tuple[Tensor, Tensor, Tensor]] = []
    weights: list[Tensor | None] = []
    nearest: list[Nearest | None] = []
    min_tokens = max(sentence.min_tokens for sentence in sentences)
    for step in range(beams.table_steps):
        cancellation.check()
        if step <= min_tokens:
            allowed = beams.allowed(step, np.arange(count), np.zeros(count, np.int64))
            special = torch.zeros(allowed.shape).masked_fill_(~allowed, -torch.inf)
            bars = to_device(torch.zeros(count, 1, vocabulary).index_copy_(2, beams.limited, special[:, None]), device)
        all_scores, all_weights, all_nearest = zip(
            *(grid.step(tokens.flatten(), origins.flatten()) for grid in grids), strict=True
        )
        scores = mean_log(all_scores) if len(all_scores) > 1 else all_scores[0].log_softmax(1)
        gains, top_tokens = (scores.unflatten(0, (count, beam)) + bars).topk(beam)
        # Ended hypotheses come first and keep one place each, regardless of the scores after the end.
        gains = torch.where((totals > ENDED / 2).unsqueeze(2), first_place, gains)
        totals, best = (totals.unsqueeze(2) + gains).flatten(1).topk(beam)
        tokens, origins = top_tokens.flatten(1).gather(1, best), parents.gather(1, best)
        tables.append((tokens, origins, totals))
        attention = [row for row, model in zip(all_weights, models, strict=True) if model.attends]
        weights.append(torch.stack(attention).mean(0) if len(attention) > 1 else next(iter(attention), None))
        nearest.append(all_nearest[0] if len(models) == 1 else None)
        totals = totals + end_bonus.index_select(0, tokens.flatten()).view_as(totals)
        if len(tables) == _STEPS_AT_ONCE or step == beams.table_steps - 1:
            beams.take_chosen(tables, weights, nearest)
            tables, weights, nearest = [], [], []
            if not beams.state["rows"]:
                break
    return beams.results()


class Grid:
    """A model's steps for several hypotheses of each sentence, which share its memory.

    The gates and readout are sums. The terms of each token's embedding and each position's value are computed once.
    """

    def __init__(
        self, model: TranslationModel, source_tokens: Tensor, lengths: Tensor, beam: int, stored: States | None
    ) -> None:
        memory, state = model.encode(source_tokens, lengths)
        decoder, rows = model.decoder, len(source_tokens) * beam
        dtype = torch.promote_types(memory.value.dtype, torch.float32)
        operands, self._layers, visible = sequence.prepare_operands(decoder, memory, len(source_tokens), dtype)
        state_readout, context_readout, word_readout = model.readout.weight.to(dtype).split(
            [decoder.hidden_size, decoder.context_size, decoder.input_size], 1
        )
        lexical = model.lexical.weight.to(dtype) if model.is_lexical else torch.zeros_like(word_readout)
        to_lexical = F.pad(lexical, (decoder.context_size - lexical.shape[1], 0))
        words = model.target_embedding.weight.to(dtype) * math.sqrt(decoder.input_size)
        word_shares = (
            to_dtype(decoder.first_gates(words.to(memory.value.dtype)), dtype),
            F.linear(words, word_readout, to_dtype(model.readout.bias, dtype)),
        )
        self._words = torch.cat([*word_shares, torch.zeros_like(word_shares[1])], 1)
        value_shares = F.linear(memory.value.to(dtype), torch.cat([context_readout, to_lexical]))
        if visible is not None:
            value_shares = torch.where(visible.mT, value_shares, 0.0)
        self._values = torch.cat([cast(Tensor, operands.value), value_shares], 2)
        self._sizes = [word_shares[0].shape[1], *[len(word_readout)] * 2]
        self._readout, self._output = state_readout.t(), (model.output_bias.to(dtype), model.output_table.to(dtype).t())
        states = state if isinstance(state, tuple) else (state,)
        states_by_layer = [list(tensor.to(dtype).repeat_interleave(beam, 1)) for tensor in states]
        self._state: Sequence[Tensor] = states_by_layer[0]
        self._cell: Any = states_by_layer[1] if len(states_by_layer) > 1 else None
        operands = operands._replace(gates=self._words[:1].expand(rows, -1))
        self._find_weights = Keys(operands, decoder.score.pair, decoder.score.profile).find_weights
        self._query_and_gates = project_states(operands, self._layers[-1])
        self._stored = stored and stored.to(model.output_bias)

    def step(self, tokens: Tensor, origins: Tensor) -> tuple[Tensor, Tensor, Nearest | None]:
        """Return scores (R, V), weights (R, m) and the nearest states, after `tokens` (R,) in rows `origins` (R,)."""
        state = [layer.index_select(0, origins) for layer in self._state]
        cell = [None] * len(state) if self._cell is None else [layer.index_select(0, origins) for layer in self._cell]
        query, recurrent = self._query_and_gates(state[-1])
        weights = self._find_weights(query)
        words = self._words.index_select(0, tokens).unflatten(0, weights.shape[:2])
        gates, readout, lexical = torch.baddbmm(words, weights, self._values).flatten(0, 1).split(self._sizes, 1)
        cell_steps = step_layers(self._layers, gates, recurrent, state, cell)
        self._state, cells, _ = zip(*cell_steps, strict=True)
        self._cell = self._cell and cells
        features = torch.addmm(readout, self._state[-1], self._readout).tanh_().add_(lexical)
        scores = torch.addmm(self._output[0], features, self._output[1])
        if self._stored is None:
            return scores, weights.flatten(0, 1), None
        nearest = self._stored.find_nearest(features)
        return self._stored.mix(scores, nearest), weights.flatten(0, 1), nearest
