"""Chats as `transformers` and TRL turn them into tokens and masks, by templates of several kinds.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install torch==2.13.0 transformers==5.24.0 trl==1.16.0
    PYTHONPATH=src:tests/data/tokens/golden .venv/bin/python -c "import write"
    /tmp/peers/bin/python tests/data/tokens/golden/make.py

`tokenizer` is a folder that `mw.data.train_tokenizer` wrote (`write.py`), and each `*.jinja` a template. Each
line of `expected.jsonl` is a row of training data, the tokens that TRL's `SFTTrainer` makes of it, and the
mask of those that count. Rows of templates with `{% generation %}` are whole chats, with
`assistant_only_loss=True`; of the others, prompt and completion, as TRL has no masks for chats there. The
last rows are plain texts.
"""

import json
import random
from pathlib import Path

import transformers
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

HERE = Path(__file__).parent
WORDS = [
    *("the", "a", "cat", "runs", "über", "café", "数学", "🙂", "42", "x=1", "\n\n", "def", "f():", "return?"),
    *("why!", "<b>", "don't", "'quoted'", '"so"', "end."),
]
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}


def words(rng):
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))


def chat(rng, *, system, tools):
    messages = [{"role": "system", "content": words(rng)}] if system else []
    for _ in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": words(rng)})
        if tools and rng.random() < 0.5:
            call = {
                "type": "function",
                "function": {"name": "add", "arguments": {"a": rng.randint(0, 9), "b": 2}},
            }
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "name": "add", "content": str(rng.randint(0, 99))})
        messages.append({"role": "assistant", "content": words(rng)})
    return messages


def trained(rows, template):
    """Return what TRL makes of rows, before any training."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(HERE / "tokenizer")
    tokenizer.chat_template = template
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(tokenizer), **sizes))
    whole = {"assistant_only_loss": True} if "messages" in rows[0] else {}
    how = SFTConfig(
        output_dir="/tmp/sft", max_length=None, report_to="none", use_cpu=True, bf16=False, **whole
    )
    made = SFTTrainer(
        model=model, args=how, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    return list(made.train_dataset)


def masked(row):
    return {"tokens": row["input_ids"], "weights": [int(label != -100) for label in row["labels"]]}


def main():
    rng, lines = random.Random(0), []
    for path in sorted(HERE.glob("*.jinja")):
        template = path.read_text()
        has_tools, has_system = "tools" in template, "no system" not in template
        rows = []
        for number in range(25):
            messages = chat(rng, system=has_system and number % 2, tools=has_tools and number % 3 == 0)
            row = {"messages": messages}
            if "generation %}" not in template:
                row = {"prompt": messages[:-1], "completion": messages[-1:]}
            rows.append(row | ({"tools": [TOOL]} if has_tools and number % 3 == 0 else {}))
        for row in rows:  # one at a time: `datasets` would give all rows the fields of any
            [made] = trained([row], template)
            lines.append({"template": path.stem, **row, **masked(made)})
    texts = [{"text": words(rng)} for _ in range(10)]
    pairs = [{"prompt": words(rng) + "\n", "completion": words(rng)} for _ in range(10)]
    for row in texts + pairs:
        [made] = trained([row], None)
        lines.append({"template": None, **row, **masked(made)})
    with (HERE / "expected.jsonl").open("w") as file:
        for line in lines:
            print(json.dumps(line, ensure_ascii=False, separators=(",", ":")), file=file)


if __name__ == "__main__":
    main()
