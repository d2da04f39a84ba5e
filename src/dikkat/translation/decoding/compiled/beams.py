"""The growing hypotheses of a batch, in arrays that compiled search rules read and write through a `CallRecord`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dikkat._engine import addresses
from dikkat._engine.record import NUMPY, CallRecord, round_up
from dikkat.errors import InputError
from dikkat.translation.decoding.compiled.record import HYPOTHESES, LINE, NONFINITE_SCORES, STATE
from dikkat.translation.decoding.hypothesis import Hypothesis, Sentence
from dikkat.translation.decoding.options import Search
from dikkat.translation.memory.states import Nearest
from dikkat.translation.text.special_tokens import BEGIN, SPECIAL

_STEP_TABLES = ("step_totals", "step_tokens", "step_rows", "step_origins", "step_missing", "step_ended", "step_out")
_DTYPES: dict[torch.dtype, np.dtype[Any]] = {**NUMPY, torch.int64: np.dtype(np.int64), torch.bool: np.dtype(np.bool_)}

Table = np.ndarray[Any, Any]


class Beams:
    """Up to K = `beam` hypotheses, best first, for each of B = `count` sentences.

    `tables` has the small tables of `record.HYPOTHESES` by name, and further `engine_tables`, a name and a size each.
    `state` is the progress of the search (`record.STATE`). There is memory for `table_steps` steps.
    """

    def __init__(self, call: CallRecord, count: int, beam: int, n_best: int, **engine_tables: int) -> None:
        self.call, self._count, self._beam, self._n_best = call, count, beam, n_best
        self.table_steps, rows, results = 0, count * beam, count * n_best
        call.fields |= {"sentences": count, "beam": beam, "n_best": n_best}
        for name in ("gains", "tokens"):
            call.new(name, rows, beam)
        sizes = {
            **dict.fromkeys(("fewest", "limits", "open", "copies", "slots"), count),
            **dict.fromkeys(("next_rows", "next_sentences", "next_tokens", "next_missing", "totals"), rows),
            **dict.fromkeys(("best_ended", "result_steps", "result_places", "result_ended"), results),
            **dict.fromkeys(("result_scores", "result_totals"), results),
            "state": STATE.itemsize // 8,
            **engine_tables,
        }
        # Tables share no cache line, since several workers write some of them.
        line_words = LINE // 8
        padded_sizes = {name: round_up(size, line_words) for name, size in sizes.items()}
        storage = torch.zeros(sum(padded_sizes.values()) + line_words, dtype=torch.int64, device="cpu")
        self._memory = memory = storage.numpy()
        base = addresses.address("a search's tables", storage, storage.dtype) // 8  # in words of 8 bytes
        offset, self.tables = -base % line_words, dict[str, Table]()
        self._storage = storage
        for name, size in sizes.items():
            self.tables[name] = memory[offset : offset + padded_sizes[name]].view(_DTYPES[call.kind(name)])[:size]
            call.fields[name] = 8 * (base + offset)
            offset += padded_sizes[name]
        self.state = self.tables["state"].view(STATE)
        self.tables["open"][:] = beam
        self.tables["next_rows"][:] = self.tables["next_sentences"][:] = range(rows)  # the first step uses B rows
        self.tables["next_tokens"][:] = BEGIN
        self.tables["best_ended"][:] = self.tables["totals"][:] = -np.inf
        self.tables["totals"][::beam] = 0.0
        self.state["rows"] = count
        self._initial = memory.copy()

    def begin(self, sentences: Sequence[Sentence], search: Search, slot_bits: Tensor) -> None:
        """Start a search of B sentences. `slot_bits` (V,) has the bit of the slot that each token fills, 0 for none."""
        self._sentences = sentences
        self._memory[:] = self._initial
        self.state["table_steps"] = self.table_steps
        self.call.fields["penalty"] = search.penalty
        self.call.point("slot_bits", slot_bits)
        fields = {"copies": "copies", "fewest": "min_tokens", "limits": "max_tokens", "slots": "slots"}
        for name, field in fields.items():
            self.tables[name][:] = [getattr(sentence, field) for sentence in sentences]
        self.tables["next_missing"][: len(sentences)] = self.tables["slots"]

    def grow_tables(self, steps: int) -> None:
        """Enlarge the tables of steps to this many steps, and keep their contents."""
        for name in _STEP_TABLES:
            self.extend(name, steps, self._count, self._beam)
        for name in ("result_ids", "result_rows"):
            self.call.new(name, self._count * self._n_best, steps)
        self.state["table_steps"] = self.table_steps = steps

    def extend(self, name: str, steps: int, *shape: int) -> None:
        """Enlarge a table to (steps, *shape), and keep its contents."""
        old_table = self.call.kept.get(name)
        table = self.call.new(name, steps, *shape)
        if old_table is not None:
            table[: len(old_table)] = old_table

    def check(self) -> None:
        """Raise `InputError` if a row's best score is not finite."""
        if self.state["status"] == NONFINITE_SCORES:
            raise InputError(
                "the model's scores of the next token are not finite (NaN or infinite): its weights are damaged, or "
                "its training diverged. Train it again, with a lower learning rate"
            )

    def hypotheses(
        self, weights: Sequence[Tensor] | Tensor, nearest: Sequence[Sequence[Tensor] | Tensor]
    ) -> list[list[Hypothesis]]:
        """Return each sentence's best hypotheses, after its last step.

        Args:
            weights: The attention weights (R, S) of each step; empty for a model without attention.
            nearest: The nearest stored states and their weights, (R, K) of each step each; empty without a memory.
        """
        last_steps, steps = self.tables["result_steps"], int(self.state["step"][0])
        lengths = last_steps + 1 - self.tables["result_ended"]  # the end token is not part of the translation
        totals, ended = self.tables["result_totals"].tolist(), self.tables["result_ended"].tolist()
        ids, rows = (self.call.kept[name].numpy()[:, :steps] for name in ("result_ids", "result_rows"))
        all_weights = _select(weights, rows)
        all_nearest = [_select(tables, rows) for tables in nearest]
        results: list[list[Hypothesis]] = [[] for _ in self._sentences]
        for hypothesis in (last_steps >= 0).nonzero()[0].tolist():
            sentence, length = hypothesis // self._n_best, int(lengths[hypothesis])
            positions = len(self._sentences[sentence].tokens)
            if all_weights is None:
                token_weights = torch.full((length, positions), 1 / positions, device="cpu")
            else:
                # A copy, since a view would keep the weights of all hypotheses alive.
                token_weights = torch.from_numpy(all_weights[hypothesis, :length, :positions].astype(np.float32))
            stored = [torch.from_numpy(t[hypothesis, :length].copy()) for t in all_nearest if t is not None]
            result = Hypothesis(
                ids[hypothesis, :length].tolist(), totals[hypothesis], token_weights, bool(ended[hypothesis]),
                Nearest(*stored) if stored else None,
            )  # fmt: skip
            results[sentence].append(result)
        return results


def _select(tables: Sequence[Tensor] | Tensor, rows: Table) -> Table | None:
    """Return the rows (H, T) of the tables of T steps, (H, T, width); None without tables."""
    if isinstance(tables, Tensor):
        selected: Table = tables.numpy()[np.arange(rows.shape[1]), rows]
        return selected
    if not tables:
        return None
    # A device may have taken steps after the search was over.
    by_step = zip(tables, torch.from_numpy(rows.T).to(tables[0].device), strict=False)
    chosen = torch.stack([table[step_rows] for table, step_rows in by_step], 1)
    return (chosen.float() if chosen.is_floating_point() else chosen).cpu().numpy()


class StepBeams(Beams):
    """Hypotheses of an engine in PyTorch: `stepwise` calls `take` after each step, `grid` calls `take_chosen`."""

    def __init__(self, sentences: Sequence[Sentence], search: Search, slot_bits: Tensor) -> None:
        if reasons := addresses.numba_obstacles():
            raise InputError(f"translation needs compiled code: {reasons[0]}. Install or repair numba")
        call = CallRecord(HYPOTHESES, torch.float64)
        call.alone = True  # runs on this thread only
        super().__init__(call, len(sentences), search.beam, search.n_best)
        self.begin(sentences, search, slot_bits)
        bits = slot_bits.numpy()
        limited = np.union1d(np.arange(SPECIAL), bits.nonzero()[0])
        self.limited, self._limited_bits = torch.from_numpy(limited), bits[limited]
        self.grow_tables(max(sentence.max_tokens for sentence in sentences))
        self._weights: list[Tensor] = []
        self._nearest: list[Nearest] = []

    def allowed(self, step: int, sentences: Table, missing: Table) -> Tensor:
        """Return which `limited` tokens may be next, (R, L) bool, by the rows' sentences and missing slots (R,)."""
        from dikkat.translation.decoding.compiled.rules import may_be_next

        min_length, may_copy = (self.tables[name][sentences, None] for name in ("fewest", "copies"))
        allowed = may_be_next(self.limited.numpy(), self._limited_bits, missing[:, None], may_copy, min_length, step)
        return torch.from_numpy(allowed)

    @property
    def rows(self) -> tuple[Table, Table, Table, Table]:
        """The hypotheses that continue: last tokens, rows in the step before, sentences, missing slots, (R,) each."""
        count = int(self.state["rows"][0])
        names = ("next_tokens", "next_rows", "next_sentences", "next_missing")
        return tuple(self.tables[name][:count].copy() for name in names)  # type: ignore[return-value]

    def take(self, gains: Tensor, tokens: Tensor, weights: Tensor | None, nearest: Nearest | None) -> None:
        """Add a step: the likeliest tokens (R, K), best first, their log-probabilities, weights and nearest states."""
        arrays, count = self.call.kept, len(gains)
        arrays["gains"][:count], arrays["tokens"][:count] = gains, tokens
        self._advance([weights], [nearest], chosen=0)

    def take_chosen(
        self,
        steps: Sequence[tuple[Tensor, Tensor, Tensor]],
        weights: Sequence[Tensor | None],
        nearest: Sequence[Nearest | None],
    ) -> None:
        """Add steps chosen on a device.

        Args:
            steps: The best tokens, origins and log-probabilities (B, K) of each step.
            weights: The attention weights (B·K, S) of each step.
            nearest: The nearest stored states of each step.
        """
        start = int(self.state["step"][0])
        columns = torch.stack([torch.stack(tables).double() for tables in zip(*steps, strict=True)]).cpu()
        for name, column in zip(("step_tokens", "step_origins", "step_totals"), columns, strict=True):
            self.call.kept[name][start : start + len(steps)] = column
        # A grid has a row for each place, so that rows are origins.
        self.call.kept["step_rows"][start : start + len(steps)] = columns[1]
        self._advance(weights, nearest, chosen=len(steps))

    def results(self) -> list[list[Hypothesis]]:
        """Return each sentence's best hypotheses, after its last step."""
        return self.hypotheses(self._weights, list(zip(*self._nearest, strict=True)))

    def _advance(self, weights: Sequence[Tensor | None], nearest: Sequence[Nearest | None], chosen: int) -> None:
        from dikkat.translation.decoding.compiled import rules

        self._weights += [tensor for tensor in weights if tensor is not None]
        self._nearest += [tensors for tensors in nearest if tensors is not None]
        self.call.fields["chosen"] = chosen
        self.call.run(rules.advance, 1)
        self.check()
