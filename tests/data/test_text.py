import itertools
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.data._batches import Batches
from meshwright.data._corpus import _blocks, _work
from soak import cases

BYTES = mw.lm.Bytes()
SHARDING = mw.Layout(mw.make_mesh("data=1", jax.devices()[:1])).batch_sharding


def texts_of(directory, count, seed=0):
    """Write texts of several lengths; each begins with its own number."""
    sizes = np.random.default_rng(seed).integers(8, 60, count)
    texts = [f"{i:07d}" + "x" * int(size) for i, size in enumerate(sizes)]
    file = directory / f"{count}-{seed}.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file, texts


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a function that returns texts in small blocks, not yet looked at, and what they are made of."""
    directory = tmp_path_factory.mktemp("texts")

    def make(count=150, length=64, **options):
        file, texts = texts_of(directory, count)
        text = mw.data.text(file, tokenizer=BYTES, length=length, store=directory, **options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_blocks, "FIRST_TOKENS", 500)
            patch.setattr(_blocks, "MOST_TOKENS", 2000)
            _work.write_blocks(text.rows._store.directory)
        return text, texts

    return make


def read(examples, batch_size, count, *, state=None, seed=0, epochs=None):
    """Return the rows of some batches, and the state behind them."""
    with mw.batches(examples, batch_size, SHARDING, seed=seed, epochs=epochs) as data:
        if state is not None:
            data.set_state(state)
        rows = [batch["tokens"] for batch in itertools.islice(data, count)]
        return [bytes(row.astype(np.uint8)) for batch in rows for row in batch], data.get_state()


def rows_in_order(text):
    return [bytes(row["tokens"].astype(np.uint8)) for row in text]


def test_an_epoch_has_every_document_once(made):
    text, texts = made()
    rows = rows_in_order(text)
    assert len(rows) > 60
    found, _ = read(text, 1, None, epochs=1)
    assert sorted(found) == sorted(rows)
    assert found != rows
    tokens = sorted(bytes(row["tokens"][row["segments"] > 0].astype(np.uint8)) for row in text)
    assert sum(map(len, tokens)) == sum(map(len, texts))
    counts = [b" ".join(tokens).count(each[:7].encode()) for each in texts]
    assert max(counts) == 1
    assert np.mean(counts) > 0.95  # few are cut in the middle of their numbers


def test_each_epoch_has_its_own_order_and_a_seed_too(made):
    text, _ = made()
    rows = rows_in_order(text)
    found = read(text, 1, 3 * len(rows))[0]
    epochs = [found[i : i + len(rows)] for i in range(0, len(found), len(rows))]
    assert all(sorted(each) == sorted(rows) for each in epochs)
    assert len({tuple(each) for each in epochs}) == 3
    assert read(text, 1, len(rows), seed=1)[0] not in epochs
    assert read(text, 1, 2 * len(rows), seed=None)[0] == rows * 2


@pytest.mark.soak
@settings(max_examples=cases(few=10, many=500), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    history=st.lists(
        st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 3, 5]), st.integers(1, 12)),
        min_size=1,
        max_size=8,
    ),
    kind=st.sampled_from(["text", "mixture", "shares that change"]),
    changed=st.integers(1, 300),
    seed=st.integers(0, 3),
)
def test_any_history_of_kills_processes_and_batch_sizes_reads_the_same_rows_in_the_same_order(
    made, history, kind, changed, seed
):
    changes = {changed: {"a": 0.2, "b": 0.8}, 2 * changed: {"a": 1, "b": 0}}
    examples = {
        "text": lambda: made()[0],
        "mixture": lambda: _mixture(made),
        "shares that change": lambda: _mixture(made, changes=changes),
    }[kind]()
    whole, _ = read(
        examples, 1, sum(processes * rows * count for processes, rows, count in history), seed=seed
    )
    found, state = [], None
    for processes, rows, count in history:  # each reads ahead, too, and is then gone
        shares = np.split(np.arange(processes * rows), processes)
        parts = [read_part(examples, processes * rows, share, count, state, seed) for share in shares]
        [state] = {json.dumps(state) for _, state in parts}  # which is the same on all processes
        state = json.loads(state)
        found += [
            row
            for step in zip(*(batches for batches, _ in parts), strict=True)
            for batch in step
            for row in batch
        ]
    assert found == whole


def read_part(examples, batch_size, rows, count, state, seed):
    """Return the batches of one process of several, which has these rows of each batch, and the state."""
    options = {"rows": rows, "to_global": lambda x: x, "seed": seed, "epochs": None, "num_threads": 2}
    with Batches(examples, batch_size, **options) as data:
        if state is not None:
            data.set_state(state)
        batches = [next(data)["tokens"].astype(np.uint8) for _ in range(count)]
        return [[bytes(row) for row in batch] for batch in batches], data.get_state()


def _mixture(made, **options):
    sets = {"a": made(150)[0], "b": made(60)[0]}
    return mw.data.mixture(sets, {"a": 0.7, "b": 0.3}, **options)


def test_other_texts_another_length_or_other_shares_do_not_continue(made):
    text, _ = made()
    _, state = read(text, 4, 2)
    for other in (made(60)[0], made(length=32)[0], made(pack=False)[0]):
        with pytest.raises(mw.errors.InputError, match=r"data was .*, is "):
            read(other, 4, 1, state=state)
    _, state = read(_mixture(made), 4, 3)
    read(_mixture(made, changes={13: {"a": 1, "b": 1}}), 4, 1, state=state)  # the future may change
    with pytest.raises(mw.errors.InputError, match="shares was "):
        read(_mixture(made, changes={5: {"a": 1, "b": 1}}), 4, 1, state=state)


def test_unpacked_rows_begin_with_their_documents(made):
    text, texts = made(60, pack=False)
    found = [bytes(row["tokens"][: int(row["weights"].sum())].astype(np.uint8)).decode() for row in text]
    assert [each for each in found if each[:7].isdigit()] == [each[:64] for each in texts]


def test_training_and_evaluation_take_texts(made, tmp_path):
    text, _ = made(60)

    def loss(params, batch):
        return ((batch["tokens"] * params["w"] - 1.0) ** 2 * batch["weights"]).mean()

    import optax

    deployer = mw.Deployer(seed=0, verbose=False)
    trainer = mw.Trainer(deployer, params={"w": np.zeros(())}, loss=loss, optimizer=optax.sgd(1e-6))
    trainer.fit(text, batch_size=8, epochs=2, evaluations={"test": mw.Evaluation("loss", text)})
    assert int(trainer.state.step) == 2 * (len(rows_in_order(text)) // 8)


def test_of_chats_only_the_assistant_s_words_count(tmp_path):
    golden = Path(__file__).parents[1] / "data/tokens/golden"
    place = shutil.copytree(golden / "tokenizer", tmp_path / "tokenizer")
    shutil.copy(golden / "chatml.jinja", place / "chat_template.jinja")
    chats = [
        [{"role": "user", "content": "why? " * n}, {"role": "assistant", "content": "the cat " * (n + 1)}]
        for n in range(1, 20)
    ]
    lines = [json.dumps({"messages": messages}) for messages in chats]
    (tmp_path / "chats.jsonl").write_text("\n".join(lines))
    options = {"field": "messages", "length": 256, "pack": False, "store": tmp_path}
    text = mw.data.text(tmp_path / "chats.jsonl", tokenizer=mw.data.chat(place), **options)
    _work.write_blocks(text.rows._store.directory)
    for messages, row in zip(chats, text, strict=True):
        expected = mw.data.chat(place).encode(messages)
        size = len(expected.tokens)
        assert row["tokens"][:size].tolist() == expected.tokens
        assert row["weights"][:size].tolist() == expected.token_weights
        assert not row["weights"][size:].any()
        assert 0 < row["weights"].sum() < size
    plain = mw.data.text(tmp_path / "chats.jsonl", tokenizer=place, **options)
    with pytest.raises(mw.errors.ExamplesError, match=r"chats\.jsonl, line 1: a document is a chat"):
        _work.write_blocks(plain.rows._store.directory)


def test_a_text_without_documents_is_an_error(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n\n")
    text = mw.data.text(tmp_path / "a.jsonl", tokenizer=BYTES, length=8, store=tmp_path)
    with pytest.raises(mw.errors.ExamplesError, match=r"no text in .*/a\.jsonl"):
        read(text, 1, 1)
    with pytest.raises(mw.errors.UsageError, match="length=0"):
        mw.data.text(tmp_path / "a.jsonl", tokenizer=BYTES, length=0, store=tmp_path)
