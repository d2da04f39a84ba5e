"""Well-known corpora by name: downloaded, verified and cached."""

import warnings
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from dikkat.storage.cache import cache_folder, explaining_write_errors
from dikkat.storage.files import write_whole
from dikkat.translation.data.corpus import AlignedCorpus, Corpus, TsvCorpus
from dikkat.translation.data.downloads import Checksum, fetch
from dikkat.translation.data.splits import split
from dikkat.translation.errors import CorpusError
from dikkat.translation.fields import nearest

NAMES = ("tatoeba-fra-eng", "multi30k-en-fr", "multi30k-en-de")

_MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw"
_MULTI30K_SHA256 = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.fr.gz": "622e75069e9f4c577425c4f277116ce66e63a2401c0a2312d90073cb12379a3c",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.fr.gz": "ca3106f1a72390591d25f6c45cb4cd39dec4cd3f123e099748a3ce5256c160e9",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.fr.gz": "6d326e188d259fb1d04ac19eae3af956559b3a0b93d7635e56c90987c40c8b90",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
}
_TATOEBA = "http://d2l-data.s3-accelerate.amazonaws.com"
_TATOEBA_SHA1 = "94646ad1522d915e7b0f9296181140edcf86a4f5"
# Errors of damaged archives; RuntimeError if the damage makes one look encrypted or packed in an unknown way.
_ARCHIVE_ERRORS = (zipfile.BadZipFile, EOFError, zlib.error, RuntimeError)
_TATOEBA_SHARE = 0.01  # for validation, and the same for test: about 1,500 sentences each


@dataclass(frozen=True)
class NamedCorpus:
    """A well-known corpus on this machine.

    Attributes:
        training: The training pairs.
        validation: The pairs for early stopping and the choice of settings.
        test: The pairs for the final scores.
        whole: The complete training file, including the validation and test pairs that come from it.
    """

    training: Corpus
    validation: Corpus
    test: Corpus
    whole: Corpus


def named(name: str, *, base: str | None = None) -> NamedCorpus:
    """Return a well-known corpus, downloaded on first use with a progress bar, and verified on every use.

    | name | content | validation and test |
    | --- | --- | --- |
    | `tatoeba-fra-eng` | 167,000 short English–French pairs of tatoeba.org (CC BY 2.0 FR) | a fixed 1 % of the English sentences each |
    | `multi30k-en-fr`, `multi30k-en-de` | captions of 29,000 pictures, for research | val, and test 2016 |

    The files are in the subfolder `corpora` of dikkat's cache folder: the system's, or the one that the environment
    variable `DIKKAT_CACHE` names. You can also put files there by hand; they are verified.

    Args:
        name: A name from the table.
        base: The address of the folder that has the files; None: the publisher's.

    Raises:
        CorpusError: An unknown name; a file that cannot be fetched (the message names the path for a manual download), or
            has another checksum.
        OSError: The cache folder cannot be written.

    Example:
        >>> named("multi30k-en-it")
        Traceback (most recent call last):
            ...
        dikkat.translation.errors.CorpusError: multi30k-en-it: unknown corpus; did you mean multi30k-en-fr?
    """  # noqa: E501  (a row of a table is one line)
    if name not in NAMES:
        raise CorpusError(f"{name}: unknown corpus; {nearest(name, NAMES)}")
    if name == "tatoeba-fra-eng":
        return _tatoeba(base or _TATOEBA)
    _, *languages = name.split("-")
    return _multi30k(base or _MULTI30K, *languages)


def _multi30k(base: str, source: str, target: str) -> NamedCorpus:
    folder = cache_folder("corpora", "multi30k")

    def open_part(name: str) -> Corpus:
        paths = [folder / f"{name}.{language}.gz" for language in (source, target)]
        for path in paths:
            fetch(f"{base}/{path.name}", path, Checksum("sha256", _MULTI30K_SHA256[path.name]))
        return AlignedCorpus(*paths)

    training = open_part("train")
    return NamedCorpus(training, open_part("val"), open_part("test_2016_flickr"), training)


def _tatoeba(base: str) -> NamedCorpus:
    archive = cache_folder("corpora", "tatoeba-fra-eng") / "fra-eng.zip"
    checksum = Checksum("sha1", _TATOEBA_SHA1)
    if archive.exists() and Checksum.of(archive, "sha1") != checksum and "fra.txt" in _members(archive):
        warnings.warn(
            f"{archive}: got a different edition of the corpus; expected the checksum {checksum}. Scores are not "
            "comparable with published ones",
            UserWarning,
            stacklevel=3,
        )
    else:
        fetch(f"{base}/{archive.name}", archive, checksum)
    corpus = TsvCorpus(_extract(archive, Checksum.of(archive).value))
    training, validation, test = split(corpus, _TATOEBA_SHARE, _TATOEBA_SHARE)
    return NamedCorpus(training, validation, test, corpus)


def _extract(archive: Path, sha256: str) -> Path:
    path = archive.with_name(f"fra-eng-{sha256[:12]}.tsv")
    if not path.exists():
        member = next((name for name in ("fra-eng/fra.txt", "fra.txt") if name in _members(archive)), None)
        if member is None:
            raise CorpusError(f"{archive}: fra.txt is missing. Delete it to have it fetched again")
        try:
            with zipfile.ZipFile(archive) as zip_file:
                content = zip_file.read(member)
        except _ARCHIVE_ERRORS as error:
            raise CorpusError(f"{archive}: damaged ({error}). Delete it to have it fetched again") from error
        with explaining_write_errors(path.name, path.parent):
            write_whole(path, content)
    return path


def _members(archive: Path) -> list[str]:
    try:
        with zipfile.ZipFile(archive) as zip_file:
            return zip_file.namelist()
    except _ARCHIVE_ERRORS:
        return []
