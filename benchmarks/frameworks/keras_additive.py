"""The additive attention layer in Keras beside Keras's own, compiled by XLA: answers, then seconds, then memory.

    python -m benchmarks.frameworks.keras_additive [--seconds 60]

Each backend has a process of its own; both layers run in it, in turn, on the same inputs, (8, 256, 256, 128) in
float32, on a CPU. Keras's layer compares what it is given; ours projects first, here by the identity, so that both
compute the same. Memory is what a call adds to the process at its peak, after a first call, in a process for each
layer.
"""

import argparse
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kit.processes import command, environment

BACKENDS = ("jax", "tensorflow")
BATCH, QUERIES, KEYS, FEATURES = 8, 256, 256, 128
LAYERS = ("keras", "dikkat")
PASSES = ("forward", "forward and backward")
Run = Callable[[], list[np.ndarray[Any, Any]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="for each backend and pass")
    parser.add_argument("--backend", choices=BACKENDS, help=argparse.SUPPRESS)
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print(json.dumps(extra_memory(*options.memory)))
    elif options.backend:
        print(json.dumps([speeds(name, options.seconds) for name in PASSES]))
    else:
        from benchmarks.kit.report import write

        results = {backend: in_a_process(backend, options.seconds) for backend in BACKENDS}
        print(write("keras-additive", results, "keras", "jax", "tensorflow"))


def in_a_process(backend: str, seconds: float) -> list[dict[str, Any]]:
    found = asked(backend, "--backend", backend, "--seconds", str(seconds))
    for record in found:
        record["MiB"] = {layer: asked(backend, "--memory", layer, record["pass"]) for layer in LAYERS}
        print(backend, json.dumps(record), flush=True)
    return found


def asked(backend: str, *words: str) -> Any:
    around = environment(KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3")
    done = subprocess.run(
        command("frameworks.keras_additive", *words), env=around, check=True, stdout=subprocess.PIPE, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def speeds(name: str, seconds: float) -> dict[str, Any]:
    from benchmarks.kit.turns import measured, milliseconds, once

    runs = {layer: made(layer, name) for layer in LAYERS}
    answers = [run() for run in runs.values()]
    error = max(
        float(np.abs(one - other).max() / max(1.0, np.abs(one).max())) for one, other in zip(*answers, strict=True)
    )
    if error > 1e-4:
        raise SystemExit(f"the layers' answers differ by {error:.1e} of the largest entry: no speed is printed")
    samples = measured({layer: once(run) for layer, run in runs.items()}, seconds)
    ms = {layer: milliseconds(found) for layer, found in samples.items()}
    return {"pass": name, "difference": error, "ms": ms, "times": ms["keras"]["median"] / ms["dikkat"]["median"]}


def made(layer: str, name: str) -> Run:
    """A compiled call of a layer that returns its output, and with it the gradients of its squares' sum."""
    import keras

    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(BATCH, size, FEATURES)).astype(np.float32) for size in (QUERIES, KEYS, KEYS)]
    weight = (rng.normal(size=FEATURES) / np.sqrt(FEATURES)).astype(np.float32)
    if layer == "keras":
        made = keras.layers.AdditiveAttention()
        arguments: Callable[..., Any] = lambda query, key, value: ([query, value, key],)  # noqa: E731
        made(*arguments(*inputs))
        made.set_weights([weight])
    else:
        from dikkat.frameworks.keras import AdditiveAttention, load_tensors

        made, arguments = AdditiveAttention(FEATURES), lambda *tensors: tensors
        made(*inputs)
        eye = np.eye(FEATURES, dtype=np.float32)
        tensors = {"score.W_q.weight": eye, "score.W_k.weight": eye, "score.w_v.weight": weight[None]}
        load_tensors(made, tensors)
    compile_ = of_jax if keras.backend.backend() == "jax" else of_tensorflow
    return compile_(made, arguments, inputs, name == PASSES[1])


def of_jax(layer: Any, arguments: Callable[..., Any], inputs: list[Any], backward: bool) -> Run:
    import jax

    variables = [each.value for each in layer.trainable_variables]
    rest = [each.value for each in layer.non_trainable_variables]
    tensors = [jax.numpy.asarray(each) for each in inputs]

    def output(*tensors: Any) -> Any:
        return layer.stateless_call(variables, rest, *arguments(*tensors))[0]

    def squares(*tensors: Any) -> Any:
        found = output(*tensors)
        return (found**2).sum(), found

    both = jax.value_and_grad(squares, argnums=(0, 1, 2), has_aux=True)
    call = jax.jit(both if backward else output)
    return lambda: [np.asarray(each) for each in jax.tree.leaves(call(*tensors))]


def of_tensorflow(layer: Any, arguments: Callable[..., Any], inputs: list[Any], backward: bool) -> Run:
    import tensorflow as tf

    tensors = [tf.constant(each) for each in inputs]

    def output(*tensors: Any) -> Any:
        return layer(*arguments(*tensors))

    def both(*tensors: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            found = output(*tensors)
            total = tf.reduce_sum(found**2)
        return (total, found), tape.gradient(total, tensors)

    call = tf.function(both if backward else output, jit_compile=True)
    return lambda: [np.asarray(each) for each in tf.nest.flatten(call(*tensors))]


def extra_memory(layer: str, name: str) -> float:
    """MiB at the peak of a call beyond what the process had before it."""
    run = made(layer, name)
    run()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    run()
    return round((_status("VmHWM") - before) / 1024, 1)


def _status(field: str) -> int:
    """KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


if __name__ == "__main__":
    main()
