"""Changes of one head in every model of transformers that the walk serves: a column of docs/transformers.tsv.

PYTHONPATH=src:tests python -m stress.transformers_changes rows.jsonl

`rows.jsonl` are the rows of `stress.transformers_walk`, which get the results. Each model runs with "dikkat", "sdpa"
and "eager" attention in `dikkat.change`. The expected result is that of "eager" with a softmax edited by hand.
"""

import argparse
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.overrides import TorchFunctionMode

import dikkat
from stress import transformers_walk as walk

LIMIT = 1e-5  # of a difference, as a part of the largest number
APART = 1e-3  # unchanged models with this difference are not compared
HIDDEN = -1e9  # a logit below is that of a key which the query does not see
EFFECT = 1e-4  # the smallest difference that a change makes
DROPPING = ("sliding_window", "attention_chunk_size")  # settings with which a cache drops keys
ATTENTIONS = ("dikkat", "sdpa", "eager")

Edit = Callable[[Tensor, Tensor], Tensor]


class EditedSoftmax(TorchFunctionMode):
    """Edits the results (B, H, n, m) of every softmax in a module, for one head; not of queries that see no key."""

    def __init__(self, heads: int, head: int, edit: Edit) -> None:
        super().__init__()
        self.heads, self.head, self.edit, self.active = heads, head, edit, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_softmax = self.active and getattr(func, "__name__", "") == "softmax"
        if not is_softmax or result.ndim != 4 or result.shape[1] != self.heads:
            return result
        edited, sees_key = result.clone(), args[0][:, self.head].amax(-1, keepdim=True) > HIDDEN
        row = torch.where(sees_key, self.edit(result[:, self.head].double()), result[:, self.head].double())
        edited[:, self.head] = row.to(result.dtype)
        return edited

    @contextmanager
    def within(self, module: Any) -> Iterator[None]:
        def begin(*_: Any) -> None:
            self.active = True

        def end(*_: Any) -> None:
            self.active = False

        handles = module.register_forward_pre_hook(begin), module.register_forward_hook(end)
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()


def normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-300)


def rounded(weights: Tensor) -> Tensor:
    """Return weights (B, n, m) with errors of float32; some models amplify them."""
    return weights * (1 + 1e-7 * torch.arange(weights.numel()).cos().view(weights.shape))


def cases(table: Tensor, head: int, has_sink: bool) -> dict[str, tuple[dict[str, Any], Edit]]:
    """Return the arguments of `change` and what they do to weights (B, n, m) whose last column may be a sink."""
    span, factor, mass = slice(0, max(1, table.shape[-1] // 3)), 3.0, 0.4

    def keys(weights: Tensor) -> Tensor:
        return weights[..., :-1] if has_sink else weights

    def cut_edge(weights: Tensor) -> Tensor:
        weights = weights.clone()
        first = weights.shape[-1] - has_sink - weights.shape[-2]  # the position of the first query, with a cache
        query = table.shape[-2] - 1 - max(0, first)
        if 0 <= query < weights.shape[-2]:
            weights[:, query, 0] = 0
        return normalised(weights)

    def set_mass(weights: Tensor) -> Tensor:
        share, row = keys(weights).sum(-1, keepdim=True), normalised(keys(weights))
        inside = torch.zeros(row.shape[-1], dtype=torch.bool)
        inside[span] = True
        sums = [(row * group).sum(-1, keepdim=True) for group in (inside, ~inside)]
        new = torch.where(inside, row * mass / sums[0], row * (1 - mass) / sums[1])
        new = torch.where((sums[0] > 0) & (sums[1] > 0), new, row) * share
        return torch.cat([new, weights[..., -1:]], -1) if has_sink else new

    def multiply(weights: Tensor) -> Tensor:
        weights = weights.clone()
        weights[..., span] *= factor
        return normalised(weights)

    def replace(weights: Tensor) -> Tensor:
        own = table[:, head].double()
        return torch.cat([own, 1 - own.sum(-1, keepdim=True)], -1) if has_sink else own

    return {
        "cut": ({"cut": True}, lambda weights: weights * 0),
        "edges": ({"edges": (table.shape[-2] - 1, 0)}, cut_edge),
        "mass": ({"spans": {"a": span}, "mass": mass}, set_mass),
        "scale": ({"spans": {"a": span}, "scale": {"a": factor}}, multiply),
        "weights": ({"weights": table}, replace),
    }


def changed(cls: type, config: Any, eager: Any, given: dict[str, Tensor]) -> dict[str, list[str]]:
    """Return the names of the comparisons that are equal, that raise an error of dikkat, and that differ."""
    found: dict[str, list[str]] = {"equal": [], "errors": [], "DIFFERENT": [], "no effect": [], "skipped": []}
    with dikkat.record(eager, weights=True) as trace:
        walk.forward(eager, given)
    records = {name: trace[name, -1] for name in trace.names}
    shapes = {name: record.shape for name, record in records.items() if len(record.shape) == 4}
    if not shapes:
        found["errors"].append("no layer has weights (batch, heads, queries, keys)")
        return found
    square = [name for name, shape in shapes.items() if shape[-2] == shape[-1] > 1]
    name = (square or [*shapes])[-1]
    table = records[name].weights.flip(0)  # those of another element of the batch
    module, head = eager.get_submodule(name), shapes[name][1] - 1
    has_sink = bool((table.sum(-1) < 0.999).any())
    scales = re.search("^Granite.*SWA", cls.__name__) is not None  # sinks scale the output after the softmax
    runs = {"forward": lambda model: walk.forward(model, given)}
    if "input_ids" in given and "attention_mask" in given:
        runs["left"] = lambda model: walk.forward(model, given, "left")
    if hasattr(eager, "generate") and eager.can_generate() and not walk._setting(config, *DROPPING):
        start = {key: value for key, value in given.items() if not key.startswith("decoder_")}
        runs["generate"] = lambda model: walk.generated(model, start, "none", None)
    models = {}
    for attention in ATTENTIONS:
        try:
            models[attention] = walk.made(cls, config, attention)
        except ValueError:  # transformers has no such attention for some models
            continue
    for run_name, run in runs.items():
        try:
            plain = {attention: run(model) for attention, model in models.items()}
        except Exception as error:
            found["skipped"].append(f"{run_name}: {walk._said(error)}")
            continue
        # Unchanged models differ by rounding, too, and some also in what padding attends to.
        distances = {attention: walk.apart(plain["eager"], result) for attention, result in plain.items()}
        with EditedSoftmax(shapes[name][1], head, rounded).within(module):
            rounding = max(walk.apart(plain["eager"], run(eager)), *(d for d in distances.values() if d < APART))
        found["skipped"] += [f"{run_name} ({attention})" for attention, away in distances.items() if away >= APART]
        for case, (arguments, edit) in cases(table, head, has_sink and not scales).items():
            if scales and case not in ("cut", "mass"):  # "eager" raises an error
                continue
            if (case == "weights" and run_name != "forward") or (case in ("cut", "scale") and run_name == "generate"):
                continue
            with EditedSoftmax(shapes[name][1], head, edit).within(module):
                right = run(eager)
            if walk.apart(plain["eager"], right) < EFFECT:
                found["no effect"].append(f"{run_name} {case}")
                continue
            for attention, model in models.items():
                if distances[attention] >= APART:
                    continue
                label = f"{run_name} {case} ({attention})"
                try:
                    with dikkat.change(model, layers=name, heads=head, **arguments):
                        result = run(model)
                except (ValueError, TypeError, RuntimeError) as error:
                    named = isinstance(error, ValueError) and "; expected" in str(error)
                    found["errors" if named else "DIFFERENT"].append(f"{label}: {walk._said(error)}")
                    continue
                away = walk.apart(right, result)
                if away <= max(LIMIT, 10 * rounding):
                    found["equal"].append(label)
                else:
                    found["DIFFERENT"].append(f"{label}: {away:.1e} away, unchanged models {rounding:.1e}")
    return found


def walked(cls: type, kind: str) -> dict[str, Any]:
    config, eager, given, _ = walk.prepared(cls, kind)
    return {"result": "compared", "changes": changed(cls, config, eager, given)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="the file of `stress.transformers_walk`")
    parser.add_argument("--only", help="a pattern of kinds; the table is not written then")
    args = parser.parse_args()
    transformers.logging.set_verbosity(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dikkat.register_transformers()
    rows = [json.loads(line) for line in args.rows.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        served = row["result"] in ("equal", "as sdpa", "rounding")
        if not served or "changes" in row or not re.fullmatch(args.only or ".*", row["kind"]):
            continue
        cls = next(cls for cls in walk.classes(row["kind"]) if cls.__name__ == row["class"])
        result = walk.guarded(lambda cls=cls, row=row: walked(cls, row["kind"]), walk.SECONDS)
        row["changes"] = result.get("changes", {"reason": result.get("reason", "")})
        args.rows.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(
            row["kind"],
            row["class"],
            walk.changes_of(row),
            *row["changes"].get("DIFFERENT", ()),
            sep="\n  ",
            flush=True,
        )
    if not args.only:
        walk.write(rows)


if __name__ == "__main__":
    main()
