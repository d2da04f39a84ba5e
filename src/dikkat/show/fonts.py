"""Fonts for labels in any script: known families that have the glyphs that the user's fonts lack.

matplotlib takes missing glyphs only from the families of a text.
"""

import unicodedata
import warnings
from collections.abc import Iterable

__all__ = ["families_for"]

_NOT_DRAWN = {"Cc", "Cf", "Zs", "Zl", "Zp", "Mn"}  # Unicode categories of spaces, joiners and marks
_FALLBACKS = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans JP", "Noto Sans SC", "Source Han Sans", "Hiragino Sans",
    "PingFang SC", "Apple SD Gothic Neo", "Yu Gothic", "Microsoft YaHei", "Malgun Gothic", "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei", "IPAGothic", "Arial Unicode MS", "Noto Sans", "DejaVu Sans", "Noto Sans Arabic",
    "Noto Sans Hebrew", "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Tamil", "Noto Sans Telugu",
    "Noto Sans Thai", "Noto Sans Armenian", "Noto Sans Georgian", "Nirmala UI", "FreeSans", "STIXGeneral",
)  # fmt: skip


def families_for(texts: Iterable[str]) -> list[str]:
    """Return font families that show the texts: the user's default families first, then fallbacks.

    Example:
        >>> families_for(["déjà vu"])
        ['sans-serif']
    """
    from matplotlib.font_manager import FontProperties, fontManager

    families = list(FontProperties().get_family())
    missing = {character for text in texts for character in text if unicodedata.category(character) not in _NOT_DRAWN}
    for family in families:
        missing = _missing_glyphs(family, missing)
    installed = set(fontManager.get_font_names()) if missing else ()
    for family in _FALLBACKS:
        if family in installed and missing != (remaining := _missing_glyphs(family, missing)):
            families.append(family)
            missing = remaining
    if missing:
        shown = " ".join(sorted(missing)[:8]) + (" …" if len(missing) > 8 else "")
        script = unicodedata.name(min(missing), f"U+{ord(min(missing)):04X}").split("-")[0].lower()
        warnings.warn(
            f"no known font has the glyphs {shown} ({script}), which will show as boxes. Install Noto "
            "Sans CJK for Chinese, Japanese and Korean (Debian and Ubuntu: apt-get install fonts-noto-cjk) or another "
            "Noto Sans, then delete matplotlib's list of fonts, fontlist-*.json in the folder that "
            "matplotlib.get_cachedir() names; or add a family that has them to matplotlib's rcParams['font.family']",
            UserWarning,
            stacklevel=4,  # the caller of `heatmaps`
        )
    return families


def _missing_glyphs(family: str, characters: set[str]) -> set[str]:
    """Return the characters for which a family has no glyph."""
    from matplotlib.font_manager import FontProperties, findfont
    from matplotlib.ft2font import FT2Font

    if not characters:
        return characters
    font = FT2Font(findfont(FontProperties(family=[family])))
    return {character for character in characters if font.get_char_index(ord(character)) == 0}
