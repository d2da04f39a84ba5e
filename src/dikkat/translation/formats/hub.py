"""Models on the Hugging Face Hub."""

import json
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dikkat.errors import InputError
from dikkat.storage.files import write_whole
from dikkat.storage.folders import SUMS
from dikkat.translation.formats import model_folder
from dikkat.translation.formats.model_folder import FILES, Contents

CARD = "README.md"

_CONNECTION = (ConnectionError, TimeoutError, socket.gaierror)


class HubError(InputError):
    """The Hub could not be reached, or refused; the message says what to do."""


def push(
    contents: Contents, repo: str, *, private: bool = False, token: str | None = None, endpoint: str | None = None
) -> str:
    """Upload a model folder with a card that says how to use it, as one commit; see `Translator.push_to_hub`."""
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory(prefix="dikkat-") as place:
        folder = Path(place, "model")
        model_folder.write(folder, contents)
        write_whole(folder / CARD, card(contents, repo))
        with _said(repo, "uploaded"):
            api = HfApi(endpoint=endpoint, token=token)
            api.create_repo(repo, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repo,
                folder_path=folder,
                allow_patterns=[*FILES, SUMS, CARD],
                commit_message="A translator of dikkat",
            )
    return str(commit.commit_url)


def pull(repo: str, *, revision: str | None = None, token: str | None = None, endpoint: str | None = None) -> Path:
    """Download a model folder, or find it in the Hub's cache, and nothing else; see `Translator.from_hub`."""
    from huggingface_hub import HfApi

    with _said(repo, "downloaded"):
        api = HfApi(endpoint=endpoint, token=token)
        folder = Path(api.snapshot_download(repo, revision=revision, allow_patterns=[*FILES, SUMS]))
    if missing := [name for name in (*FILES, SUMS) if not (folder / name).is_file()]:
        raise HubError(f"{repo}: {missing[0]} is missing, so this is no translator of dikkat's")
    return folder


def card(contents: Contents, repo: str) -> str:
    """The README.md of a model: what it is, and how to use it."""
    settings, source, target = contents.settings, len(contents.source), len(contents.target)
    parameters = sum(each.numel() for each in contents.tensors.values())
    attention = "without attention" if settings.score == "none" else f"with {settings.score} attention"
    return f"""---
library_name: dikkat
pipeline_tag: translation
tags:
- translation
- attention
---

# {repo.rpartition("/")[2]}

A translator by dikkat: {settings.cell.upper()}, {attention}, {parameters:,} parameters;
{source:,} source and {target:,} target tokens ({settings.tokenizer}).

~~~python
from dikkat.translation import Translator

translator = Translator.from_hub("{repo}")
print(translator.translate(["…"])[0].target)
~~~

Trained with these settings:

~~~json
{json.dumps(settings.to_dict(), indent=2)}
~~~
"""


@contextmanager
def _said(repo: str, done: str) -> Iterator[None]:
    """A context that turns the library's errors into a `HubError` that says what to do."""
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        HfHubHTTPError,
        HFValidationError,
        HTTPError,  # that of whichever library of HTTP its version uses
        LocalTokenNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except HFValidationError as error:
        raise HubError(f"{repo!r} is no name of a repository; write user/name") from error
    except RevisionNotFoundError as error:
        raise HubError(f"{repo}: no such revision. Give a branch, tag or commit of the repository") from error
    except (RepositoryNotFoundError, LocalTokenNotFoundError) as error:
        raise HubError(
            f"{repo}: no such repository, or no right to it. Check the name; for a private one, or to upload, log in "
            "with `hf auth login`, or give a token that may write"
        ) from error
    except HfHubHTTPError as error:
        raise HubError(f"{repo} could not be {done}: {_reason(error)}") from error
    except (HTTPError, OSError) as error:
        # An error of the system, that is, of the files here, has a number; the library's own and most of connections,
        # of which each of its versions has other classes, have none.
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, _CONNECTION):
            raise
        raise HubError(
            f"{repo} could not be {done}: {_reason(error)}. Check the network, and whether the Hub's address is right"
        ) from error


def _reason(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return f"the Hub refused ({status}). Log in with `hf auth login`, or give a token that may write"
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
