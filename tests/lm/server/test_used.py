"""What a trained run is for, in one program: it writes, is served, and goes on without Meshwright."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import jax.numpy as jnp
import openai
import pytest

import meshwright as mw
from eventually import eventually
from meshwright.lm._models import decoder, hugging_face

pytestmark = pytest.mark.slow
LINE = "Once upon a time there was a mesh."
CHAT = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "A mesh."}]
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<|assistant|>{% endif %}"
DESCRIBED = {
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "max_position_embeddings": 64,
}

LOADED = """
import sys; sys.modules["meshwright"] = None
import jax, numpy, tokenizers

with open("model.jaxexport", "rb") as file:
    program = jax.export.deserialize(bytearray(file.read()))
tokenizer = tokenizers.Tokenizer.from_file("tiny/tokenizer.json")
tokens = tokenizer.encode("Once").ids
while tokenizer.id_to_token(tokens[-1]) != "<|end|>":
    tokens.append(int(program.call(numpy.array([tokens], "int32"))[0, -1].argmax()))
print(tokenizer.decode(tokens))
"""


@pytest.fixture
def shell(tmp_path, python, monkeypatch):
    """A function that runs a command, in a folder with a small model and lines to tune it on."""
    monkeypatch.chdir(tmp_path)
    marks = ["<|user|>", "<|assistant|>"]
    options = {"special_tokens": marks, "eos_token": "<|end|>", "chat_template": TEMPLATE}
    mw.data.train_tokenizer([LINE, "Who? A mesh."], "tiny", vocab_size=320, **options)
    params = decoder.init(hugging_face.config(DESCRIBED), mw.training.key_of(0), dtype=jnp.float32)
    hugging_face.export_model(params, "tiny", DESCRIBED)
    rows = [{"text": LINE + "<|end|>"}, {"messages": CHAT}] * 32
    Path("lines.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(*words, **more):
        return subprocess.run(
            [*python, "-m", "meshwright", *words], check=True, capture_output=True, text=True, **more
        )

    return run


def tune(shell):
    words = ["lora=16", "epochs=20", "learning_rate=0.03", "length=64", "held_out=0.1", "workdir=runs/story"]
    return shell("tune", "tiny", "lines.jsonl", *words)


@contextlib.contextmanager
def killed_if_it_fails(server):
    try:
        yield
    except BaseException:
        server.kill()
        raise


def curl(url, **fields):
    given = ["-H", "Content-Type: application/json", "-d", json.dumps(fields)]
    return json.loads(subprocess.run(["curl", "-sS", url, *given], check=True, capture_output=True).stdout)


def test_a_tuned_run_is_sampled_scored_served_exported_and_loaded_without_meshwright(shell):
    tune(shell)
    assert shell("sample", "runs/story", "Once").stdout == LINE + "\n"
    scores = json.loads(shell("eval", "runs/story", "--json").stdout)["scores"]
    assert scores["held_out/perplexity"] < 4  # of 320 tokens
    words = [sys.executable, "-m", "meshwright", "serve", "runs/story", "--port", "0", "--length", "64"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **pipes) as server, killed_if_it_fails(server):
        url = server.stdout.readline().split()[-1]
        found = curl(f"{url}/completions", prompt="Once", max_tokens=40)
        assert found["choices"][0]["text"] == LINE.removeprefix("Once")
        with openai.OpenAI(base_url=url, api_key="none") as client:
            pieces = client.completions.create(model="story", prompt="Once", max_tokens=40, stream=True)
            assert "".join(piece.choices[0].text for piece in pieces) == LINE.removeprefix("Once")
            answer = client.chat.completions.create(model="story", messages=CHAT[:1]).choices[0].message
            assert answer.content == "A mesh."
        server.send_signal(signal.SIGTERM)
        log = server.stderr.read()
    assert server.returncode == 0
    assert "tokens in" in log
    assert "Once" not in log
    for name in ("model.jaxexport", "model.gguf", "model.safetensors"):
        shell("export", "runs/story", "--to", name)
    done = subprocess.run([sys.executable, "-c", LOADED], check=True, capture_output=True, text=True)
    assert done.stdout == LINE + "\n"


def is_refused(url):
    """Return whether the server takes no more connections."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname, parts.port), 60).close()
    except OSError:
        return True
    return False


def test_requests_that_run_have_time_to_end_when_the_server_is_told_to_stop(shell):
    shell("demo", "text", "layers=1", "steps=1", "workdir=runs/story")
    words = [sys.executable, "-m", "meshwright", "serve", "runs/story", "--port", "0", "--length", "1024"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server, killed_if_it_fails(server):
        url = server.stdout.readline().split()[-1]
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            pieces = client.completions.create(model="story", prompt="Once", max_tokens=900, stream=True)
            first = next(pieces)
            os.kill(server.pid, signal.SIGTERM)
            eventually(lambda: is_refused(url))
            rest = [piece.choices[0] for piece in pieces]
    assert server.returncode == 0
    assert rest[-1].finish_reason == "length"
    assert len(first.choices[0].text + "".join(each.text for each in rest)) > 450  # 900 bytes
