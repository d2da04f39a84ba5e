"""A translator as two ONNX graphs: what reads a batch of sentences, and one step of what writes.

Recurrent cells are spelt out in matrix products, and so computed alike everywhere: ONNX's own GRU and LSTM have their
gates in another order, and exporters have written them wrong.
"""

import math
from collections.abc import Mapping

from dikkat.translation.formats.onnx_nodes import FLAG, FLOAT, WHOLE, Graph
from dikkat.translation.network.weights import Affine, Cells, Compared, Network

ENCODER, DECODER = "encoder", "decoder"
"""The names of the graphs."""

_FARTHEST = 0.49 * math.sqrt(3.4e38)  # over the root of the features: coordinates whose squared distances are finite


def states(net: Network) -> list[str]:
    """The names of what a step hands on to the next; the encoder makes the first ones."""
    return ["hidden", *["cell"] * net.lstm]


def _sizes(net: Network, name: str, rows: str) -> tuple[int | str, ...]:
    """The sizes of a value that both graphs know."""
    values = net.decoder[0].weight_ih.shape[1] - net.target_table.shape[1]
    layers = (rows, len(net.decoder), net.hidden)
    return {
        "keys": (rows, "positions", len(net.compared.key.weight)),
        "values": (rows, "positions", values),
        "seen": (rows,),
        "hidden": layers,
        "cell": layers,
    }[name]


def _kind(name: str) -> int:
    return WHOLE if name == "seen" else FLOAT


# --- cells


def _cell(g: Graph, given: str, own: str, before: list[str]) -> list[str]:
    """The new state, and of an LSTM, whose state before is two, the new cell.

    Both sides of the gates are (B, 3h) in the order r, z, n, or (B, 4h) i, f, g, o.
    """
    if len(before) == 2:
        into, forget, candidate, out = g.several("Split", 4, g("Add", given, own), axis=-1)
        kept = g("Mul", g("Sigmoid", forget), before[1])
        cell = g("Add", kept, g("Mul", g("Sigmoid", into), g("Tanh", candidate)))
        return [g("Mul", g("Sigmoid", out), g("Tanh", cell)), cell]
    given_r, given_z, given_n = g.several("Split", 3, given, axis=-1)
    own_r, own_z, own_n = g.several("Split", 3, own, axis=-1)
    reset, update = (g("Sigmoid", g("Add", *sides)) for sides in ((given_r, own_r), (given_z, own_z)))
    candidate = g("Tanh", g("Add", given_n, g("Mul", reset, own_n)))
    return [g("Add", candidate, g("Mul", update, g("Sub", before[0], candidate)))]


def _direction(g: Graph, net: Network, cells: Cells, below: str, real: str, back: int) -> tuple[str, list[str]]:
    """A layer of the encoder in one direction: states at all positions (S, B, d), the last state and cell (B, d).

    Behind a sentence's end its state stays as it is; read backwards, that is 0 until the sentence begins.
    """
    size, parts = cells.weight_hh.shape[1], 1 + net.lstm
    gates, own_weight = g.affine(below, cells.weight_ih, cells.bias_ih), g.transposed(cells.weight_hh)
    zeros = g("Expand", g.number(0), g("Concat", g.sizes(below, 1), g.whole([size]), axis=0))

    step = g.body()
    before = [step.input(step.new("before"), FLOAT, "sentences", size) for _ in range(parts)]
    given = step.input(step.new("given"), FLOAT, "sentences", len(cells.weight_hh))
    goes_on = step.input(step.new("real"), FLAG, "sentences", 1)
    own = step("Add", step("MatMul", before[0], own_weight), step.weight(cells.bias_hh))
    new = _cell(step, given, own, before)
    after = [step("Where", goes_on, *each) for each in zip(new, before, strict=True)]
    for value in [*after, after[0]]:
        step.output(step.new("after"), value, FLOAT, "sentences", size)

    *last, states = g.several(
        "Scan", parts + 1, *[zeros] * parts, gates, real, body=step.as_body("step"), num_scan_inputs=2,
        scan_input_directions=[back, back], scan_output_directions=[back],
    )  # fmt: skip
    return states, last


# --- reading


def encoder(net: Network, names: Mapping[int, str]) -> bytes:
    """The graph that reads: source (B, S) and lengths (B,) to keys, values, what is seen, and the first states."""
    g = Graph(names)
    source = g.input("source", WHOLE, "sentences", "positions")
    lengths = g.input("lengths", WHOLE, "sentences")
    embedded = g("Gather", g.weight(net.source_table), g("Transpose", source, perm=[1, 0]))
    below = embeddings = g("Mul", embedded, g.number(net.scale))
    seen = g.within(lengths, source, 1)
    real = g.with_axis(g("Transpose", seen, perm=[1, 0]), 2)
    ends: list[list[str]] = []
    for layer in net.encoder:
        sides = [_direction(g, net, cells, below, real, back) for back, cells in enumerate(layer)]
        below = g("Concat", *(after for after, _ in sides), axis=2)
        ends.append([g("Concat", *parts, axis=1) for parts in zip(*(last for _, last in sides), strict=True)])
    first = [_bridged(g, net.bridge, [last[0] for last in ends])]
    if net.bridge is not None:
        first[0] = g("Tanh", first[0])
    if net.lstm:
        first.append(_bridged(g, net.cell_bridge, [last[1] for last in ends]))
    encoded = values = g("Transpose", below, perm=[1, 0, 2]) if net.attends else g.with_axis(ends[-1][0], 1)
    if net.lexical is not None:
        values = g("Concat", values, g("Transpose", embeddings, perm=[1, 0, 2]), axis=2)
    if not net.attends:
        lengths = g("Expand", g.whole(1), g.sizes(source, 0))
    outputs = [_side(g, net.compared, net.compared.key, encoded), values, lengths, *first]
    for name, value in zip(["keys", "values", "seen", *states(net)], outputs, strict=True):
        g.output(name, value, _kind(name), *_sizes(net, name, "sentences"))
    return g.model(ENCODER)


def _bridged(g: Graph, bridge: Affine | None, last: list[str]) -> str:
    """The decoder's first states (B, layers, h), before their tanh."""
    stacked = g.stacked(last, 1)
    return stacked if bridge is None else g.affine(stacked, *bridge)


# --- attention


def _side(g: Graph, compared: Compared, affine: Affine, features: str) -> str:
    """Queries of states, or keys of values."""
    side = g.affine(features, *affine)
    if compared.unit:
        # Scaled by the largest first, so that no square is 0 that should not be.
        peak = g("ReduceMax", g("Abs", side), axes=[-1], keepdims=1)
        side = g("Div", side, g("Where", g("Equal", peak, g.number(0)), g.number(1), peak))
        square = g("ReduceSum", g("Mul", side, side), g.whole([-1]), keepdims=1)
        side = g("Div", side, g("Sqrt", g("Where", g("Equal", square, g.number(0)), g.number(1), square)))
    if compared.pair == "distance" and compared.profile == "gaussian":
        most = _FARTHEST / math.sqrt(len(affine.weight))
        side = g("Clip", side, g.number(-most), g.number(most))
    return side


def _profile(g: Graph, profile: str, square: str) -> str:
    """The logarithm of a kernel of squared scaled distances; −∞ outside its support."""
    if profile == "gaussian":
        return g("Mul", g.number(-0.5), square)
    nowhere, one = g.number(-math.inf), g.number(1)
    if profile == "boxcar":
        return g("Where", g("Greater", square, one), nowhere, g.number(0))
    distance = g("Sqrt", square) if profile == "triangular" else square
    outside = g("GreaterOrEqual", distance, one)
    inside = g("Log", g("Sub", one, g("Where", outside, g.number(0), distance)))
    return g("Where", outside, nowhere, inside)


def _scores(g: Graph, compared: Compared, query: str, keys: str) -> str:
    """(R, S): a query (R, f) a row beside its keys (R, S, f)."""
    if compared.pair == "inner":
        return g.without_axis(g("MatMul", keys, g.with_axis(query, 2)), 2)
    query = g.with_axis(query, 1)
    if compared.weight is not None:
        weight = g.with_axis(g.weight(compared.weight), 1)
        return g.without_axis(g("MatMul", g("Tanh", g("Add", query, keys)), weight), 2)
    difference = g("Sub", query, keys)
    return _profile(g, compared.profile, g("ReduceSum", g("Mul", difference, difference), g.whole([2]), keepdims=0))


def _weights(g: Graph, scores: str, seen: str) -> str:
    """Softmax over the positions that are seen; 0 everywhere where there is none within a kernel's support."""
    nowhere, least = g.number(-math.inf), g.number(-3.4028235e38)
    scores = g("Where", g.within(seen, scores, 1), scores, nowhere)
    peak = g("Max", g("ReduceMax", scores, axes=[1], keepdims=1), least)
    shares = g("Exp", g("Sub", scores, peak))
    # The largest of them is 1, or all are 0.
    return g("Div", shares, g("Max", g("ReduceSum", shares, g.whole([1]), keepdims=1), g.number(1)))


# --- a step


def decoder(net: Network, names: Mapping[int, str]) -> bytes:
    """The graph of a step: the tokens before (R,), and what the encoder or the last step gave, of R rows."""
    g, compared = Graph(names), net.compared
    token = g.input("token", WHOLE, "rows")
    known = ("keys", "values", "seen", *states(net))
    given = {name: g.input(name, _kind(name), *_sizes(net, name, "rows")) for name in known}
    embedded = g("Mul", g("Gather", g.weight(net.target_table), token), g.number(net.scale))
    parts = [_layers(g, given[name], len(net.decoder)) for name in ("hidden", "cell") if name in given]
    before = [list(layer) for layer in zip(*parts, strict=True)]
    query = _side(g, compared, compared.query, before[-1][0])
    weights = _weights(g, _scores(g, compared, query, given["keys"]), given["seen"])
    context = g.without_axis(g("MatMul", g.with_axis(weights, 1), given["values"]), 1)
    below, new = g("Concat", embedded, context, axis=1), []
    for cells, layer in zip(net.decoder, before, strict=True):
        own = g.affine(layer[0], cells.weight_hh, cells.bias_hh)
        new.append(_cell(g, g.affine(below, cells.weight_ih, cells.bias_ih), own, layer))
        below = new[-1][0]
    if net.readout is not None:
        said = g("Concat", below, context, embedded, axis=1)
        below = g("Tanh", g.affine(said, *net.readout))
    if net.lexical is not None:
        last = g.whole([-net.source_table.shape[1]])
        attended = g("Slice", context, last, g.whole([2**31 - 1]), g.whole([1]))
        below = g("Add", below, g("MatMul", attended, g.transposed(net.lexical)))
    scores = g("LogSoftmax", g.affine(below, *net.output), axis=1)
    g.output("log_probabilities", scores, FLOAT, "rows", len(net.output.weight))
    g.output("weights", weights, FLOAT, "rows", "positions")
    after = [g.stacked(list(layers), 1) for layers in zip(*new, strict=True)]
    for name, value in zip(states(net), after, strict=True):
        g.output(f"next_{name}", value, FLOAT, *_sizes(net, name, "rows"))
    return g.model(DECODER)


def _layers(g: Graph, states: str, layers: int) -> list[str]:
    """(R, layers, h) as so many (R, h)."""
    if layers == 1:
        return [g.without_axis(states, 1)]
    return [g.without_axis(each, 1) for each in g.several("Split", layers, states, axis=1)]
