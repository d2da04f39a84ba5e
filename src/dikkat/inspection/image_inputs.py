"""The inputs of a model for an image, or for an image and a text, through its processor."""

import inspect
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dikkat.show.pictures import read_image


def is_processor(value: object) -> bool:
    """Return whether a value is an image processor of transformers, or a processor with one."""
    return callable(value) and (hasattr(value, "image_processor") or hasattr(value, "preprocess"))


@dataclass(frozen=True)
class ImageInputs:
    """The inputs of a model.

    Attributes:
        model: The model.
        processor: Its processor.
        image: The Pillow image in mode "RGB", in its size.
        prompt: The text with the image's placeholder; None without a text.
        inputs: The arguments of the model.
    """

    model: Any
    processor: Any
    image: Any
    prompt: str | None
    inputs: Mapping[str, Any]

    @classmethod
    def read(cls, model: nn.Module, processor: Any, source: Any) -> "ImageInputs":
        """Return the checked inputs of an image, or of a tuple of an image and a text."""
        image, text = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
        if isinstance(image, list | tuple):
            kind = type(image).__name__
            raise TypeError(f"image: got a {kind} of {len(image)}; expected one image, or (image, text)")
        if isinstance(image, str) and not os.path.exists(image):  # noqa: PTH110 (False for names that are too long)
            raise FileNotFoundError(f"image: got {image!r:.60}, which is no file; expected an image, or (image, text)")
        if text is not None and not isinstance(text, str):
            raise TypeError(f"text: got {type(text).__name__}; expected (image, text) with a string")
        name, names = type(model).__name__, inspect.signature(model.forward).parameters
        reads_text = "input_ids" in names or "decoder_input_ids" in names
        if text is not None and not reads_text:
            raise ValueError(f"text: got a text for {name}, which reads only images; expected an image without a text")
        is_empty = text is None or not text.strip()
        if is_empty and getattr(model, "main_input_name", "") == "input_ids" and "input_ids" in names:
            raise ValueError(f"text: got none for {name}, which reads a text too; expected (image, text)")
        if text is not None and not hasattr(processor, "tokenizer"):
            raise TypeError(f"processor: got {type(processor).__name__}, which reads only images; expected the "
                            f"processor of {name} with a tokenizer, such as AutoProcessor loads")  # fmt: skip
        picture = read_image(image, max_side=0)[0].convert("RGB")
        *prompts, last = [None] if text is None else _prompts_of(model, processor, text)
        for prompt in prompts:
            with suppress(ValueError):  # some processors add the placeholder
                read = cls(model, processor, picture, prompt, {})
                return replace(read, inputs=read.encode(picture))
        read = cls(model, processor, picture, last, {})
        return replace(read, inputs=read.encode(picture))

    def encode(self, image: Any) -> dict[str, Any]:
        """Return the arguments of the model for another image."""
        model, processor, text = self.model, self.processor, dict[str, Any]()
        if self.prompt is not None and not _has_image_encoder(model):
            bos = processor.tokenizer.bos_token
            text = {"text": self.prompt}
            text |= {"add_special_tokens": False} if bos and self.prompt.startswith(bos) else {}
        encoded = {**processor(images=image, return_tensors="pt", **text)}
        if _has_image_encoder(model):
            start = torch.tensor([[getattr(model.config, "decoder_start_token_id", None) or 0]])
            words = processor.tokenizer(self.prompt, return_tensors="pt")["input_ids"] if self.prompt else start
            encoded["decoder_input_ids"] = words
        names = inspect.signature(model.forward).parameters
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())
        device, dtype = getattr(model, "device", None), getattr(model, "dtype", None)
        return {name: value.to(device, dtype) if value.is_floating_point() else value.to(device)
                for name, value in encoded.items()
                if isinstance(value, Tensor) and name != "labels" and (takes_all or name in names)}  # fmt: skip

    def run(self, function: Any, **options: Any) -> Any:
        """Call the model or its `generate` with the inputs.

        Raises:
            ValueError: The inputs do not fit the model.
        """
        try:
            return function(**self.inputs, **options)
        except (RuntimeError, IndexError, ValueError, TypeError, AttributeError) as error:
            if type(error) is ValueError and re.match(r"(record|heads|layers|queries)\b.*: got", str(error)):
                raise  # of the recording
            raise ValueError(
                f"processor: got the inputs {', '.join(self.inputs)} of {type(self.processor).__name__}, with which "
                f"{type(self.model).__name__} fails ({type(error).__name__}: {str(error).strip():.200}); expected the "
                "processor of this model"
            ) from error


def _has_image_encoder(model: Any) -> bool:
    """Return whether a model reads an image with an encoder and writes a text with a decoder."""
    names = inspect.signature(model.forward).parameters
    return getattr(model, "main_input_name", "") != "input_ids" and "decoder_input_ids" in names


def _prompts_of(model: Any, processor: Any, text: str) -> list[str]:
    """Return the text with the image's placeholder, in the chat template if there is one; else also without it."""
    token = getattr(processor, "image_token", None)
    token = getattr(token, "content", token)
    if _has_image_encoder(model) or not text.strip() or (token and token in text):
        return [text]
    if getattr(processor, "chat_template", None):
        turn = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}
        return [str(processor.apply_chat_template([turn], add_generation_prompt=True))]
    return [f"{token}{text}", text] if token else [text]
