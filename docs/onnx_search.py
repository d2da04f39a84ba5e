"""Translation with the two graphs that `dikkat export MODEL --onnx FOLDER` writes: greedy and beam search in NumPy.

    python onnx_search.py FOLDER --beam 5 "She is tired." "He is calm."

It needs numpy, onnxruntime and tokenizers, and nothing of dikkat. An unknown word of the source is never written.
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import tokenizers

Array = np.ndarray[Any, Any]
PAD, UNKNOWN, BEGIN, END = range(4)


class Found(NamedTuple):
    """A translation: token numbers without the end, log-probability, and whether the model ended it itself."""

    ids: list[int]
    total: float
    finished: bool


class Graphs:
    """The encoder and a step of the decoder."""

    def __init__(self, folder: Path) -> None:
        self.encoder, self.decoder = (
            onnxruntime.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
            for name in ("encoder", "decoder")
        )

    def read(self, source: list[int]) -> dict[str, Array]:
        """What one sentence gives: all that a step needs beside a token, one row of each."""
        given = {"source": np.array([source]), "lengths": np.array([len(source)])}
        return _run(self.encoder, given)

    def step(self, tokens: list[int], given: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        """Log-probabilities (rows, V) of the next tokens, and what the step after this one needs."""
        found = _run(self.decoder, {"token": np.array(tokens), **given})
        following = {name: found.get(f"next_{name}", value) for name, value in given.items()}
        return found["log_probabilities"], following


def _run(session: onnxruntime.InferenceSession, inputs: dict[str, Array]) -> dict[str, Array]:
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def translate(graphs: Graphs, source: list[int], beam: int = 5, penalty: float = 1.0, most: int | None = None) -> Found:
    """The best translation that a beam finds; a beam of 1 takes the likeliest token at each step."""
    most = most or min(2 * len(source) + 10, len(source) + 50)
    places, given = beam, graphs.read(source)
    living, best, cut = [([], 0.0)], [], []
    while living:
        gains, given = graphs.step([ids[-1] if ids else BEGIN for ids, _ in living], given)
        gains = gains.astype(np.float64)
        gains[:, [PAD, UNKNOWN, BEGIN]] = -np.inf
        if not living[0][0]:
            gains[:, END] = -np.inf
        reached = (gains + np.array([total for _, total in living])[:, None]).ravel()
        # Of equal ones, the one that stood higher goes first, then the one with the lower number.
        chosen = np.argsort(-reached, kind="stable")[:places]
        rows, tokens = np.divmod(chosen[reached[chosen] > -np.inf], gains.shape[1])
        going, kept = [], []
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            ids, total = living[row][0], float(reached[row * gains.shape[1] + token])
            if token == END:
                places -= 1  # which is not filled again
                best.append((normalised(total, len(ids) + 1, penalty), Found(ids, total, True)))
            else:
                going.append(([*ids, token], total))
                kept.append(row)
        if going and len(going[0][0]) == most:
            cut = [(normalised(total, most, penalty), Found(ids, total, False)) for ids, total in going]
            break
        # A log-probability only falls: is there one that could still become the best?
        hope = normalised(max((total for _, total in going), default=-np.inf), most, penalty)
        if best and max(score for score, _ in best) >= hope:
            break
        living, given = going, {name: value[kept] for name, value in given.items()}
    return max(best or cut, key=lambda scored: scored[0])[1]


def normalised(total: float, length: int, penalty: float) -> float:
    """What ended translations compete by."""
    return total / ((5 + length) / 6) ** penalty


def main() -> None:
    """Translate the sentences that are given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("sentences", nargs="+")
    parser.add_argument("--beam", type=int, default=5)
    arguments = parser.parse_args()
    graphs = Graphs(arguments.folder)
    source, target = (
        tokenizers.Tokenizer.from_file(str(arguments.folder / f"{side}.tokenizer.json"))
        for side in ("source", "target")
    )
    for sentence in arguments.sentences:
        ids = source.encode(sentence).ids
        found = translate(graphs, ids, arguments.beam).ids if ids else []
        print(target.decoder.decode([target.id_to_token(number) for number in found]).strip() if found else "")


if __name__ == "__main__":
    main()
