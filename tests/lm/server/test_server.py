"""The server over loopback: real requests, clients that vanish, and what is refused."""

import contextlib
import itertools
import json
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import jax
import jax.numpy as jnp
import numpy as np
import openai
import pytest

import meshwright as mw
from eventually import eventually
from meshwright.lm._models import t5
from meshwright.lm._server._serve import Limits, Served, application, config_of

pytestmark = pytest.mark.slow  # what needs no server is tried in test_answers.py
TEXT = "0123456789abcdefghijklmnopqrstuvwxyz"
STOP = ord("9")


def table():
    """A model that writes the next character of TEXT, and waits a little so that requests meet."""
    logits = np.zeros((256, 256), np.float32)
    for now, after in zip(TEXT, TEXT[1:] + TEXT[0], strict=True):
        logits[ord(now), ord(after)] = 9
    return jnp.asarray(logits)


def served(**more):
    model = mw.lm.without_cache(lambda params, tokens: params[tokens])
    given = {"decoding": mw.lm.Decoding(max_new_tokens=5), **more}
    return Served("table", model, table(), mw.lm.Bytes(), **given)


@contextlib.contextmanager
def listening(what, limits):
    """Serve in a thread, and yield the URL, the batcher and the server."""
    import asyncio

    import uvicorn

    app, batcher = application(what, limits, names={"127.0.0.1"})
    server = uvicorn.Server(config_of(app, limits))
    with socket.create_server(("127.0.0.1", 0)) as door:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[door])))
        thread.start()
        try:
            yield f"http://127.0.0.1:{door.getsockname()[1]}", batcher, server
        finally:
            server.should_exit = True
            thread.join()
            batcher.close()


@pytest.fixture(scope="module")
def small():
    """A server of a table with bounds that are easy to reach: its URL and its batcher."""
    limits = Limits(slots=2, length=256, max_waiting=3, max_bytes=5000, body_seconds=2)
    with listening(served(), limits) as found:
        yield found


@pytest.fixture
def url(small):
    return small[0]


get, post, streamed = (partial(ask, timeout=400) for ask in (httpx.get, httpx.post, httpx.stream))


def asked(url, to="/v1/completions", **fields):
    return post(url + to, json=fields)


def events(response):
    lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_text_is_completed(url):
    found = asked(url, prompt="ab", max_tokens=4, n=None).json()  # None is what a client leaves out
    assert found["choices"] == [{"index": 0, "text": "cdef", "logprobs": None, "finish_reason": "length"}]
    assert found["usage"] == {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6}
    assert (found["object"], found["model"]) == ("text_completion", "table")


def test_several_prompts_answers_and_tokens_are_completed_in_order(url):
    found = asked(url, prompt=["a", "0"], n=2, max_tokens=2).json()["choices"]
    assert [each["text"] for each in found] == ["bc", "bc", "12", "12"]
    assert asked(url, prompt=[97, 98], max_tokens=2).json()["choices"][0]["text"] == "cd"


def test_a_text_streams_as_events(url):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with streamed("POST", f"{url}/v1/completions", json={"prompt": "a", "max_tokens": 9, **options}) as r:
        assert r.headers["content-type"].startswith("text/event-stream")
        found = events(r)
    assert "".join(each["choices"][0]["text"] for each in found[:-1]) == "bcdefghij"
    assert [each["choices"][0]["finish_reason"] for each in found[:-1]][-1] == "length"
    assert found[-1]["usage"]["completion_tokens"] == 9
    assert len(found) > 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_ends_before_the_first_text_that_ends_it(url, stream):
    fields = {"prompt": "a", "max_tokens": 30, "stop": ["hij", "lmn"], "stream": stream}
    with streamed("POST", f"{url}/v1/completions", json=fields) as r:
        choices = [x["choices"][0] for x in events(r)] if stream else json.loads(r.read())["choices"]
    assert "".join(each["text"] for each in choices) == "bcdefg"
    assert choices[-1]["finish_reason"] == "stop"


def test_a_model_is_listed_by_its_name(url):
    listed = get(f"{url}/v1/models").json()["data"]
    assert [each["id"] for each in listed] == ["table"]
    assert get(f"{url}/v1/models/table").json()["object"] == "model"
    assert get(f"{url}/v1/models/other").status_code == 404


def test_the_page_loads_nothing_from_elsewhere(url):
    page = get(url)
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http" not in page.text.split("<body>")[1]


def test_the_openai_package_completes_and_streams(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    with client:
        found = client.completions.create(model="table", prompt="a", max_tokens=3, temperature=0)
        assert found.choices[0].text == "bcd"
        pieces = client.completions.create(model="table", prompt="a", max_tokens=6, stream=True)
        assert "".join(piece.choices[0].text for piece in pieces) == "bcdefg"
        with pytest.raises(openai.NotFoundError, match="there is no model of this name; there is 'table'"):
            client.completions.create(model="gpt-9", prompt="a")
        with pytest.raises(openai.BadRequestError, match="no template for chats"):
            client.chat.completions.create(model="table", messages=[{"role": "user", "content": "a"}])


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({}, 400, "prompt: Field required"),
        ({"prompt": ""}, 400, "a prompt has no tokens"),
        ({"prompt": []}, 400, "expected 1 to 16 answers in a request; found 0"),
        ({"prompt": ["a"] * 9, "n": 2}, 400, "expected 1 to 16 answers in a request; found 18"),
        ({"prompt": [300]}, 400, "a token of a prompt is not one of the model: 0 to 255"),
        ({"prompt": [10**30]}, 400, "prompt"),
        ({"prompt": "a" * 300}, 400, "the prompt has 300 tokens, which leaves room for 0 new ones"),
        ({"prompt": "a", "max_tokens": 10**9}, 400, "leaves room for 255 new ones; asked for 1000000000"),
        ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens: Input should be greater than or equal to 1"),
        ({"prompt": "a", "temperature": -1}, 400, "temperature: Input should be greater than or equal to 0"),
        ({"prompt": "a", "logprobs": 3}, 400, "this server does not have `logprobs`"),
        ({"prompt": "a", "stop": ["x"] * 5}, 400, "stop"),
        ({"prompt": "a", "model": "other"}, 404, "there is no model of this name"),
    ],
)
def test_what_cannot_be_asked_for_is_told_in_the_shape_of_the_protocol(url, fields, status, said):
    found = asked(url, **fields)
    assert found.status_code == status
    assert said in found.json()["error"]["message"]
    assert found.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"[1]", {}, 400),
        (b'{"prompt": ' + b"[" * 2000, {}, 400),
        (b'{"prompt": "a", "temperature": NaN}', {}, 400),
        (b'{"prompt": "a", "seed": ' + b"9" * 4400 + b"}", {}, 400),
        (b"\xff\xfe", {}, 400),
        (b'{"prompt": "half of a pair: \\ud800"}', {}, 400),
        (b'{"prompt": "the same: \xed\xa0\x80"}', {}, 400),
        (b'{"prompt": [' + b'"",0,' * 900 + b"0]}", {}, 400),
        (b" " * 5001, {}, 413),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {"host": "evil.example"}, 421),
    ],
)
def test_hostile_bodies_are_refused(url, body, headers, status):
    headers = {"content-type": "application/json", **headers}
    found = post(f"{url}/v1/completions", content=body, headers=headers)
    assert found.status_code == status
    assert found.json()["error"]["message"]


def test_a_refusal_is_read_also_if_the_body_comes_after_the_headers(url):
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(HEAD.replace(b"application/json", b"text/plain") + b"Content-Length: 2\r\n\r\n")
        time.sleep(0.1)
        client.sendall(b"{")
        time.sleep(0.1)
        client.sendall(b"}")
        assert client.recv(4096).startswith(b"HTTP/1.1 415 ")


def raw(url, data):
    """Send bytes and return what comes until the server closes the connection."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(data)
        return b"".join(iter(lambda: client.recv(4096), b""))


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


def test_a_body_that_never_ends_is_cut_off(url):
    endless = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1000\r\n" + b" " * 4096 + b"\r\n"
    assert b"HTTP/1.1 413" in raw(url, endless + b"1000\r\n" + b" " * 4096 + b"\r\n")


@pytest.mark.parametrize(
    ("data", "answer"),
    [(b"", b""), (b"POST /v1/comp", b""), (HEAD + b"Content-Length: 100\r\n\r\n{", b"HTTP/1.1 408")],
    ids=["nothing", "half a line", "half a body"],
)
def test_a_client_that_stops_in_its_request_is_left(url, data, answer):
    assert raw(url, data).startswith(answer)


LOOK = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
PAGE = LOOK.replace(b"/health", b"/")


@pytest.fixture(scope="module")
def narrow():
    """A server whose clients have little time and few connections: its address, its URL, and itself."""
    limits = Limits(slots=1, length=64, max_waiting=1, body_seconds=2, answer_seconds=1)
    with listening(served(), limits) as (url, _, server):
        host, port = url.removeprefix("http://").split(":")
        yield (host, int(port)), url, server


def until_closed(client):
    """Return what comes until the server closes the connection, which it must do in 60 s."""
    client.settimeout(60)
    found = []
    with contextlib.suppress(ConnectionResetError):
        while data := client.recv(1 << 16):
            found.append(data)
    return found


def clients_of(server):
    """Return the addresses of the clients that a server is connected with."""
    return {connection.client for connection in list(server.server_state.connections)}


def test_a_client_that_stops_in_its_second_request_is_left(narrow):
    with socket.create_connection(narrow[0]) as client:
        client.sendall(LOOK)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        client.sendall(b"GET /hea")
        assert b"HTTP/1.1" not in b"".join(until_closed(client))


def test_requests_that_come_before_answers_are_bounded(narrow):
    with socket.create_connection(narrow[0], timeout=60) as client:
        sending = iter(lambda: client.sendall(LOOK * 1000), False)
        with pytest.raises(ConnectionError):
            list(itertools.islice(sending, 1000))


def test_answers_that_nobody_reads_are_cut_off(narrow):
    with socket.create_connection(narrow[0], timeout=60) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        client.sendall(PAGE * 1700)
        client.recv(1, socket.MSG_PEEK)  # it has begun to write
        eventually(lambda: client.getsockname() not in clients_of(narrow[2]))
        found = sum(map(len, until_closed(client)))
    assert found < 1700 * len(get(narrow[1]).content)


def test_connections_without_a_request_give_way_to_others(narrow):
    place, url, _ = narrow
    with contextlib.ExitStack() as held:
        for _ in range(200):
            held.enter_context(socket.create_connection(place))
        assert asked(url, prompt="a", max_tokens=1).status_code == 200


def test_a_failure_is_told_without_its_message(capsys):
    class Failing(mw.lm.Bytes):
        def encode(self, text):
            raise ValueError(f"cannot encode {text}")

    what = Served("table", served().model, table(), Failing())
    with listening(what, Limits(slots=1, length=64)) as (url, *_):
        found = asked(url, prompt="my secret")
    assert (found.status_code, found.json()["error"]["type"]) == (500, "server_error")
    log = capsys.readouterr().err
    assert "in encode" in log
    assert "secret" not in log


def test_a_model_that_cannot_be_made_ready_again_is_told_and_nobody_waits_for_it(monkeypatch, capsys):
    def fail(*_):
        raise RuntimeError("no memory for my " + "sec" + "ret")

    with listening(served(), Limits(slots=1, length=64)) as (url, batcher, _):
        monkeypatch.setattr(batcher.pool, "advance", fail)
        monkeypatch.setattr(batcher.pool, "reset", fail)
        assert asked(url, prompt="a").status_code == 500
        assert asked(url, prompt="a").status_code == 503
        assert get(f"{url}/health").status_code == 503
    log = capsys.readouterr().err
    assert "restart the server" in log
    assert "secret" not in log


def test_an_encoder_decoder_writes_as_many_tokens_as_the_run_says():
    cfg = t5.Config(vocabulary=64, model=16, layers=1, decoder_layers=1, heads=2, head=8, feed_forward=16)
    params, decoding = t5.init(cfg, jax.random.key(0)), mw.lm.Decoding(max_new_tokens=300)
    what = Served("t5", mw.lm.with_cache(cfg), params, mw.lm._internal.Numbers(), decoding=decoding)
    with listening(what, Limits(slots=1, length=16)) as (url, *_):
        found = asked(url, prompt="5 6 7").json()
    assert found["usage"]["completion_tokens"] == 300


def slow_model(may_go_on):
    """A model that takes 20 ms for each token, and waits while it may not go on."""

    def pause(x):
        assert may_go_on.wait(60)
        time.sleep(0.02)
        return x

    def logits(params, tokens):
        shape = jax.ShapeDtypeStruct(tokens.shape, tokens.dtype)
        return params[jax.pure_callback(pause, shape, tokens)]

    return mw.lm.without_cache(logits)


@pytest.fixture(scope="module")
def slow():
    """A server of a slow model: its URL, its batcher, and an event without which the model waits."""
    may_go_on = threading.Event()
    may_go_on.set()
    what = Served("slow", slow_model(may_go_on), table(), mw.lm.Bytes())
    with listening(what, Limits(slots=2, length=256, max_waiting=1)) as (url, batcher, _):
        yield url, batcher, may_go_on


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_frees_its_row(slow, stream):
    url, batcher, may_go_on = slow
    eventually(lambda: batcher.running == 0)
    script = (
        "import httpx, sys\n"
        f"with httpx.stream('POST', '{url}/v1/completions', timeout=400, json={{'prompt': 'a', "
        f"'max_tokens': 250, 'stream': {stream}}}) as r:\n"
        "    print('begun', flush=True)\n    r.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as client:
        eventually(lambda: batcher.running == 1)
        may_go_on.clear()  # so that it does not end by itself
        client.kill()
        eventually(lambda: batcher.running == 0)
    may_go_on.set()
    assert asked(url, prompt="a", max_tokens=2).json()["choices"][0]["text"] == "bc"


def test_more_than_may_wait_are_sent_away_and_told_when_to_come_again(slow):
    url, batcher, may_go_on = slow
    eventually(lambda: batcher.running == 0)
    may_go_on.clear()
    with ThreadPoolExecutor(6) as pool:
        requests = [pool.submit(asked, url, prompt="a", max_tokens=40) for _ in range(6)]
        eventually(lambda: sum(request.done() for request in requests) == 3)
        may_go_on.set()
    found = [request.result() for request in requests]
    statuses = sorted(each.status_code for each in found)
    assert statuses == [200, 200, 200, 503, 503, 503]
    away = next(each for each in found if each.status_code == 503)
    assert int(away.headers["retry-after"]) >= 1
    assert away.json()["error"]["code"] == "overloaded"


def test_a_request_joins_while_another_goes_on(slow):
    url, batcher, may_go_on = slow
    eventually(lambda: batcher.running == 0)
    may_go_on.clear()
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(asked, url, prompt="a", max_tokens=120)
        eventually(lambda: batcher.running == 1)
        joining = pool.submit(asked, url, prompt="0", max_tokens=4)
        eventually(lambda: batcher.waiting == 1)
        may_go_on.set()
        short = joining.result().json()
        assert not long.done()
        assert short["choices"][0]["text"] == "1234"
        assert long.result().json()["usage"]["completion_tokens"] == 120


def test_a_model_that_fails_answers_500_and_goes_on(capfd):
    import jax

    fails = threading.Event()

    def maybe(x):
        if fails.is_set():
            raise RuntimeError("the prompt was secret")
        return x

    def logits(params, tokens):
        return params[jax.pure_callback(maybe, jax.ShapeDtypeStruct(tokens.shape, tokens.dtype), tokens)]

    what = Served("t", mw.lm.without_cache(logits), table(), mw.lm.Bytes())
    with listening(what, Limits(slots=1, length=64)) as (url, *_):
        fails.set()
        found = asked(url, prompt="a", max_tokens=2)
        assert found.status_code == 500
        assert found.json()["error"]["type"] == "server_error"
        fails.clear()
        assert asked(url, prompt="a", max_tokens=2).json()["choices"][0]["text"] == "bc"
    assert "the model failed" in capfd.readouterr().err


def test_stop_sequences_of_the_run_end_a_text_and_are_not_in_it():
    what = served(decoding=mw.lm.Decoding(max_new_tokens=20, stop=(STOP, (ord("d"), ord("e")))))
    with listening(what, Limits(slots=1, length=64)) as (url, *_):
        found = [asked(url, prompt=prompt).json()["choices"][0] for prompt in ("5", "a", "u")]
    assert [(each["text"], each["finish_reason"]) for each in found] == [
        ("678", "stop"),
        ("bc", "stop"),
        ("vwxyz012345678", "stop"),
    ]


def test_a_chat_is_answered_by_the_template_of_its_tokenizer():
    def template(messages):
        return [ord(each) for message in messages for each in message["content"]]

    with listening(served(chat=template), Limits(slots=1, length=64)) as (url, *_):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        with client:
            messages = [{"role": "user", "content": [{"type": "text", "text": "ab"}]}]
            found = client.chat.completions.create(model="table", messages=messages, max_tokens=3)
            assert found.choices[0].message.content == "cde"
            assert found.choices[0].message.role == "assistant"
            pieces = list(client.chat.completions.create(model="table", messages=messages, stream=True))
            assert "".join(each.choices[0].delta.content for each in pieces) == "cdefg"
            assert pieces[0].choices[0].delta.role == "assistant"
            picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
            with pytest.raises(openai.BadRequestError, match="a part that is no text"):
                client.chat.completions.create(model="table", messages=picture)
