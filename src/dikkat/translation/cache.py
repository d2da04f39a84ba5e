import os
from pathlib import Path

VARIABLE = "DIKKAT_CACHE"


def cache_folder(name: str) -> Path:
    """A folder for what can be made or fetched again: in the one that DIKKAT_CACHE names, or the system's for caches.

    Args:
        name: of the folder in it.

    Returns:
        The folder, which is there.

    Raises:
        OSError: it cannot be made.

    Example:
        >>> import os, tempfile
        >>> os.environ["DIKKAT_CACHE"] = tempfile.mkdtemp()
        >>> cache_folder("corpora").is_dir()
        True
        >>> del os.environ["DIKKAT_CACHE"]
    """
    import platformdirs

    chosen = os.environ.get(VARIABLE)
    folder = (Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("dikkat")) / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            error.errno, f"the cache folder cannot be made ({error.strerror}); {ELSEWHERE}", str(folder)
        ) from error
    return folder


ELSEWHERE = f"free some space, or name a folder on another disk with the environment variable {VARIABLE}"
