"""Write the tokenizer of the golden chats, from a few sentences. See make.py."""

import shutil
from pathlib import Path

import meshwright as mw

HERE = Path(__file__).parent
TEXTS = [
    "the cat runs, and the user asks the assistant why the cat runs",
    "def f(): return 42  # don't quote 'this' or \"that\"",
    "über café 数学 🙂 why? because the system says so!",
    '{"type": "function", "name": "add", "arguments": {"a": 1, "b": 2}}',
]

shutil.rmtree(HERE / "tokenizer", ignore_errors=True)
marks = ["<|im_start|>", "<|im_end|>", "<|header|>", "<|eot|>", "[INST]", "[/INST]", "<s>"]
mw.data.train_tokenizer(TEXTS, HERE / "tokenizer", vocab_size=400, special_tokens=marks, eos_token="</s>")
