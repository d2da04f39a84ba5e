"""Images from paths, arrays and tensors, through Pillow, in 8 bits without transparency."""

from __future__ import annotations

import base64
import io
import os
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from dikkat.extras import require_extra

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

_MAX_SIDE = 2048  # pixels of a stored image
_EXPECTED = ("expected a Pillow image, a path, or an array or tensor (rows, columns), (rows, columns, 1|3|4) or "
             "(1|3|4, rows, columns) of floats from 0 to 1, uint8 or uint16")  # fmt: skip


def read_image(source: Any, max_side: int = _MAX_SIDE) -> tuple[Image, tuple[int, int]]:
    """Return an image in mode "L" or "RGB" with transparent pixels in white, and its original size.

    A longer side above `max_side` pixels is scaled down, unless it is 0.

    Raises:
        TypeError: The source is no image.
        ValueError: The shape or range of an array does not fit, or Pillow cannot read the file.
        OSError: The file cannot be read.
        ModuleNotFoundError: Pillow is not installed.
    """
    with require_extra("show"):
        from PIL import Image
    if isinstance(source, str | os.PathLike):
        image = _open(source)
    elif isinstance(source, Image.Image):
        image = source
    else:
        image = _from_array(source)
    if image.mode[0] in "IF":  # 16 and 32 bits, which Pillow would clip
        pixels = np.asarray(image)
        has_16_bits = image.mode == "I" and pixels.min() >= 0 and 255 < pixels.max() < 2**16
        image = _from_array(pixels.astype(np.uint16) if has_16_bits else pixels)
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    original = image.size
    if 0 < max_side < max(original):
        width, height = (max(1, round(side * max_side / max(original))) for side in original)
        image = image.resize((width, height), reducing_gap=2)
    if image.info or type(image) is not Image.Image:  # such as a place and a camera
        image = image.copy()
        image.info = {}
    return image, original


def _open(path: str | os.PathLike[str]) -> Image:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            return ImageOps.exif_transpose(image)
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise ValueError(f"image: got {os.fspath(path)!r}: {error}; expected an image file that Pillow reads") from None


def _from_array(source: Any) -> Image:
    from PIL import Image

    is_tensor = isinstance(source, Tensor)
    if is_tensor:
        source = source.detach().cpu()
        source = (source.float() if source.is_floating_point() else source).numpy()
    if not isinstance(source, np.ndarray):
        raise TypeError(f"image: got {type(source).__name__}; {_EXPECTED}")
    first, last = (source.ndim == 3 and source.shape[axis] in (1, 3, 4) for axis in (0, -1))
    if not (source.ndim == 2 or first or last) or 0 in source.shape:
        hint = "; for one image of a batch pass images[0]" if source.ndim == 4 else ""
        raise ValueError(f"image: got shape {source.shape}; {_EXPECTED}{hint}")
    pixels = np.moveaxis(source, 0, -1) if first and (is_tensor or not last) else source
    pixels = _to_bytes(pixels if pixels.ndim == 2 or pixels.shape[-1] > 1 else pixels[..., 0])
    return Image.fromarray(np.ascontiguousarray(pixels))


def _to_bytes(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == np.uint16:
        return (pixels >> 8).astype(np.uint8)
    if pixels.dtype.kind not in "biuf":
        raise TypeError(f"image: got dtype {pixels.dtype}; {_EXPECTED}")
    is_float, low, high = pixels.dtype.kind == "f", float(pixels.min()), float(pixels.max())
    if not (low >= 0 and high <= (1 if is_float else 255)):  # also rejects NaN
        raise ValueError(f"image: got {pixels.dtype} from {low:.4g} to {high:.4g}; {_EXPECTED}, before a processor "
                         "normalises them")  # fmt: skip
    if pixels.dtype.kind in "iu" and high == 1:
        raise ValueError(f"image: got {pixels.dtype} from {low:.0f} to 1; expected up to 255, floats, or booleans "
                         "for black and white")  # fmt: skip
    return np.round(pixels * (255.0 if is_float or pixels.dtype == bool else 1)).astype(np.uint8)


def data_url(image: Image, max_side: int = _MAX_SIDE) -> str:
    """Return an image for a page: the smaller of a PNG and a JPEG file, which is smaller for photographs."""
    small = image.copy()
    small.thumbnail((max_side, max_side))
    return min((f"data:image/{kind};base64,{_encode(small, kind)}" for kind in ("png", "jpeg")), key=len)


def png_text(image: Image) -> str:
    """Return a PNG file as base64."""
    return _encode(image, "png")


def _encode(image: Image, kind: str) -> str:
    file = io.BytesIO()
    image.save(file, kind, **({"quality": 88} if kind == "jpeg" else {"optimize": True}))
    return base64.b64encode(file.getvalue()).decode()


def parse_png(text: str) -> Image:
    """Return the image of `png_text`.

    Raises:
        ValueError: The text is no PNG file in base64.
    """
    with require_extra("show"):
        from PIL import Image
    try:
        with Image.open(io.BytesIO(base64.b64decode(text, validate=True)), formats=["PNG"]) as image:
            return read_image(image)[0]
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"images: got a damaged image ({error}); expected a PNG file. Record again") from None
