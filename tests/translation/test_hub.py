import base64
import errno
import hashlib
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest
from huggingface_hub.errors import OfflineModeIsEnabled

from dikkat.translation import Settings, Tokenizer, TranslationModel, Translator
from dikkat.translation.formats.hub import FILES, HubError, card, pull, push

TOKEN = "hf_of_a_test"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """The few answers of the Hub that an upload and a download ask for; one commit in each repository."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        self.repositories = {}  # by name: files by path
        self.private = {}
        self.read = []
        self.address = f"http://127.0.0.1:{self.server_port}"


class Answers(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, content, status=200, **headers):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": len(data), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, status, **headers):
        self.answer({"error": "refused"}, status, **headers)

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b"".join(self.chunks())
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse(401)
        path = unquote(urlsplit(self.path).path)
        if path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}" if wanted.get("organization") else wanted["name"]
            self.server.repositories.setdefault(name, {})
            self.server.private[name] = wanted.get("private", wanted.get("visibility") == "private")
            return self.answer({"url": f"{self.server.address}/{name}", "name": name, "id": name})
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        name, _, action = path.removeprefix("/api/models/").partition("/preupload/")
        if action:
            files = json.loads(body)["files"]
            return self.answer(
                {"files": [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in files]}
            )
        name = path.removeprefix("/api/models/").partition("/commit/")[0]
        for line in body.splitlines():
            entry = json.loads(line)
            if entry["key"] == "file":
                value = entry["value"]
                self.server.repositories[name][value["path"]] = base64.b64decode(value["content"])
        url = f"{self.server.address}/{name}/commit/{COMMIT}"
        return self.answer({"commitUrl": url, "commitOid": COMMIT, "success": True})

    def chunks(self):
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        name = "/".join(path.removeprefix("/api/models").split("/")[1:3])
        files = self.server.repositories.get(name)
        if files is None:
            return self.refuse(404, X_Error_Code="RepoNotFound")
        if "/resolve/" in path:
            revision, _, file = path.partition("/resolve/")[2].partition("/")
            self.server.read.append(file)
            if file not in files:
                return self.refuse(404, X_Error_Code="EntryNotFound")
            etag = f'"{hashlib.sha1(files[file]).hexdigest()}"'
            return self.answer(files[file], ETag=etag, X_Repo_Commit=COMMIT)
        if "/tree/" in path:
            return self.answer(
                [
                    {"type": "file", "path": each, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for each, data in files.items()
                ]
            )
        revision = path.partition("/revision/")[2]
        if revision not in ("", "main", COMMIT):
            return self.refuse(404, X_Error_Code="RevisionNotFound")
        siblings = [{"rfilename": each} for each in files]
        return self.answer({"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "private": False})

    def do_HEAD(self):
        self.do_GET()


@pytest.fixture
def hub(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def small():
    english = Tokenizer.train(["Go now."], "word", min_freq=1, vocabulary_size=9)
    french = Tokenizer.train(["Va !"], "word", min_freq=1, vocabulary_size=9)
    settings = Settings(embedding_size=3, hidden_size=4)
    return Translator(TranslationModel(settings, len(english), len(french)).eval(), settings, english, french)


def test_what_is_pushed_comes_back(hub, small):
    url = small.push_to_hub("marie/small", private=True, token=TOKEN, endpoint=hub.address)
    assert url == f"{hub.address}/marie/small/commit/{COMMIT}"
    assert set(hub.repositories["marie/small"]) == {*FILES, "SHA256SUMS", "README.md"}
    assert hub.private == {"marie/small": True}
    found = Translator.from_hub("marie/small", revision="main", token=TOKEN, endpoint=hub.address)
    sentences = ["Go now.", "now"]
    wanted = small.translate(sentences)
    assert [(each.target, each.score) for each in found.translate(sentences)] == [
        (each.target, each.score) for each in wanted
    ]


def test_only_a_models_own_files_are_taken(hub, small):
    push(small._contents(), "marie/small", token=TOKEN, endpoint=hub.address)
    hub.repositories["marie/small"] |= {"evil.pkl": b"\x80\x04.", "setup.py": b"print()"}
    folder = pull("marie/small", endpoint=hub.address)
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, "SHA256SUMS"])
    assert set(hub.read) <= {*FILES, "SHA256SUMS"}


def test_a_downloaded_model_is_there_without_the_network(hub, small):
    push(small._contents(), "marie/small", token=TOKEN, endpoint=hub.address)
    folder = pull("marie/small", endpoint=hub.address)
    assert pull("marie/small", endpoint=_nowhere()) == folder


def test_what_cannot_be_is_said(hub, small):
    with pytest.raises(HubError, match="marie/none: no such repository, or no right to it"):
        pull("marie/none", endpoint=hub.address)
    with pytest.raises(HubError, match=r"the Hub refused \(401\). Log in|no right to it"):
        push(small._contents(), "marie/small", token="hf_wrong", endpoint=hub.address)
    with pytest.raises(HubError, match=r"log in|Log in"):
        push(small._contents(), "marie/small", endpoint=hub.address)  # no token
    assert hub.repositories == {}
    with pytest.raises(HubError, match="is no name of a repository; write user/name"):
        pull("a/b/c", endpoint=hub.address)
    hub.repositories["marie/other"] = {"model.safetensors": b""}
    with pytest.raises(HubError, match=r"settings.json is missing, so this is no translator"):
        pull("marie/other", endpoint=hub.address)
    with pytest.raises(HubError, match="marie/other: no such revision"):
        pull("marie/other", revision="gone", endpoint=hub.address)


def test_no_network_is_said(hub, small):
    with pytest.raises(HubError, match=r"marie/small could not be downloaded: .*Check the network"):
        pull("marie/small", endpoint=_nowhere())
    with pytest.raises(HubError, match=r"marie/small could not be uploaded: .*Check the network"):
        push(small._contents(), "marie/small", token=TOKEN, endpoint=_nowhere())


@pytest.mark.parametrize(
    "fault",
    [OSError(errno.ENOSPC, "No space left on device"), PermissionError(errno.EACCES, "Permission denied"), TypeError()],
)
def test_what_is_no_fault_of_the_network_is_not_said_to_be(small, monkeypatch, fault):
    def failing(*_, **__):
        raise fault

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", failing)
    monkeypatch.setattr(huggingface_hub.HfApi, "snapshot_download", failing)
    for use in (lambda: push(small._contents(), "marie/small"), lambda: pull("marie/small")):
        with pytest.raises(type(fault)) as raised:
            use()
        assert raised.value is fault


@pytest.mark.parametrize("fault", [ConnectionResetError(errno.ECONNRESET, "reset"), OfflineModeIsEnabled("offline")])
def test_every_fault_of_the_network_is_said(monkeypatch, fault):
    def failing(*_, **__):
        raise fault

    monkeypatch.setattr(huggingface_hub.HfApi, "snapshot_download", failing)
    with pytest.raises(HubError, match=r"could not be downloaded: .*(reset|offline).*Check the network"):
        pull("marie/small")


def test_the_card_says_how_to_use_it(small):
    text = card(small._contents(), "marie/small")
    assert text.startswith("---\nlibrary_name: dikkat\n")
    assert 'Translator.from_hub("marie/small")' in text
    assert '"hidden_size": 4' in text
    assert f", {sum(each.numel() for each in small.model.parameters()):,} parameters" in text


def _nowhere():
    """An address where nobody listens."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{place.getsockname()[1]}"
