import contextlib
import io
import json
import random
import re
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

import meshwright as mw
from data.corpus.files import COMPRESSED, FORMS, TEXTS, arrow, json_lines
from soak import cases, rng


def write(folder, name, content):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def read(paths):
    return list(mw.data.documents(paths, separator="<|end|>"))


@pytest.mark.parametrize("name", FORMS)
def test_the_documents_of_each_kind_of_files_are_read_in_order(name, tmp_path):
    assert read(write(tmp_path, name, FORMS[name](TEXTS))) == TEXTS


@pytest.mark.parametrize("name", FORMS)
def test_reading_begins_at_any_document(name, tmp_path):
    file = mw.data.files_of(write(tmp_path, name, FORMS[name](TEXTS)))
    for start in (1, 64, 101, 199, 200):
        found = mw.data._internal.each_document(file, separator="<|end|>", start=start)
        assert [each.value for each in found] == TEXTS[start:]


@pytest.mark.parametrize("name", FORMS)
def test_a_file_that_is_cut_off_is_named(name, tmp_path):
    content = FORMS[name](TEXTS)
    if name == "texts.jsonl":
        content = content[:-3]
    file = write(tmp_path, name, content[: len(content) * 9 // 10] if name != "texts.jsonl" else content)
    if name == "stream.arrow":
        file.write_bytes(content[:-300])
    with pytest.raises(mw.errors.InputError, match=re.escape(str(file))):
        read(file)


@pytest.mark.parametrize(("ending", "between"), [("bz2", b""), ("xz", b""), ("xz", bytes(8))])
def test_streams_one_after_the_other_are_one_file(ending, between, tmp_path):
    streams = [COMPRESSED[f".{ending}"](json_lines(some)) for some in (TEXTS[:90], TEXTS[90:])]
    file = write(tmp_path, f"a.jsonl.{ending}", between.join([*streams, b""]))
    assert read(file) == TEXTS


@pytest.mark.parametrize("ending", ["bz2", "xz"])
@pytest.mark.parametrize("damage", ["header", "other bytes", "a few bytes", "cut"])
def test_bytes_behind_a_stream_that_are_no_stream_are_named(ending, damage, tmp_path):
    first, second = (COMPRESSED[f".{ending}"](json_lines(some)) for some in (TEXTS[:90], TEXTS[90:]))
    behind = {
        "header": bytes([second[0] ^ 1]) + second[1:],
        "other bytes": b"other " * 20,
        "a few bytes": b"B",
        "cut": second[:-20],
    }
    file = write(tmp_path, f"a.jsonl.{ending}", first + behind[damage])
    with pytest.raises(mw.errors.InputError, match=rf"a\.jsonl\.{ending} is damaged"):
        read(file)


@pytest.mark.parametrize("batches", [1, 3])
def test_a_stream_of_arrow_that_was_cut_between_batches_is_named(batches, tmp_path):
    out, table = io.BytesIO(), pa.table({"text": TEXTS})
    with pa.ipc.new_stream(out, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=50)[:batches]:
            writer.write_batch(batch)
        written = out.tell()
    file = write(tmp_path, "a.arrow", out.getvalue())
    assert read(file) == TEXTS[: 50 * batches]
    for more, said in ((0, "ends without its mark"), (4, "")):
        file.write_bytes(out.getvalue()[: written + more])
        with pytest.raises(mw.errors.InputError, match=rf"a\.arrow is damaged.*{said}"):
            read(file)


@pytest.mark.soak
@pytest.mark.parametrize("name", FORMS)
def test_a_damaged_file_is_read_or_named_but_raises_nothing_else(name, tmp_path):
    random_, content = rng(name), FORMS[name](TEXTS)
    for _ in range(cases(few=10, many=500)):
        damaged = bytearray(content)
        for _ in range(random_.choice((1, 1, 8))):
            damaged[random_.randrange(len(damaged))] = random_.randrange(256)
        file = write(
            tmp_path, name, damaged[: random_.choice((len(damaged), random_.randrange(len(damaged))))]
        )
        with contextlib.suppress(mw.MeshwrightError):
            read(file)


def test_an_error_in_a_line_names_it_and_what_is_there(tmp_path):
    lines = json_lines(TEXTS[:5]).splitlines()
    bad = write(tmp_path, "a.jsonl", b"\n".join([*lines[:3], b'{"text": ', *lines[3:]]))
    with pytest.raises(mw.errors.ExamplesError, match=r"a\.jsonl, line 4: not a JSON object"):
        read(bad)
    other = write(tmp_path, "b.jsonl", b"\n".join([*lines, b'{"txt": "x", "id": 1}']))
    with pytest.raises(
        mw.errors.ExamplesError, match=r"b\.jsonl, line 6: .* no field 'text'; it has txt, id.\n.*'txt'"
    ):
        read(other)
    deep = write(tmp_path, "c.jsonl", b"[" * 100_000)
    with pytest.raises(mw.errors.ExamplesError, match=r"c\.jsonl, line 1: not a JSON object"):
        read(deep)
    binary = write(tmp_path, "d.txt", b"fine<|end|>\xff\xfe")
    with pytest.raises(mw.errors.ExamplesError, match=r"d\.txt, document 2: not text in UTF-8"):
        read(binary)


def test_half_of_a_surrogate_pair_is_named_with_its_line(tmp_path):
    file = write(tmp_path, "a.jsonl", b'{"text": "fine \\ud83d\\ude00"}\n{"text": "x \\ud800 y"}\n')
    with pytest.raises(mw.errors.ExamplesError, match=r"a\.jsonl, line 2: character 3 is \\ud800, half of"):
        read(file)


def test_a_few_bytes_that_stand_for_too_many_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("meshwright.data._corpus._readers.LONGEST", 1 << 20)
    monkeypatch.setattr("meshwright.data._corpus._archives.LONGEST", 100)
    bomb = write(tmp_path, "a.jsonl.xz", FORMS["texts.jsonl.xz"](["x" * (1 << 22)]))
    assert bomb.stat().st_size < 3000
    with pytest.raises(mw.errors.ExamplesError, match=r"a\.jsonl\.xz, line 1: longer than 1 MiB"):
        read(bomb)
    with pytest.raises(mw.errors.ExamplesError, match=r"texts\.tar, 000001.json: longer than"):
        read(write(tmp_path, "texts.tar", FORMS["texts.tar"](["short", "x" * 200])))


@pytest.mark.parametrize(
    ("kind", "name", "headers", "told"),
    [
        (tarfile.LNKTYPE, "1.txt", {}, r"1\.txt is a link; write the archive with `tar --dereference"),
        (tarfile.SYMTYPE, "1.txt", {}, r"1\.txt is a link"),
        (tarfile.REGTYPE, "1.txt", {"GNU.sparse.major": "1"}, "a sparse file cannot be read"),
        (tarfile.REGTYPE, "0.txt", {}, r"texts\.tar has 0\.txt twice in a sample"),
    ],
)
def test_members_of_a_tar_that_would_be_passed_over_are_refused(kind, name, headers, told, tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name_, kind_, headers_ in (("0.txt", tarfile.REGTYPE, {}), (name, kind, headers)):
            member = tarfile.TarInfo(name_)
            member.type, member.linkname, member.pax_headers = kind_, "0.txt", headers_
            member.size = 2 * (kind_ == tarfile.REGTYPE)
            archive.addfile(member, io.BytesIO(b"ab"))
    with pytest.raises(mw.errors.InputError, match=told):
        read(write(tmp_path, "texts.tar", out.getvalue()))


def test_a_tar_with_a_damaged_header_in_the_middle_does_not_end_there(tmp_path):
    content = FORMS["texts.tar"](["a", "b", "c", "d"])
    at = content.index(b"000002.txt")
    file = write(tmp_path, "texts.tar", content[:at] + b"X" + content[at + 1 :])
    with pytest.raises(mw.errors.InputError, match=r"texts\.tar .* at sample 2: the checksum"):
        read(file)


def test_folders_patterns_and_lists_have_a_fixed_order(tmp_path):
    names = ["b/1.jsonl", "a.jsonl.gz", "b/0.txt", "b/note.md", "b/.hidden.txt", "b/config.json"]
    for name in names:
        write(tmp_path, name, b"x")

    def found(paths):
        return [file.place.removeprefix(f"{tmp_path}/") for file in mw.data.files_of(paths)]

    assert found(tmp_path) == ["a.jsonl.gz", "b/0.txt", "b/1.jsonl"]
    assert found(f"{tmp_path}/**/*.jsonl*") == ["a.jsonl.gz", "b/1.jsonl"]
    assert found([tmp_path / "b/config.json", tmp_path / "a.jsonl.gz"]) == ["b/config.json", "a.jsonl.gz"]


def test_what_is_not_there_or_not_known_is_said(tmp_path):
    write(tmp_path, "notes/readme.md", b"x")
    for path, said in {
        "none.jsonl": "none.jsonl cannot be read: No such file",
        "*.jsonl": "no file matches",
        "notes": "has no files with texts",
    }.items():
        with pytest.raises(mw.errors.InputError, match=re.escape(said)):
            mw.data.files_of(tmp_path / path)
    with pytest.raises(mw.errors.UsageError, match=r"readme\.md is of no kind"):
        mw.data.files_of(tmp_path / "notes/readme.md")


def saved_data_set(folder, names=("data-00000-of-00002.arrow", "data-00001-of-00002.arrow")):
    write(folder, "dataset_info.json", b"{}")
    write(folder, "state.json", json.dumps({"_data_files": [{"filename": name} for name in names]}).encode())
    for i, name in enumerate(names):
        if "/" not in name:
            write(folder, name, arrow(TEXTS[i * 100 : (i + 1) * 100]))


def test_a_data_set_on_disk_is_read_as_its_library_wrote_it(tmp_path):
    saved_data_set(tmp_path / "data/train")
    assert read(tmp_path / "data/train") == TEXTS
    write(tmp_path, "data/dataset_dict.json", b'{"splits": ["train"]}')
    with pytest.raises(mw.errors.UsageError, match=r"several parts: train.\n.*data/train"):
        read(tmp_path / "data")
    saved_data_set(tmp_path / "crafted", ("../../secret.arrow",))
    with pytest.raises(mw.errors.InputError, match=r"crafted/state.json is not that of a data set"):
        read(tmp_path / "crafted")


def test_what_datasets_and_webdataset_wrote_is_read():
    golden = Path(__file__).parent / "golden"
    texts = [f"text {i}\nécrit " + "word " * (i % 5) for i in range(20)]
    assert read(golden / "saved") == texts
    assert read(golden / "shard-000000.tar.gz") == texts


def test_flat_tokens_of_seqax_are_known(tmp_path):
    write(tmp_path, "data.zarr/train/encoded_tokens/.zarray", b"{}")
    for path in ("data.zarr", "data.zarr/train"):
        with pytest.raises(
            mw.errors.UsageError, match=r"seqax's flat tokens.*read them by mw\.checkpoints\.flat_tokens"
        ):
            read(tmp_path / path)


def test_files_in_a_store_are_read_like_those_on_a_disk(at):
    for name in ("a.jsonl.gz", "b.parquet", "c.tar"):
        kind = {"a.jsonl.gz": "texts.jsonl.gz", "b.parquet": "texts.parquet", "c.tar": "texts.tar"}[name]
        (mw.base._internal.location(at) / name).put(FORMS[kind](TEXTS))
    assert read(at) == TEXTS * 3
    assert read(f"{at}/*.parquet") == TEXTS
    with pytest.raises(mw.errors.InputError, match=r"none\.jsonl does not exist"):
        read(f"{at}/none.jsonl")


def test_the_same_file_has_another_version_when_it_was_written_again(tmp_path):
    file = write(tmp_path, "a.txt", b"one")
    before = mw.data.files_of(file)
    file.write_bytes(random.Random(0).randbytes(3))
    assert mw.data.files_of(file) != before
