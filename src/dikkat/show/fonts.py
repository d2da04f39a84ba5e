"""Fonts for labels in any script: which installed fonts have the glyphs that the default one lacks.

matplotlib alone is not enough: it takes a missing glyph from the families that a text names, and no others, and its
font manager finds fonts by name, not by glyph. Chinese words would be boxes on a machine that has a font for them.
"""

import unicodedata
import warnings
from collections.abc import Iterable

__all__ = ["families_for"]

# Sans-serif fonts with wide coverage, tried before any other installed font.
_PREFERRED = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans JP",
    "Noto Sans SC",
    "Source Han Sans",
    "Hiragino Sans",
    "PingFang SC",
    "Apple SD Gothic Neo",
    "Yu Gothic",
    "Microsoft YaHei",
    "Malgun Gothic",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "IPAGothic",
    "Arial Unicode MS",
    "Noto Sans",
    "DejaVu Sans",
)


def families_for(texts: Iterable[str]) -> list[str]:
    """Font families that show the texts: the user's default ones first, then what fills their gaps.

    Args:
        texts: What is to be shown.

    Returns:
        Family names for `Text.set_fontfamily`.

    Warns:
        UserWarning: no installed font has some of the glyphs; the warning names them and what to install.

    Example:
        >>> families_for(["déjà vu"])
        ['sans-serif']
    """
    from matplotlib.font_manager import FontProperties, findfont

    families = list(FontProperties().get_family())
    missing = {character for text in texts for character in text if _needs_glyph(character)}
    for family in families:
        if missing:
            missing = _lacking(str(findfont(FontProperties(family=[family]))), missing)
    for name, path in _candidates() if missing else ():
        left = _lacking(path, missing)
        if left != missing:
            families.append(name)
            missing = left
        if not missing:
            break
    if missing:
        _warn(missing)
    return families


def _needs_glyph(character: str) -> bool:
    """Whether a character is drawn; spaces, joiners and direction marks are not."""
    return unicodedata.category(character) not in {"Cc", "Cf", "Zs", "Zl", "Zp", "Mn"}


def _lacking(path: str, characters: set[str]) -> set[str]:
    """The characters for which the font file has no glyph."""
    from matplotlib.ft2font import FT2Font

    try:
        font = FT2Font(path)
    except (OSError, RuntimeError):  # removed since the list was made; or colour bitmaps only, which cannot be drawn
        return characters
    return {character for character in characters if font.get_char_index(ord(character)) == 0}


def _candidates() -> list[tuple[str, str]]:
    """Name and file of each installed upright family of normal weight, the most suitable first."""
    from matplotlib.font_manager import fontManager

    upright = [entry for entry in fontManager.ttflist if entry.style == "normal" and entry.weight in (400, "normal")]
    files = {entry.name: entry.fname for entry in upright if not entry.name.startswith((".", "Last Resort"))}
    preferred = [name for name in _PREFERRED if name in files]
    others = sorted(files.keys() - set(preferred), key=lambda name: ("Sans" not in name, name))
    return [(name, files[name]) for name in (*preferred, *others)]


def _warn(missing: set[str]) -> None:
    shown = " ".join(sorted(missing)[:8]) + (" …" if len(missing) > 8 else "")
    warnings.warn(
        f"no installed font has the glyphs {shown} ({_script_of(missing)}); they will show as boxes. Install a font "
        "that has them, such as Noto Sans CJK for Chinese, Japanese and Korean (Debian and Ubuntu: apt-get install "
        "fonts-noto-cjk) or another Noto Sans for other scripts; then delete matplotlib's list of fonts, "
        "fontlist-*.json in the folder that matplotlib.get_cachedir() names",
        UserWarning,
        stacklevel=5,  # the caller of `heatmaps`
    )


def _script_of(characters: set[str]) -> str:
    """A word or two about the first of the characters, as Unicode calls it."""
    return unicodedata.name(min(characters), f"U+{ord(min(characters)):04X}").split("-")[0].lower()
