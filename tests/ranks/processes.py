"""The processes of a test's group, and the program of each: `python -m ranks.processes RANK WORLD FOLDER PROGRAM`."""

import importlib
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import torch
import torch.distributed as dist


def run_ranks(world: int, folder: Path, program: str, timeout: float = 600) -> list[subprocess.CompletedProcess[str]]:
    """Run a function "module:name" in so many processes of one gloo group, with (rank, world, folder)."""
    tests = str(Path(__file__).parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, *sys.path]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ranks.processes"]
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, str(rank), str(world), str(folder), program],
                    env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                )
            )
            for rank in range(world)
        ]  # fmt: skip
        try:
            said = [process.communicate(timeout=timeout) for process in started]
        finally:
            for process in started:
                process.kill()
    pairs = zip(started, said, strict=True)
    return [subprocess.CompletedProcess(process.args, process.returncode, *each) for process, each in pairs]


def main(rank: str, world: str, folder: str, program: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store-{world}", int(world))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(world))
    module, name = program.split(":")
    getattr(importlib.import_module(module), name)(int(rank), int(world), Path(folder))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
