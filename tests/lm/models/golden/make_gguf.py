"""What llama.cpp makes of GGUF files of Meshwright: greedy tokens, their log-probabilities, tokens of texts.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install xllamacpp==2026.10.11549
    .venv/bin/python tests/lm/models/golden/make_gguf.py write /tmp/gguf
    /tmp/peers/bin/python tests/lm/models/golden/make_gguf.py read /tmp/gguf

The first side writes the files, and what to ask of them; the second, which has no Meshwright, asks llama.cpp.
The golden file has the digest of each file, so that a test knows that it writes what llama.cpp read.
"""

import hashlib
import json
import sys
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent


def write(place):
    sys.path.insert(0, str(HERE.parent))
    import gguf_cases as cases

    place.mkdir()
    letters = cases.folder_of("letters", place)
    for name in cases.FAMILIES:
        cases.write_model(name, place, tokenizer=letters)
    for kind in cases.KINDS:
        cases.write_model("words", place / kind, tokenizer=cases.folder_of(kind, place))
    asked = {"prompts": cases.PROMPTS, "new": cases.NEW, "texts": cases.TEXTS, "models": cases.FAMILIES}
    (place / "asked.json").write_text(json.dumps(asked | {"kinds": cases.KINDS}))


def opened(path):
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.warmup = str(path), 64, 1, False
    params.cpuparams.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(params)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read(place):
    asked, found = json.loads((place / "asked.json").read_text()), {"models": {}, "tokenizers": {}}
    for name in asked["models"]:
        server, rows = opened(place / f"{name}.gguf"), []
        for prompt in asked["prompts"]:
            how = {"n_predict": asked["new"], "temperature": 0, "n_probs": 1, "cache_prompt": False}
            answer = server.handle_completions({"prompt": prompt, **how})
            logprobs = answer["choices"][0]["logprobs"]  # None if the first token ends the row
            content = logprobs["content"] if logprobs else []
            rows.append({key: [each[key] for each in content] for key in ("id", "logprob")})
        found["models"][name] = {"sha256": digest(place / f"{name}.gguf"), "rows": rows}
        del server
    for kind in asked["kinds"]:
        server = opened(place / kind / "words.gguf")
        texts = {text: tokens(server.listening_address, text) for text in asked["texts"]}
        found["tokenizers"][kind] = {"sha256": digest(place / kind / "words.gguf"), "tokens": texts}
        del server
    (HERE / "gguf.json").write_text(json.dumps(found, ensure_ascii=False) + "\n")


def tokens(address, text):
    body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
    request = urllib.request.Request(f"{address}/tokenize", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["tokens"]


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](Path(sys.argv[2]))
