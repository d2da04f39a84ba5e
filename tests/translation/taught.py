"""A small trained translator that several folders of tests share."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # an optimiser imports it, with Triton, which crashes where TensorFlow was imported before

from command import once
from dikkat.translation import Settings, TranslationModel, Translator
from dikkat.translation.training.train import train

PAIRS = [
    ("Go.", "Va !"), ("I lost.", "J'ai perdu."), ("He's calm.", "Il est calme."), ("I'm home.", "Je suis chez moi."),
    ("She sees Marie.", "Elle voit Marie."), ("Where is the man?", "Où est l'homme ?"),
    ("The man is calm.", "L'homme est calme."), ("She lost the man.", "Elle a perdu l'homme."),
]  # fmt: skip
TINY = Settings(
    embedding_size=32, hidden_size=32, min_freq=1, dropout=0.0, learning_rate=0.02, warmup_steps=5, batch_size=4,
    epochs=40, patience=40, length_penalty=2.0,
)  # fmt: skip


def untrained(translator: Translator, **changes: Any) -> Translator:
    """A translator of the same words, of other settings, that has learnt nothing."""
    settings = replace(translator.settings, **changes)
    source, target = translator.source_tokenizer, translator.target_tokenizer
    return Translator(TranslationModel(settings, len(source), len(target)), settings, source, target)


def tell_bfloat16(patch: pytest.MonkeyPatch, **capabilities: bool) -> None:
    """Have PyTorch tell of a processor with these capabilities; imitated products do for those in bfloat16."""
    patch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    patch.setattr(torch.backends.mkldnn, "is_available", lambda: True)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tests run side by side: threads of small products that wait for each other would slow all of them twentyfold."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def taught_model(factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model that knows eight sentences by heart, trained once for all test processes."""
    threads = torch.get_num_threads()
    with once(factory, "translator") as (folder, new):
        if new:
            torch.set_num_threads(1)
            torch.manual_seed(0)
            train(TINY, PAIRS, PAIRS, progress=False).translator.save(folder / "model")
            torch.set_num_threads(threads)
    return folder / "model"
