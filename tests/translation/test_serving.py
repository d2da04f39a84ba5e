"""The server's API, against the library's own answers."""

import asyncio
import copy
import gzip
import json
import math
import re
import threading
from dataclasses import replace

import httpx
import pytest
import torch
from fastapi.testclient import TestClient

import kit
from dikkat._engine.cancellation import check
from dikkat.serving import Limits, create_app
from dikkat.serving.messages import TranslateRequest
from dikkat.translation import InputError, Search, Translator
from dikkat.translation.formats.origin import Origin
from translation.taught import untrained

SENTENCES = ["Where is the man?", "", "She sees {name} Marie. I lost 25.", "I lost."]


def opened(translator: Translator, **more) -> TestClient:
    """A server, by default with time to compile kernels on a slow machine."""
    settings = {"limits": Limits(seconds=300)} | more
    return TestClient(create_app({"small": translator}, **settings), base_url="http://localhost")


@pytest.fixture(scope="module")
def client(translator):
    with opened(translator) as client:
        yield client


def told(answer: httpx.Response, status: int) -> str:
    """The one line of an error."""
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    return answer.json()["error"]


@pytest.mark.parametrize("options", [{}, {"beam": 1}, {"beam": 3, "n_best": 2, "length_penalty": 0.5, "split": False}])
def test_translations_are_the_library_s(client, translator, options):
    own = {name: each for name, each in options.items() if name != "split"}
    lines = {"split": options.get("split", True)}
    for sentence in SENTENCES:
        answer = client.post("/api/translate", json={"text": sentence, "attention": True, **options}).json()
        (wanted,) = translator.translate_n_best([sentence], search=Search(**own), **lines)
        assert len(answer["translations"]) == len(wanted)
        for found, expected in zip(answer["translations"], wanted, strict=True):
            assert found["target"] == expected.target
            assert found["source_tokens"] == expected.source_tokens
            assert found["target_tokens"] == expected.target_tokens
            assert found["finished"] is expected.finished
            assert found["confidence"] == pytest.approx(expected.confidence, abs=1e-4)
            assert found["flags"] == list(expected.flags)
            assert found["score"] == pytest.approx(expected.score, abs=1e-4)
            torch.testing.assert_close(
                torch.tensor(found["attention"]).reshape(expected.weights.shape), expected.weights, atol=1e-5, rtol=0
            )


def test_the_corrections_that_took_part_are_in_the_answer(translator):
    corrected = copy.deepcopy(translator)
    corrected.correct("Go.", "Elle voit Marie.")
    expected = corrected.translate("Go.").sources
    with opened(corrected) as client:
        (found,) = client.post("/api/translate", json={"text": "Go."}).json()["translations"]
    assert [len(token) for token in found["sources"]] == [1] * len(found["target_tokens"])
    for (token,), (source,) in zip(found["sources"], expected, strict=True):
        assert token == {"source": "Go.", "target": "Elle voit Marie.", "weight": pytest.approx(source.weight)}


def test_a_request_that_says_nothing_is_the_library_s_search():
    assert TranslateRequest(text="Go.").options()["search"] == Search()


def test_a_batch_in_its_order_without_weights_that_nobody_asked_for(client, translator):
    answer = client.post("/api/batch", json={"texts": SENTENCES, "precision": "int8"}).json()
    targets = [each["translations"][0]["target"] for each in answer["results"]]
    wanted = translator.translate(SENTENCES, search=Search(precision="int8"))
    assert targets == [each.target for each in wanted]
    assert {each["translations"][0]["attention"] for each in answer["results"]} == {None}
    assert client.post("/api/batch", json={"texts": []}).json() == {"results": []}


def test_tags_go_over_and_those_that_do_not_nest_are_one_requests_own_error(client, translator):
    texts = ["The <b>man</b> is calm.", "<p></p>"]
    answer = client.post("/api/batch", json={"texts": texts, "markup": "html"}).json()
    wanted = [each.target for each in translator.translate(texts, markup="html")]
    assert [each["translations"][0]["target"] for each in answer["results"]] == wanted
    assert "<b>" in wanted[0]
    refused = client.post("/api/translate", json={"text": "<b>Go.", "markup": "html"})
    assert refused.status_code == 422
    assert "got <b>, which is not closed" in refused.text


def test_tags_for_a_model_without_attention_are_one_requests_own_error(translator):
    with opened(untrained(translator, score="none")) as client:
        refused = client.post("/api/batch", json={"texts": ["Go.", "<b>Go</b>."], "markup": "html"})
        assert "text: got tags; expected text without tags" in told(refused, 422)
        assert client.post("/api/batch", json={"texts": ["Go."], "markup": "html"}).status_code == 200


def test_terms_of_a_request(client, translator):
    texts = ["The man is calm.", "Go."]
    answer = client.post("/api/batch", json={"texts": texts, "terms": {"man": "ami"}}).json()
    assert [each["translations"][0]["target"] for each in answer["results"]] == ["L'ami est calme.", "Va !"]
    many = client.post("/api/translate", json={"text": "man " * 51, "terms": {"man": "ami"}, "split": False}).json()
    assert many["translations"][0]["unused_terms"] == ["man"]
    for terms, message in (({"man": ""}, "terms, term 1: got ''"), ({"man": 7}, "terms.man"), (["man"], "terms")):
        assert message in told(client.post("/api/translate", json={"text": "Go.", "terms": terms}), 422)
    too_many = {f"word{number}": "mot" for number in range(1_001)}
    assert "terms: " in told(client.post("/api/translate", json={"text": "Go.", "terms": too_many}), 422)
    with opened(untrained(translator, score="none")) as blind:
        refused = blind.post("/api/translate", json={"text": "Go.", "terms": {"man": "ami"}})
        assert "terms: got terms, and a model without attention" in told(refused, 422)


def test_what_there_is(client, translator):
    (model,) = client.get("/api/models").json()
    assert (model["name"], model["source_tokens"]) == ("small", len(translator.source_tokenizer))
    assert model["languages"] is None
    origin = Origin("today", "1", source_language="Plattdeutsch", target_language="en")
    with opened(replace(translator, origin=origin)) as named:
        assert named.get("/api/models").json()[0]["languages"] == ["Plattdeutsch", "en"]
    assert client.get("/api/health").json() == {"status": "ok"}
    assert client.post("/api/translate", json={"text": "Go.", "model": "small"}).status_code == 200
    assert "/api/batch" in client.get("/api/openapi.json").json()["paths"]
    counted = client.get("/metrics").text
    assert 'dikkat_requests_total{path="/api/health",status="200"}' in counted
    assert "dikkat_batch_sentences_bucket" in counted


def test_the_page_of_a_model(client, translator):
    answer = client.get("/")
    assert answer.text == translator.as_html(title="small")
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert client.get("/", params={"model": "small"}).text == answer.text
    assert told(client.get("/", params={"model": "big"}), 404) == "model: got 'big'; expected one of small"


@pytest.mark.parametrize(
    ("accepted", "packed"), [("gzip, br", True), ("br, gzip;q=0.5", True), ("br", False), ("", False)]
)
def test_the_page_is_sent_packed_to_whom_takes_it(client, translator, accepted, packed):
    with client.stream("GET", "/", headers={"Accept-Encoding": accepted}) as answer:
        assert answer.headers.get("Content-Encoding") == ("gzip" if packed else None)
        sent = b"".join(answer.iter_raw())
    assert len(sent) == int(answer.headers["Content-Length"])
    assert (gzip.decompress(sent) if packed else sent).decode() == translator.as_html(title="small")
    assert answer.headers["Vary"] == "Accept-Encoding"


def test_the_page_is_not_sent_again_to_whom_has_it(client):
    whole = client.get("/")
    for known in (whole.headers["ETag"], f'"other", {whole.headers["ETag"]}', "*"):
        answer = client.get("/", headers={"If-None-Match": known})
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["Content-Security-Policy"] == whole.headers["Content-Security-Policy"]
    assert client.get("/", headers={"If-None-Match": '"other"'}).text == whole.text


@pytest.mark.parametrize("path", ["/", "/?model=big", "/api/models", "/api/translate", "/api/nothing"])
def test_head_is_get_without_the_body(client, path):
    whole, bare = client.get(path), client.head(path)
    assert (bare.status_code, bare.headers, bare.content) == (whole.status_code, whole.headers, b"")
    assert int(bare.headers["Content-Length"]) > 0


class Waiting:
    """A translator whose work takes until it may go on."""

    def __init__(self, translator: Translator) -> None:
        self._translator, self.go_on = translator, threading.Event()
        self.made, self.batches, self.stopped = 0, [], threading.Event()

    def __getattr__(self, name):
        return getattr(self._translator, name)

    def as_html(self, *, title):
        self.made += 1
        assert self.go_on.wait(60)
        if self.made == 1:
            raise InputError("not this time")
        return f"<title>{title}</title>"

    def translate_n_best(self, lines, **options):
        self.batches.append(len(lines))
        try:
            while not self.go_on.wait(0.005):
                check()
        except BaseException:
            self.stopped.set()
            raise
        return self._translator.translate_n_best(lines, **options)


def test_first_requests_at_once_pack_the_page_once(translator):
    packed = Waiting(translator)
    app = create_app({"small": packed})

    async def ask_at_once():
        transport = httpx.ASGITransport(app=app)
        async with (
            asyncio.timeout(60),
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            asked = [asyncio.create_task(client.get("/")) for _ in range(4)]
            # What another page answers has begun after them, and ends while they wait.
            assert (await client.get("/api/health")).status_code == 200
            assert not any(each.done() for each in asked)
            packed.go_on.set()
            return await asyncio.gather(*asked)

    answers = asyncio.run(ask_at_once())
    assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 404]
    assert packed.made == 2  # what failed is tried again, what did not is kept


@kit.each(
    ("path", "body", "what"),
    [
        ("translate", {}, "text: Field required"),
        ("translate", {"text": 7}, "text: "),
        ("translate", {"text": "Go.", "colour": "red"}, "body: got 'colour'; expected model, beam"),
        ("translate", {"text": "Go.", "beam": 0}, "beam: "),
        ("translate", {"text": "Go.", "beam": 17}, "beam: got 17; expected at most 16"),
        ("translate", {"text": "Go.", "beam": 2, "n_best": 3}, "n_best: got 3; expected a whole number from 1 to 2"),
        ("translate", {"text": "Go.", "beam": "5"}, "beam: "),
        ("translate", {"text": "Go.", "precision": "float8"}, "precision: "),
        ("translate", {"text": "\ud800"}, "text: "),
        ("translate", {"text": "go " * 1_000}, "text: got 3,000 characters; expected at most 2,000"),
        ("batch", {"texts": ["go " * 500] * 2, "markup": "html"}, "text: got 4,500,000, the sum of squared"),
        ("batch", {"texts": ["a"] * 257}, "texts: got 257 sentences; expected at most 256"),
        ("batch", {"texts": "Go."}, "texts: "),
    ],
)
def test_a_request_that_cannot_be_answered_is_told_why(client, path, body, what):
    answer = client.post(f"/api/{path}", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert told(answer, 422).startswith(what)


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
def test_json_that_is_not_said_to_be_json(client, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    answer = client.post("/api/translate", content='{"text": "I lost."}', headers=headers)
    assert told(answer, 400) == f"Content-Type: got {kind or 'none'}; expected application/json"


@pytest.mark.parametrize(("body", "place"), [("{'text': 'x'}", 2), ('{"text": "a"', 13), ("{", 2), ("\x00", 1)])
def test_a_body_that_is_not_json(client, body, place):
    answer = client.post("/api/translate", content=body, headers={"Content-Type": "application/json"})
    assert re.match(rf"body: not JSON: .+ at character {place}$", told(answer, 400))


@kit.each(
    ("path", "body", "status"),
    [
        *(("translate", body, 422) for body in ("", "[]", "null", '"text"', "1e999")),
        ("translate", "[" * 50_000, 400),
        *(
            ("translate", f'{{"text": "Go.", "length_penalty": {number}}}', 422)
            for number in ("NaN", "Infinity", "-Infinity", "1e999")
        ),
    ],
)
def test_a_body_that_is_no_request(client, path, body, status):
    answer = client.post(f"/api/{path}", content=body, headers={"Content-Type": "application/json"})
    assert told(answer, status)


def test_models_paths_and_methods_that_there_are_not(client):
    assert told(client.post("/api/translate", json={"text": "Go.", "model": "big"}), 404) == (
        "model: got 'big'; expected one of small"
    )
    long = told(client.post("/api/translate", json={"text": "Go.", "model": "x" * 10**5}), 404)
    assert len(long) < 200
    assert told(client.get("/api/nothing"), 404)
    assert told(client.get("/api/translate"), 405)


def test_bodies_that_are_too_large(translator):
    with opened(translator, limits=Limits(body=99)) as client:
        assert told(client.post("/api/translate", json={"text": "x" * 99}), 413).startswith(
            "body: got more than 99 bytes"
        )
        in_parts = client.post("/api/translate", content=iter([b'{"text":', b'"' + b"x" * 99 + b'"}']))
        assert told(in_parts, 413).startswith("body: got more than 99 bytes")
        assert client.post("/api/translate", json={"text": "Go."}).status_code == 200


def test_work_that_takes_too_long_is_stopped(translator):
    slow = Waiting(translator)
    with opened(slow, limits=Limits(seconds=3.0)) as client:
        assert told(client.post("/api/translate", json={"text": "Go."}), 503).startswith("the work took too long")
        assert slow.stopped.wait(60)
        translator.translate_n_best(["Go."], search=Search())  # whose kernels may have to be compiled
        slow.go_on.set()
        assert client.post("/api/translate", json={"text": "Go."}).status_code == 200


def status_of(app, *messages, until=None):
    """The status of a translation whose request comes in these ASGI messages; a last "leave" waits for `until`."""
    scope = {
        "type": "http", "method": "POST", "path": "/api/translate", "query_string": b"", "http_version": "1.1",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
    }  # fmt: skip
    coming, sent = iter(messages), []

    async def receive():
        message = next(coming, None)
        if message is None:
            await asyncio.sleep(60)
        if message != "leave":
            return {"type": "http.request", "body": message, "more_body": not message.endswith(b"}")}
        while until and not until():
            await asyncio.sleep(0.005)
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    async def ask():
        async with app.router.lifespan_context(app):
            await app(scope, receive, send)

    asyncio.run(ask())
    return sent[0]["status"]


def test_work_for_a_client_that_left_is_stopped_and_counted(translator):
    slow = Waiting(translator)
    app = create_app({"small": slow})
    status_of(app, b'{"text": "Go."}', "leave", until=lambda: slow.batches)
    assert slow.stopped.wait(60)
    slow.go_on.set()
    status_of(app, b'{"text": ', "leave")
    with TestClient(app, base_url="http://localhost") as other:
        assert other.post("/api/translate", json={"text": "Go."}).status_code == 200
        assert 'dikkat_requests_total{path="/api/translate",status="499"} 2.0' in other.get("/metrics").text


def test_a_body_that_stops_times_out(translator):
    assert status_of(create_app({"small": translator}, limits=Limits(seconds=0.1)), b'{"text": ') == 408


async def _asked_at_once(app, slow, texts, beams=(5,)):
    """Requests side by side: the others come when the first is at work, which goes on when all have come."""
    transport = httpx.ASGITransport(app=app)
    async with (
        asyncio.timeout(60),
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):

        async def ask(index, text):
            while index and not slow.batches:
                await asyncio.sleep(0.005)
            return await client.post("/api/translate", json={"text": text, "beam": beams[index % len(beams)]})

        async def waiting():
            counts = (await client.get("/metrics")).text
            return float(re.search(r"^dikkat_waiting_sentences (.+)$", counts, re.M)[1])

        asked = [asyncio.create_task(ask(index, text)) for index, text in enumerate(texts)]
        while await waiting() + sum(each.done() for each in asked) < len(texts) - 1 or not slow.batches:
            await asyncio.sleep(0.005)
        slow.go_on.set()
        return await asyncio.gather(*asked)


def test_what_comes_while_a_batch_runs_makes_the_next(translator):
    slow = Waiting(translator)
    texts = [f"She sees the man {number}." for number in range(9)]
    answers = asyncio.run(_asked_at_once(create_app({"small": slow}), slow, texts))
    assert slow.batches == [1, 8]
    found = [answer.json()["translations"][0]["target"] for answer in answers]
    assert found == [each.target for each in translator.translate(texts)]


def test_a_batch_has_one_search(translator):
    slow = Waiting(translator)
    texts = [f"She sees the man {number}." for number in range(7)]
    asyncio.run(_asked_at_once(create_app({"small": slow}), slow, texts, beams=(1, 4)))
    assert sorted(slow.batches) == [1, 3, 3]


def test_a_queue_that_is_full(translator):
    slow = Waiting(translator)
    app = create_app({"small": slow}, limits=Limits(queue=4))
    answers = asyncio.run(_asked_at_once(app, slow, ["Go."] * 9))
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [429] * 4
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert "try again in" in told(refused, 429)
    assert int(refused.headers["Retry-After"]) >= 1


def test_headers_keep_browsers_out_of_trouble(client):
    for answer in (client.get("/api/health"), client.post("/api/translate", json={})):
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_a_name_that_is_not_the_server_s(translator):
    with opened(translator, hosts=["localhost", "[::1]", "Translate.example"]) as client:
        for host in ("evil.example", "evil.example:80", "", "localhost.evil.example", "[::2]:80"):
            message = told(client.get("/api/health", headers={"Host": host}), 400)
            assert message.startswith(
                f"Host: got {host.removesuffix(':80')!r}; expected one of localhost, [::1], translate"
            )
        for host in ("localhost", "LOCALHOST:8000", "[::1]", "[::1]:8000", "translate.example"):
            assert client.get("/api/health", headers={"Host": host}).status_code == 200
    with opened(translator, hosts=["*"]) as client:
        assert client.get("/api/health", headers={"Host": "evil.example"}).status_code == 200


def test_other_pages_may_use_it_only_where_that_is_allowed(translator):
    page = {"Origin": "https://example.org"}
    with opened(translator) as client:
        assert "Access-Control-Allow-Origin" not in client.get("/api/health", headers=page).headers
    with opened(translator, origins=["https://example.org"]) as client:
        answer = client.get("/api/health", headers=page)
        assert answer.headers["Access-Control-Allow-Origin"] == "https://example.org"
        assert (
            "Access-Control-Allow-Origin" not in client.get("/api/health", headers={"Origin": "https://e.org"}).headers
        )


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"queue": 0}, "queue: got 0"),
        ({"seconds": math.inf}, "seconds: got inf"),
        ({"seconds": math.nan}, "seconds: got nan"),
    ],
)
def test_limits_that_are_none(wrong, what):
    with pytest.raises(InputError, match=what):
        Limits(**wrong)


def test_there_is_something_to_serve():
    with pytest.raises(InputError, match="translators: got none"):
        create_app({})
