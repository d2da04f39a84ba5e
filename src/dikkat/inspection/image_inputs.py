"""The inputs of a model for images, or for images and a text, through its processor."""

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
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
        images: The Pillow images in mode "RGB", in their sizes.
        prompt: The text with the images' placeholders; None without a text.
        arguments: The arguments of the model.
    """

    model: Any
    processor: Any
    images: Sequence[Any]
    prompt: str | None
    arguments: Mapping[str, Any]

    @classmethod
    def read(cls, model: nn.Module, processor: Any, source: Any) -> "ImageInputs":
        """Return the checked inputs of an image, or of a tuple (image, text) or (list of images, text)."""
        image, text = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
        if text is not None and not isinstance(text, str):
            raise TypeError(f"text: got {type(text).__name__}; expected (image, text) with a string")
        name, names = type(model).__name__, _parameters_of(model)
        if text is not None and not {"input_ids", "decoder_input_ids"} & {*names}:
            raise ValueError(f"text: got a text for {name}, which reads only images; expected an image without a text")
        is_empty = text is None or not text.strip()
        if is_empty and getattr(model, "main_input_name", "") == "input_ids" and "input_ids" in names:
            tower = next((child for child, _ in model.named_children() if child.startswith("vis")), None)
            hint = f". For the image alone, pass model.{tower}" if tower else ""
            raise ValueError(f"text: got none for {name}, which reads a text too; expected (image, text){hint}")
        if text is not None and not hasattr(processor, "tokenizer"):
            raise TypeError(f"processor: got {type(processor).__name__}, which reads only images; expected the "
                            f"processor of {name} with a tokenizer, such as AutoProcessor loads")  # fmt: skip
        pictures = check_images(image if isinstance(image, list) else [image])
        images = [read_image(picture, max_side=0)[0].convert("RGB") for picture in pictures]
        prompts = [None] if text is None else _prompts_of(model, processor, text, len(images))
        candidates = [cls(model, processor, images, prompt, {}) for prompt in prompts]
        for inputs in candidates[:-1]:
            with suppress(ValueError):  # some processors add the placeholder
                return replace(inputs, arguments=inputs.encode(images))
        return replace(candidates[-1], arguments=candidates[-1].encode(images))

    def encode_with(self, number: int, image: Any) -> dict[str, Any]:
        """Return the arguments of the model with another image in place of the one with this number."""
        return self.encode([*self.images[:number], image, *self.images[number + 1 :]])

    def encode(self, images: Sequence[Any]) -> dict[str, Any]:
        """Return the arguments of the model for other images."""
        model, processor, text = self.model, self.processor, dict[str, Any]()
        if self.prompt is not None and not _has_image_encoder(model):
            bos = processor.tokenizer.bos_token
            text = {"text": self.prompt}
            text |= {"add_special_tokens": False} if bos and self.prompt.startswith(bos) else {}
        encoded = {**processor(images=images[0] if len(images) == 1 else images, return_tensors="pt", **text)}
        if _has_image_encoder(model):
            start = torch.tensor([[getattr(model.config, "decoder_start_token_id", None) or 0]])
            words = processor.tokenizer(self.prompt, return_tensors="pt")["input_ids"] if self.prompt else start
            encoded["decoder_input_ids"] = words
        names = _parameters_of(model)
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())
        device, dtype = getattr(model, "device", None), getattr(model, "dtype", None)
        return {name: value.to(device, dtype) if value.is_floating_point() else value.to(device)
                for name, value in encoded.items()
                if isinstance(value, Tensor) and name != "labels" and (takes_all or name in names)}  # fmt: skip

    def run(self, function: Callable[..., Any], **options: Any) -> Any:
        """Call the model or its `generate` with the inputs.

        Raises:
            ValueError: The inputs do not fit the model.
        """
        started = list[Any]()
        handle = self.model.register_forward_pre_hook(lambda *_: started.append(None))
        try:
            return function(**self.arguments, **options)
        except (RuntimeError, IndexError, ValueError, TypeError, AttributeError) as error:
            if not started or (isinstance(error, ValueError) and re.match(_RECORDING, str(error))):
                raise  # of `generate`'s arguments, or of the recording
            name, failure = type(self.model).__name__, f"({type(error).__name__}: {str(error).strip():.200})"
            if self.prompt is None and "input_ids" in _parameters_of(self.model):
                raise ValueError(f"text: got none for {name}, which fails {failure}; expected (image, text)") from error
            raise ValueError(
                f"processor: got the inputs {', '.join(self.arguments)} of {type(self.processor).__name__}, with which "
                f"{name} fails {failure}; expected the processor of this model"
            ) from error
        finally:
            handle.remove()


_RECORDING = r"(record|heads|layers|queries|model)\b.*: got"  # errors of a recording


def check_images(images: Sequence[Any]) -> Sequence[Any]:
    """Raise an error for entries that are no images; reading them checks the rest."""
    if not images:
        raise ValueError("image: got an empty list; expected an image, or a list of images")
    for image in images:
        if isinstance(image, list | tuple):
            raise TypeError(
                f"image: got a {type(image).__name__} of {len(image)} in a list; expected an image, a list of images, "
                "(image, text) or ([image, image], text). Call attention once for each text"
            )
        if getattr(image, "ndim", 0) > 3:
            raise ValueError(
                f"image: got shape {tuple(image.shape)}; expected one image. Pass a batch or video as a list, [*frames]"
            )
        if isinstance(image, str) and not os.path.exists(image):  # noqa: PTH110 (False for names that are too long)
            raise FileNotFoundError(f"image: got {image!r:.60}, which is no file; expected an image, or (image, text)")
    return images


def _parameters_of(model: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(model.forward).parameters


def _has_image_encoder(model: Any) -> bool:
    """Return whether a model reads an image with an encoder and writes a text with a decoder."""
    return getattr(model, "main_input_name", "") != "input_ids" and "decoder_input_ids" in _parameters_of(model)


def _prompts_of(model: Any, processor: Any, text: str, count: int) -> list[str]:
    """Return the text with the images' placeholders, in the chat template if there is one; else also without them."""
    token = getattr(processor, "image_token", None)
    token = getattr(token, "content", token)
    if _has_image_encoder(model) or not text.strip() or (token and token in text):
        return [text]
    if getattr(processor, "chat_template", None):
        turn = {"role": "user", "content": [*[{"type": "image"}] * count, {"type": "text", "text": text}]}
        return [str(processor.apply_chat_template([turn], add_generation_prompt=True))]
    return [f"{token * count}{text}", text] if token else [text]
