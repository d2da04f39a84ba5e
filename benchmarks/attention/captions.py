"""Measure the maps of written words: a text about an image with a recording, compared with only `generate`.

    python -m benchmarks.attention.captions [--words 100] [--turns 5] [--quick] [--peak generate|maps]

The untrained model has the proportions of LLaVA 1.5 (7B), at a quarter of its width and depth: a language model of 8
layers with 16 heads, and a tower of 6 layers. The prompt has 2,906 tokens, 53 × 53 of them patches. `--peak` prints the
growth of the process's memory in MiB, for one of the two runs.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

import dikkat
from benchmarks.kit.memory import peak_growth
from benchmarks.kit.processes import environment
from benchmarks.kit.report import RESULTS, spread, write
from benchmarks.kit.turns import in_turns, ratios

PATCH, PROMPT = 14, 2_906  # pixels, tokens
WORDS = ["<pad>", "<s>", "</s>", "<unk>", "<image>", "what", "is", "on", "the", "table", "?"]


def build(side: int, layers: int, width: int) -> tuple[Any, Any]:
    """Return an untrained LLaVA model for images of `side` × `side` patches, and its processor."""
    torch.manual_seed(0)
    sizes = {"hidden_size": width, "intermediate_size": 11 * width // 4, "num_attention_heads": 16}
    vision = transformers.CLIPVisionConfig(
        hidden_size=width // 4, intermediate_size=width, num_attention_heads=4, num_hidden_layers=3 * layers // 4,
        image_size=PATCH * side, patch_size=PATCH,
    )  # fmt: skip
    text = transformers.LlamaConfig(**sizes, num_hidden_layers=layers, vocab_size=len(WORDS), pad_token_id=0,
                                    bos_token_id=1, eos_token_id=None, max_position_embeddings=4096)  # fmt: skip
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_id=4,
                                      vision_feature_layer=-1, attn_implementation="sdpa")  # fmt: skip
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(WORDS[:5])
    processor = transformers.LlavaProcessor(
        CLIPImageProcessorPil(size={"height": PATCH * side, "width": PATCH * side}, do_center_crop=False),
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", pad_token="<pad>",
                                             unk_token="<unk>", eos_token="</s>"),
        patch_size=PATCH, vision_feature_select_strategy="default", num_additional_image_tokens=1,
    )  # fmt: skip
    return transformers.LlavaForConditionalGeneration(config).eval(), processor


def peak_of_process(run: str, arguments: list[str]) -> float:
    """Return the memory growth that a new process reports, in MiB."""
    command_line = [sys.executable, "-m", "benchmarks.attention.captions", *arguments, "--peak", run]
    process = subprocess.run(command_line, check=True, capture_output=True, text=True, env=environment())
    return float(process.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--words", type=int, default=100)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a small model, to see that it runs")
    parser.add_argument("--peak", choices=("generate", "maps"))
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the records")
    options = parser.parse_args()
    side, layers, width, prompt = (7, 2, 64, 60) if options.quick else (53, 8, 1024, PROMPT)
    model, processor = build(side, layers, width)
    picture = Image.radial_gradient("L").resize((700, 500)).convert("RGB")
    text = " ".join(WORDS[5 + k % 6] for k in range(prompt - side**2))
    inputs = processor(images=picture, text=f"<image> {text}", return_tensors="pt")
    if inputs["input_ids"].shape[1] != prompt:
        raise SystemExit(f"prompt: got {inputs['input_ids'].shape[1]} tokens; expected {prompt}")
    path = Path(tempfile.mkdtemp()) / "page.html"
    source, lengths = (picture, text), {"max_new_tokens": options.words}
    runs = {
        "generate": lambda: model.generate(**inputs, **lengths),
        "maps": lambda: dikkat.show.attention(model, processor, source, **lengths),
        "maps and page": lambda: dikkat.show.attention(model, processor, source, path, **lengths),
        "position of each token": lambda: dikkat.show.attention(model, processor, source, max_new_tokens=1),
    }
    if options.peak:
        print(peak_growth(runs[options.peak]) / 2**20)
        return
    for run in runs.values():
        run()
    seconds = in_turns(runs, options.turns)
    arguments = ["--words", str(options.words), *(["--quick"] if options.quick else [])]
    peaks = {run: peak_of_process(run, arguments) for run in ("generate", "maps")}
    pairs = prompt**2 + sum(range(prompt + 1, prompt + options.words))  # queries × keys of all calls of a head
    record = {
        "prompt": prompt, "words": options.words, "layers": layers, "heads": 16, "width": width,
        "seconds": {name: spread(samples) for name, samples in seconds.items()},
        "ratio": {name: statistics.median(samples) for name, samples in ratios(seconds).items()},
        "peak_MiB": peaks, "maps_of_eager_MiB": 4 * 16 * layers * pairs / 2**20,
        "page_MB": path.stat().st_size / 1e6,
    }  # fmt: skip
    print(write("captions", record, folder=options.out).read_text())


if __name__ == "__main__":
    main()
