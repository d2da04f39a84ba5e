"""JoeyNMT's decoding, run by `speed.py` with the Python of an environment of its own:

    python -m venv FOLDER && FOLDER/bin/pip install torch==2.13.0 joeynmt==2.3.0 importlib_metadata

The same sizes, its own network (attention after the GRU, fed to its next step) with weights by chance, its encoder in
both directions as it demands, of half the size each; every sentence is forced to the same length. Reads requests as
lines of JSON, answers with seconds.
"""

import json
import logging
import sys
import time
from types import SimpleNamespace

import torch
from joeynmt.model import build_model
from joeynmt.search import beam_search, greedy
from joeynmt.vocabulary import Vocabulary


def model(hidden: int, embedding: int, layers: int, source: int, target: int) -> torch.nn.Module:
    special = SimpleNamespace(
        pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>", sep_token=None,
        unk_id=0, pad_id=1, bos_id=2, eos_id=3, sep_id=None, lang_tags=[],
    )  # fmt: skip
    words = [Vocabulary([f"w{number}" for number in range(size - 4)], special) for size in (source, target)]
    part = {"rnn_type": "gru", "num_layers": layers, "embeddings": {"embedding_dim": embedding}, "dropout": 0.0}
    encoder = part | {"type": "recurrent", "hidden_size": hidden // 2, "bidirectional": True}
    decoder = part | {"type": "recurrent", "hidden_size": hidden, "attention": "bahdanau", "input_feeding": True}
    config = {"encoder": encoder, "decoder": decoder | {"init_hidden": "bridge"}, "initializer": "xavier_uniform"}
    return build_model(config, src_vocab=words[0], trg_vocab=words[1]).eval()


@torch.no_grad()
def seconds(network: torch.nn.Module, sources: list[list[int]], length: int, beam: int) -> float:
    start = time.perf_counter()
    rows = sorted(sources, key=len, reverse=True)  # as its encoder wants them
    lengths = torch.tensor([len(row) for row in rows])
    source = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    mask = (torch.arange(source.shape[1]) < lengths[:, None]).unsqueeze(1)
    encoded, hidden, _, _ = network(return_type="encode", src=source, src_length=lengths, src_mask=mask)
    given = {"encoder_output": encoded, "encoder_hidden": hidden, "src_mask": mask}
    forced = {"max_output_length": length, "min_output_length": length, "generate_unk": False}
    if beam > 1:
        beam_search(model=network, beam_size=beam, alpha=1.0, **given, **forced)
    else:
        greedy(model=network, **given, **forced)
    return time.perf_counter() - start


def main() -> None:
    logging.disable(logging.INFO)
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings.pop("threads"))
    torch.manual_seed(0)
    network = model(**settings)
    for line in sys.stdin:
        print(json.dumps(seconds(network, **json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
