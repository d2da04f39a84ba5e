"""The sentences of a line."""

from dikkat.translation.text.capitals import END


def sentences_of(line: str) -> tuple[list[str], list[str]]:
    """The sentences of a line, and the space between each and the next one.

    Example:
        >>> sentences_of("Dr. Li left at 5 p.m. on Monday. “Why?” He said no.")
        (['Dr. Li left at 5 p.m. on Monday.', '“Why?”', 'He said no.'], [' ', ' '])
    """
    sentences, spaces, start = [], [], 0
    for end in END.finditer(line):
        sentences.append(line[start : end.start()])
        spaces.append(end[0])
        start = end.end()
    return [*sentences, line[start:]], spaces
