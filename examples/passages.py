"""Which passage did an answer read? A small Llama learns to answer a question from one of fifty passages.

    python examples/passages.py passages.html            # about a minute of one core

Each passage is a line "the code of NAME: WORD .", and the last line asks for one of the codes. The weights of the
written token name the passage that it read. The page shows one prompt. Cutting the passage removes the answer.

The training is short because it does not start at random: the heads of the first layer look at the previous token, and
values and outputs copy.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import dikkat

SYLLABLES = ["ba", "de", "fi", "go", "ku", "la", "me", "ni", "po", "ru"]
NAMES = [f"{first}{second}:".capitalize() for first, second in product(SYLLABLES, SYLLABLES)]
WORDS = [f"{first}{second}x" for first, second in product(SYLLABLES, SYLLABLES)]
FIXED = ["<s>", "the", "code", "of", "."]
NAME, WORD, LENGTH = 3, 4, 6  # the places of both in a passage of six tokens
PASSAGES = 50
# Training: steps, batch, passages, questions.
PHASES = [(150, 48, 6, 8), (100, 16, 16, 16), (150, 6, PASSAGES, PASSAGES)]
SHARPNESS = 31.0  # of the first layer's heads at the start


class Prompt(NamedTuple):
    """A prompt, the index of the passage with the answer, and the answer."""

    text: str
    planted: int
    answer: str


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of whole words."""
    words = {word: number for number, word in enumerate(FIXED + NAMES + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>")


def make_batch(rows: int, passages: int, questions: int) -> tuple[Tensor, Tensor]:
    """Return ids and labels (rows, n) of passages, and of repeated passages whose words are the labels."""
    names, words = (torch.rand(rows, count).argsort(-1)[:, :passages] for count in (len(NAMES), len(WORDS)))
    asked = torch.randint(passages, (rows, questions))
    names, words = (torch.cat([numbers, numbers.gather(1, asked)], 1) for numbers in (names, words))
    lines = torch.tensor([1, 2, 3, 0, 0, 4]).expand(rows, passages + questions, LENGTH).clone()
    lines[..., NAME], lines[..., WORD] = names + len(FIXED), words + len(FIXED) + len(NAMES)
    labels = torch.full_like(lines, -100)
    labels[:, passages:, WORD] = lines[:, passages:, WORD]
    start = torch.zeros(rows, 1, dtype=torch.int64)
    return torch.cat([start, lines.flatten(1)], 1), torch.cat([start - 100, labels.flatten(1)], 1)


def make_model() -> LlamaForCausalLM:
    """Return a model of two layers whose first heads look at the previous token."""
    config = LlamaConfig(
        vocab_size=len(FIXED + NAMES + WORDS), hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, attention_bias=True, initializer_range=0.05, bos_token_id=0, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        embeddings = model.model.embed_tokens.weight.normal_()
        model.lm_head.weight.zero_()[-len(WORDS) :] = 0.1 * embeddings[-len(WORDS) :]
        first, second = (layer.self_attn for layer in model.model.layers)
        for module in (first.v_proj, first.o_proj, second.v_proj, second.o_proj, second.q_proj, second.k_proj):
            torch.nn.init.eye_(module.weight)
        for module in (first.q_proj, first.k_proj):
            module.weight.zero_()
        # With the rotations of positions, the score of a key d tokens before is SHARPNESS / 4 · Σ cos((d − 1) · angle).
        angles = model.model.rotary_emb.inv_freq[:4]
        query, key = (module.bias.unflatten(0, (4, 2, -1))[..., :4] for module in (first.q_proj, first.k_proj))
        query.copy_(SHARPNESS**0.5 * torch.stack([angles.cos(), -angles.sin()]))
        key.copy_(SHARPNESS**0.5 * torch.tensor([[1.0], [0.0]]))
    return model


def train(phases: Sequence[tuple[int, int, int, int]] = PHASES, seed: int = 0) -> LlamaForCausalLM:
    """Return a trained model of two layers."""
    torch.manual_seed(seed)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    for steps, rows, passages, questions in phases:
        for step in range(steps):
            ids, labels = make_batch(rows, passages, questions)
            loss = model(input_ids=ids, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step == steps - 1 or step % 50 == 0:
                print(f"{passages} passages, step {step}: loss {loss.item():.3f}")
    return model.eval()


def make_prompts(count: int, passages: int, seed: int) -> Iterator[Prompt]:
    """Yield prompts with one question."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        names, words = (torch.randperm(len(every), generator=draw)[:passages] for every in (NAMES, WORDS))
        lines = [f"the code of {NAMES[name]} {WORDS[word]} ." for name, word in zip(names, words, strict=True)]
        planted = int(torch.randint(passages, (), generator=draw))
        question = f"the code of {NAMES[names[planted]]}"
        yield Prompt("\n".join([*lines, question]), planted, WORDS[words[planted]])


def write(model: LlamaForCausalLM, tokenizer: Any, prompt: Prompt, **more: Any) -> Any:
    """Return the generation of the answer, one token."""
    spans = {line: line for line in prompt.text.splitlines()[:-1]}  # the question is no passage
    return dikkat.show.generation(model, tokenizer, prompt.text, max_new_tokens=1, spans=spans, do_sample=False, **more)


def measure(model: LlamaForCausalLM, tokenizer: Any, passages: int = PASSAGES, count: int = 100) -> dict[str, int]:
    """Return numbers of prompts. The passage read most has the largest mean over all heads."""
    right = read_most = removed = unchanged = 0
    for prompt in make_prompts(count, passages, seed=1):
        result = write(model, tokenizer, prompt)
        right += result.text == prompt.answer
        read_most += int(result.masses[0, :, :passages].mean(0).argmax()) == prompt.planted
        for number in (prompt.planted, (prompt.planted + 1) % passages):
            first = 1 + LENGTH * number
            with dikkat.change(model, spans={"passage": slice(first, first + LENGTH)}, scale={"passage": 0}):
                answer = write(model, tokenizer, prompt).text
            removed += number == prompt.planted and answer != prompt.answer
            unchanged += number != prompt.planted and answer == result.text
    return {
        "right answers": right, "right passage read most": read_most, "answer removed if the passage is cut": removed,
        "answer unchanged if the next passage is cut": unchanged,
    }  # fmt: skip


def main() -> None:
    """Train, print numbers of 100 prompts, and write the page of one prompt."""
    tokenizer, model = make_tokenizer(), train()
    for name, number in measure(model, tokenizer).items():
        print(f"{number:4}  {name}")
    if sys.argv[1:]:
        write(model, tokenizer, next(make_prompts(1, PASSAGES, seed=3)), path=sys.argv[1])


if __name__ == "__main__":
    main()
