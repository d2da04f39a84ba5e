"""Which passage did an answer read? A small Llama learns to answer a question from one of fifty passages.

    python examples/passages.py passages.html            # about two minutes of one core

Each passage is a line "the code of NAME is WORD .", and the last line asks for one of the codes. The weights of the
written token name the passage that it read. The page shows one prompt. Cutting the passage removes the answer.
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
NAMES = [(first + second).capitalize() for first, second in product(SYLLABLES, SYLLABLES)]
WORDS = [f"{first}{second}x" for first, second in product(SYLLABLES, SYLLABLES)]
FIXED = ["<s>", "the", "code", "of", "is", "."]
NAME, WORD, LENGTH = 3, 5, 7  # the places of both in a passage of seven tokens
PASSAGES = 50
# Training: steps, batch, passages, questions.
PHASES = [(500, 32, 8, 8), (200, 16, 20, 20), (150, 8, PASSAGES, PASSAGES)]


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
    lines = torch.tensor([1, 2, 3, 0, 4, 0, 5]).expand(rows, passages + questions, LENGTH).clone()
    lines[..., NAME], lines[..., WORD] = names + len(FIXED), words + len(FIXED) + len(NAMES)
    labels = torch.full_like(lines, -100)
    labels[:, passages:, WORD] = lines[:, passages:, WORD]
    start = torch.zeros(rows, 1, dtype=torch.int64)
    return torch.cat([start, lines.flatten(1)], 1), torch.cat([start - 100, labels.flatten(1)], 1)


def train(phases: Sequence[tuple[int, int, int, int]] = PHASES, seed: int = 0) -> LlamaForCausalLM:
    """Return a trained model of two layers."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(FIXED + NAMES + WORDS), hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, bos_token_id=0, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.0, fused=True)
    for steps, rows, passages, questions in phases:
        for step in range(steps):
            ids, labels = make_batch(rows, passages, questions)
            loss = model(input_ids=ids, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == steps - 1 or step % 50 == 0:
                print(f"{passages} passages, step {step}: loss {loss.item():.3f}")
    return model.eval()


def make_prompts(count: int, passages: int, seed: int) -> Iterator[Prompt]:
    """Yield prompts with one question."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(count):
        names, words = (torch.randperm(len(every), generator=draw)[:passages] for every in (NAMES, WORDS))
        lines = [f"the code of {NAMES[name]} is {WORDS[word]} ." for name, word in zip(names, words, strict=True)]
        planted = int(torch.randint(passages, (), generator=draw))
        question = f"the code of {NAMES[names[planted]]} is"
        yield Prompt("\n".join([*lines, question]), planted, WORDS[words[planted]])


def write(model: LlamaForCausalLM, tokenizer: Any, prompt: Prompt, **more: Any) -> Any:
    """Return the generation of the answer, one token."""
    return dikkat.show.generation(model, tokenizer, prompt.text, max_new_tokens=1, do_sample=False, **more)


def measure(model: LlamaForCausalLM, tokenizer: Any, passages: int = PASSAGES, count: int = 100) -> dict[str, float]:
    """Return shares of prompts: right answers, right passages by one head and by the mean, and removed answers."""

    def read_most(prompts: list[Prompt]) -> Tensor:
        """Whether each head, and the mean of all, gave the planted passage the most: (prompts, heads + 1)."""
        hits = []
        for prompt in prompts:
            masses = torch.tensor(write(model, tokenizer, prompt).masses[0, :, :passages])
            hits.append(torch.cat([masses, masses.mean(0, keepdim=True)]).argmax(-1) == prompt.planted)
        return torch.stack(hits).double()

    best = int(read_most([*make_prompts(20, passages, seed=1)])[:, :-1].mean(0).argmax())  # on other prompts
    prompts = [*make_prompts(count, passages, seed=2)]
    hits = read_most(prompts)
    right = removed = 0
    for prompt in prompts:
        right += write(model, tokenizer, prompt).text == prompt.answer
        first = 1 + LENGTH * prompt.planted
        with dikkat.change(model, spans={"passage": slice(first, first + LENGTH)}, scale={"passage": 0}):
            removed += write(model, tokenizer, prompt).text != prompt.answer
    heads = model.config.num_attention_heads
    return {
        "answer is right": right / count,
        f"head {best % heads} of layer {best // heads} read the passage most": float(hits[:, best].mean()),
        "the mean of all heads read the passage most": float(hits[:, -1].mean()),
        "answer is removed if the passage is cut": removed / count,
    }


def main() -> None:
    """Train, print the shares of prompts, and write the page of one prompt."""
    tokenizer, model = make_tokenizer(), train()
    for name, share in measure(model, tokenizer).items():
        print(f"{share:6.0%}  {name}")
    if sys.argv[1:]:
        write(model, tokenizer, next(make_prompts(1, PASSAGES, seed=3)), path=sys.argv[1])


if __name__ == "__main__":
    main()
