"""Numbers and words as options have them."""


def bandwidth_of(text: str) -> str | float | list[float]:
    """A rule's name as it is; numbers as numbers."""
    try:
        numbers = [float(number) for number in text.split(",")]
    except ValueError:
        return text
    return numbers[0] if len(numbers) == 1 else numbers


def neighbors_of(text: str | None) -> int | str | None:
    """A number as a number; a word as it is, but for none."""
    if text is None or text == "none":
        return None
    return int(text) if text.isdecimal() else text
