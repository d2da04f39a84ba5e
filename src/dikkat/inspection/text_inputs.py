"""The inputs and tokens of a text."""

import re
from typing import Any

from torch import nn

from dikkat.show.positions import Token


def encode_texts(model: nn.Module, tokenizer: Any, text: Any) -> tuple[dict[str, Any], Any]:
    """Return a model's inputs for a text or a pair of texts, and the tokens."""
    texts = (text,) if isinstance(text, str) else text
    if not isinstance(texts, tuple) or len(texts) > 2 or not all(isinstance(item, str) for item in texts):
        raise TypeError(f"text: got {type(text).__name__}; expected a string, or a source and a target in a tuple")
    input_name = getattr(model, "main_input_name", "input_ids")
    if input_name != "input_ids":
        raise ValueError(
            f"text: got one for {type(model).__name__}, which reads {input_name}; expected its inputs and their "
            f"labels instead: attention(model, {input_name}=..., tokens=[...])"
        )
    is_pair = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    if is_pair != (len(texts) == 2):
        expected = "a source and a target in a tuple, as it has an encoder and a decoder" if is_pair else "one string"
        raise ValueError(f"text: got {len(texts)} for {type(model).__name__}; expected {expected}")
    encodings = [encode(model, tokenizer, item) for item in texts]
    inputs, labels = dict(encodings[0]), [make_tokens(tokenizer, encoded) for encoded in encodings]
    if is_pair:
        inputs["decoder_input_ids"] = encodings[1]["input_ids"]
    return inputs, tuple(labels) if is_pair else labels[0]


def encode(model: nn.Module, tokenizer: Any, text: str, **options: Any) -> Any:
    """Return the checked inputs of a text, on the model's device."""
    check_tokenizer(tokenizer)
    encoded = tokenizer(text, return_tensors="pt", **options)
    ids, table = encoded["input_ids"], getattr(model, "get_input_embeddings", lambda: None)()
    if not ids.numel():
        raise ValueError("text: got a text without tokens; expected at least one token")
    vocabulary_size = getattr(table, "num_embeddings", None)
    if vocabulary_size is not None and int(ids.max()) >= vocabulary_size:
        raise ValueError(
            f"tokenizer: got token {int(ids.max())} from {type(tokenizer).__name__}; expected 0 to "
            f"{vocabulary_size - 1}; pass the tokenizer of {type(model).__name__}"
        )
    limit = min(
        (size for name, module in model.named_modules() if (size := _position_count(name, module))), default=None
    )
    if limit is not None and ids.shape[-1] > limit:
        raise ValueError(
            f"text: got {ids.shape[-1]} tokens; expected at most {limit}, the positions of {type(model).__name__}"
        )
    return encoded.to(getattr(model, "device", ids.device))


def check_tokenizer(tokenizer: Any) -> None:
    """Raise an error for a tokenizer that only its library can call."""
    if hasattr(tokenizer, "token_to_id") and not callable(tokenizer):
        raise TypeError(
            "tokenizer: got tokenizers.Tokenizer; expected a tokenizer of transformers, such as "
            "transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)"
        )


def _position_count(name: str, module: nn.Module) -> int:
    """Return the number of positions in a table of position embeddings; 0 for other modules."""
    if not isinstance(module, nn.Embedding) or not re.search(r"(^|\.)(wpe|(embed_)?positions?(_embeddings?)?)$", name):
        return 0
    before = module.padding_idx + 1 if module.padding_idx is not None else getattr(module, "offset", 0)
    return int(module.num_embeddings - before)


def make_tokens(tokenizer: Any, encoded: Any) -> list[Token]:
    """Return the tokens to show, with their words if the tokenizer knows them."""
    ids, special = encoded["input_ids"][0].tolist(), set(tokenizer.all_special_ids)
    words = encoded.word_ids(0) if getattr(encoded, "is_fast", False) else [None] * len(ids)
    texts = []
    for token_id, piece in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        text = tokenizer.decode([token_id]).strip()
        piece = piece or str(token_id)  # a model may write numbers that its tokenizer does not know
        texts.append(piece if not text or "\N{REPLACEMENT CHARACTER}" in text else text.removeprefix("##"))
    previous_words = [None, *words]
    return [
        Token(text, token_id in special, word is not None and word == previous)
        for text, token_id, word, previous in zip(texts, ids, words, previous_words, strict=False)
    ]
