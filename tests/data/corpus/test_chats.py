"""Chats among the documents: their tools, and settings that are for texts."""

import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet
import pytest

import meshwright as mw
from meshwright.data._corpus import _work

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
TOOLS = [{"name": "f", "about": {"x": "word"}}, {"name": "g", "strict": True}]
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def chats(tmp_path):
    return mw.data.chat(
        mw.data.train_tokenizer(["a word"], tmp_path / "model", vocab_size=270, chat_template=TEMPLATE)
    )


def table(tools):
    return pa.table({"messages": [MESSAGES], "tools": [tools], "text": ["word"]})


def write(folder, kind):
    path = folder / f"chats.{kind}"
    line = json.dumps({"messages": MESSAGES, "tools": TOOLS}).encode()
    match kind:
        case "jsonl":
            path.write_bytes(line)
        case "tar":
            with tarfile.open(path, "w") as archive:
                member = tarfile.TarInfo("0.json")
                member.size = len(line)
                archive.addfile(member, io.BytesIO(line))
        case "parquet":
            pyarrow.parquet.write_table(table(TOOLS), path)
        case "arrow":
            with pa.ipc.new_stream(path, table(TOOLS).schema) as writer:
                writer.write_table(table(TOOLS))
        case _:
            return [{"messages": MESSAGES, "tools": TOOLS}]
    return path


class Given:
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return self.rows[number]


def tokens(folder, chats, paths, **settings):
    store = mw.data._internal.tokenized(paths, chats, field="messages", store=folder / "stores", **settings)
    if not isinstance(paths, Given):
        _work.write_blocks(store.directory)
    return store.block(0).tokens.tolist()


@pytest.mark.parametrize("kind", ["jsonl", "tar", "parquet", "arrow", "object"])
def test_a_template_gets_the_tools_beside_the_messages(kind, chats, tmp_path):
    paths = write(tmp_path, kind)
    found = tokens(tmp_path, chats, paths if kind != "object" else Given(paths))
    assert found == chats.encode(MESSAGES, tools=TOOLS).tokens != chats.encode(MESSAGES).tokens


def test_a_table_may_have_the_tools_as_json(chats, tmp_path):
    for tools, expected in ((json.dumps(TOOLS), TOOLS), (None, None)):
        pyarrow.parquet.write_table(table(tools), tmp_path / "a.parquet")
        assert (
            tokens(tmp_path, chats, tmp_path / "a.parquet") == chats.encode(MESSAGES, tools=expected).tokens
        )
    pyarrow.parquet.write_table(table("{broken"), tmp_path / "a.parquet")
    with pytest.raises(mw.errors.ExamplesError, match=r"a\.parquet, row 1: its tools are not JSON"):
        tokens(tmp_path, chats, tmp_path / "a.parquet")


@pytest.mark.parametrize("settings", [{"begin": 0}, {"end": "<|endoftext|>"}])
def test_tokens_before_and_after_texts_are_refused_for_chats(settings, chats, tmp_path):
    with pytest.raises(mw.errors.UsageError, match=r"chats\.jsonl, line 1: begin= and end= are for texts"):
        tokens(tmp_path, chats, write(tmp_path, "jsonl"), **settings)
