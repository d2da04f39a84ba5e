"""A decoder of dikkat's model folders with weights in int8, in plain NumPy: what `docs/int8.md` says, as a program.

    python reference_decoder.py FOLDER 5 17 42      # numbers of source tokens; prints those of the translation

It takes the likeliest token at each step. Scores additive, dot, scaled_dot and bilinear; GRU and LSTM; any depth.

Names and shapes; e = embedding_size, h = hidden_size, d = h or, bidirectional, h/2; G gates: of a GRU 3, r z n, reset
after the recurrent product; of an LSTM 4, i f g o:
source_embedding.weight (not with tied_embeddings three), target_embedding.weight (tokens, e): times √e when it is read;
encoder.gru (lstm) .weight_ih_l0[_reverse] (G d, e), above (G d, h), .weight_hh_… (G d, d), both biases (G d,);
bridge (of an LSTM cell_bridge too) .weight (h, h), .bias (h,): a layer's first state is tanh of it, the first cell it;
decoder.weight_ih_l0 (G h, e + c), embedding, then context, above (G h, h), .weight_hh_… (G h, h), .bias_… (G h,);
decoder.score.W_q.weight, .W_k.weight (h, h), .w_v.weight (1, h) of an additive score, W_q of a bilinear one;
readout.weight (e, h + c + e), state, context, embedding, then tanh, .bias (e,); output_weight (tokens, e) where none
is tied, else the target's; output_bias (tokens,). A step: context from the state before, cells, readout, scores.
The context is c = h numbers; with lexical.weight (e, e) it is h + e, the mean of the source's embeddings behind that of
its states, and lexical.weight times the former is added to the readout, after its tanh.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
PAD, UNKNOWN, BEGIN, END = range(4)
_TYPES = {"I8": np.dtype("i1"), "F32": np.dtype("<f4"), "F64": np.dtype("<f8")}


def read_tensors(path: Path) -> dict[str, Array]:
    """All tensors of a safetensors file: eight bytes with the header's length, the header, the numbers."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(data, _TYPES[each["dtype"]], math.prod(each["shape"]), start + each["data_offsets"][0])
        .reshape(each["shape"])
        for name, each in header.items()
    }  # fmt: skip


def sigmoid(x: Array) -> Array:
    """1/(1 + e^{−x})."""
    return 1 / (1 + np.exp(-x))


def quantized(x: Array) -> tuple[Array, Array]:
    """A vector as whole numbers, of which the largest is 127, and what 1 of these is worth."""
    most = np.abs(x).max()
    whole = np.rint(x * np.float32(127 / most)) if most else np.zeros(len(x))
    return whole.astype(np.int32), np.float32(most / 127)


def rounded(x: Array) -> Array:
    """What a vector becomes by that."""
    whole, scale = quantized(x)
    return whole.astype(np.float32) * scale


class Decoder:
    """A model folder's network."""

    def __init__(self, folder: Path) -> None:
        self.weights = read_tensors(folder / "model.safetensors")
        self.settings = json.loads((folder / "settings.json").read_text())["settings"]
        if self.settings["score"] not in ("additive", "dot", "scaled_dot", "bilinear"):
            raise NotImplementedError(f"score {self.settings['score']}")
        self.lstm = self.settings["cell"] == "lstm"

    # --- products with int8

    def table(self, name: str) -> tuple[Array, Array]:
        """A matrix's numbers and its rows' scales."""
        return self.weights[f"{name}"], self.weights[f"{name}.scales"]

    def times(self, name: str, *inputs: Array) -> Array:
        """The matrix times the inputs, one behind the other; each is quantised by itself."""
        numbers, scales = self.table(name)
        found, first = np.zeros(len(numbers), np.float32), 0
        for x in inputs:
            whole, scale = quantized(x)
            products = numbers[:, first : first + len(x)].astype(np.int32) @ whole
            found += products.astype(np.float32) * (scale * scales)
            first += len(x)
        return found

    def embedding(self, name: str, token: int) -> Array:
        """A token's embedding times the square root of its size."""
        numbers, scales = self.table(f"{name}.weight")
        scale: Array = numbers[token] * (scales[token] * np.float32(math.sqrt(self.settings["embedding_size"])))
        return scale

    # --- cells

    def cell(self, part: str, end: str, inputs: list[Array], state: Array, cell: Array) -> tuple[Array, Array]:
        """One step of a GRU or an LSTM, as PyTorch's."""
        given = self.times(f"{part}weight_ih_{end}", *inputs) + self.weights[f"{part}bias_ih_{end}"]
        own = self.times(f"{part}weight_hh_{end}", state) + self.weights[f"{part}bias_hh_{end}"]
        if self.lstm:
            i, f, g, o = np.split(given + own, 4)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            return sigmoid(o) * np.tanh(cell), cell
        (r, z, n), (own_r, own_z, own_n) = np.split(given, 3), np.split(own, 3)
        candidate = np.tanh(n + sigmoid(r + own_r) * own_n)
        return candidate + sigmoid(z + own_z) * (state - candidate), cell

    def encode(self, source: list[int]) -> tuple[Array, Array, list[Array], list[Array]]:
        """The embeddings and the top layer's states at all positions, and of each layer the last state and cell."""
        kind, table = "lstm" if self.lstm else "gru", "source_embedding"
        below = embedded = [
            self.embedding(table if f"{table}.weight" in self.weights else "target_embedding", token)
            for token in source
        ]
        ends, end_cells = [], []
        size = self.settings["hidden_size"] // (2 if self.settings["bidirectional"] else 1)
        for layer in range(self.settings["num_layers"]):
            sides, last, last_cells = [], [], []
            for back in range(1 + self.settings["bidirectional"]):
                state = cell = np.zeros(size, np.float32)
                found = []
                for x in below[::-1] if back else below:
                    end = f"l{layer}" + "_reverse" * back
                    state, cell = self.cell(f"encoder.{kind}.", end, [x], state, cell)
                    found.append(state)
                sides.append(found[::-1] if back else found)
                last.append(state)
                last_cells.append(cell)
            below = [np.concatenate(states) for states in zip(*sides, strict=True)]
            ends.append(np.concatenate(last))
            end_cells.append(np.concatenate(last_cells))
        return np.stack(embedded), np.stack(below), ends, end_cells

    # --- attention, and steps

    def keys(self, encoded: Array) -> Array:
        """What states are compared with."""
        if self.settings["score"] == "additive":
            return np.stack([self.times("decoder.score.W_k.weight", each) for each in encoded])
        return np.stack([rounded(each) for each in encoded])

    def attend(self, state: Array, keys: Array, *values: Array) -> list[Array]:
        """The weighted means of the values."""
        if self.settings["score"] == "additive":
            query = self.times("decoder.score.W_q.weight", state)
            scores = np.tanh(query + keys) @ self.weights["decoder.score.w_v.weight"][0]
        elif self.settings["score"] == "bilinear":
            scores = keys @ self.times("decoder.score.W_q.weight", state)
        else:
            scores = keys @ rounded(state) / (math.sqrt(len(state)) if self.settings["score"] == "scaled_dot" else 1)
        shares = np.exp(scores - scores.max())
        return [(shares / shares.sum()) @ each for each in values]

    def translate(self, source: list[int], most: int | None = None) -> tuple[list[int], float]:
        """The likeliest token at each step, and the log-probability of all of them with the end."""
        embeddings, encoded, states, cells = self.encode(source)
        states = [np.tanh(self.times("bridge.weight", s) + self.weights["bridge.bias"]) for s in states]
        if self.lstm:
            cells = [self.times("cell_bridge.weight", c) + self.weights["cell_bridge.bias"] for c in cells]
        keys, ids, total, token = self.keys(encoded), [], 0.0, BEGIN
        values = [encoded, embeddings] if "lexical.weight" in self.weights else [encoded]
        most = most or min(2 * len(source) + 10, len(source) + 50)
        while len(ids) < most:
            embedded = self.embedding("target_embedding", token)
            contexts = self.attend(states[-1], keys, *values)
            inputs = [embedded, *contexts]
            for layer in range(len(states)):
                states[layer], cells[layer] = self.cell("decoder.", f"l{layer}", inputs, states[layer], cells[layer])
                inputs = [states[layer]]
            said = np.tanh(self.times("readout.weight", states[-1], *contexts, embedded) + self.weights["readout.bias"])
            if len(contexts) == 2:
                said += self.times("lexical.weight", contexts[1])
            output = "output_weight" if "output_weight" in self.weights else "target_embedding.weight"
            scores = (self.times(output, said) + self.weights["output_bias"]).astype(np.float64)
            log_sum = scores.max() + math.log(np.exp(scores - scores.max()).sum())
            scores[[PAD, BEGIN]] = -np.inf
            if UNKNOWN not in source:
                scores[UNKNOWN] = -np.inf
            if not ids:
                scores[END] = -np.inf
            token = int(scores.argmax())
            total += scores[token] - log_sum
            if token == END:
                break
            ids.append(token)
        return ids, float(total)


if __name__ == "__main__":
    print(*Decoder(Path(sys.argv[1])).translate([int(number) for number in sys.argv[2:]])[0])
