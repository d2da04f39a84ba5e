"""Tokenizers of words as model folders before this version had them: small letters, and a step for each spelling."""

import re
import reprlib
from typing import Any

_MOST = 20_000  # steps
_CONTEXTS = {
    "name": (r"(?<=[ ])", r"(?=[ ]|$)"),
    "start": (r"(?:(?<=\A[ ])|(?<=\A[ ][\"«“(][ ])|(?<=[ ][.!?][ ]))", ""),
    "before": (r"[ ](?=", r"(?:[ ]|$))"),
    "after": (r"(?<=[ ]", r")[ ]"),
}


def is_older(content: Any) -> bool:
    """Whether a tokenizer.json is of such a tokenizer."""
    match content:
        case {"model": {"type": "WordLevel", "vocab": dict()}, "normalizer": {"normalizers": [*steps]}}:
            return {"type": "Lowercase"} in steps
    return False


def converted(content: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A tokenizer.json of today with the same tokens, each spelt as its steps spelt it."""
    match content.get("decoder"):
        case {"decoders": [_, _, *steps, _, _]} if len(steps) <= _MOST:
            found = {kind: dict[str, str]() for kind in _CONTEXTS}
            for step in steps:
                kind, text, spelt = _read(step)
                found[kind][text] = spelt
        case _:
            raise ValueError("its decoder is another than those that dikkat writes")
    if found["start"]:
        own["decoder"]["decoders"][0]["pattern"]["String"] = "\0\n!.?\0"
    for token, number in content["model"]["vocab"].items():
        spaces = [" " * (token not in found[side] and not token[:1].isalnum()) for side in ("before", "after")]
        spelt = token if number in range(4) or token.endswith("'") else found["name"].get(token, token).join(spaces)
        own["model"]["vocab"][spelt] = number
    own["added_tokens"] = content.get("added_tokens")
    return own


def _read(step: Any) -> tuple[str, str, str]:
    match step:
        case {"type": "Replace", "pattern": {"Regex": str(pattern)}, "content": str(spelt)}:
            for kind, (before, after) in _CONTEXTS.items():
                text = re.sub(r"\\(.)", r"\1", pattern.removeprefix(before).removesuffix(after), flags=re.DOTALL)
                if text and before + re.escape(text) + after == pattern:
                    return kind, text, spelt
    raise ValueError(f"its decoder has a step that dikkat does not write: {reprlib.repr(step)}")
