"""Chats as tokens and weights: held to what TRL made of the same rows, see golden/make.py."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.errors import InputError, UsageError

GOLDEN = Path(__file__).parent / "golden"
ROWS = [json.loads(line) for line in (GOLDEN / "expected.jsonl").read_text().splitlines()]
TURNS = [{"role": "user", "content": "why?"}, {"role": "assistant", "content": "the cat"}]


@pytest.fixture
def with_template(tmp_path):
    """A function that returns the golden tokenizer with a template."""

    def made(template, **config):
        place = shutil.copytree(GOLDEN / "tokenizer", tmp_path / "tokenizer", dirs_exist_ok=True)
        if config:
            said = json.loads((place / "tokenizer_config.json").read_text())
            (place / "tokenizer_config.json").write_text(json.dumps(said | config))
        if template is not None:
            (place / "chat_template.jinja").write_text(template)
        return mw.data.chat(place)

    return made


@pytest.mark.parametrize("name", ["chatml", "headers", "instruct", "today", None])
def test_tokens_and_weights_are_those_of_trl(name, with_template):
    chats = with_template((GOLDEN / f"{name}.jinja").read_text() if name else None)
    rows = [row for row in ROWS if row["template"] == name]
    assert len(rows) >= 20
    for row in rows:
        if "messages" in row:
            found = chats.encode(row["messages"], tools=row.get("tools"))
        elif "text" in row:
            found = chats.plain(row["text"])
        else:
            found = chats.answer(row["prompt"], row["completion"], tools=row.get("tools"))
        assert (found.tokens, found.token_weights) == (row["tokens"], row["weights"])


def test_there_are_a_hundred_chats_of_others():
    assert sum(row["template"] is not None for row in ROWS) == 100


def test_without_marks_in_the_template_every_answer_counts(with_template):
    chats = with_template((GOLDEN / "headers.jinja").read_text())
    found = chats.encode([*TURNS, {"role": "user", "content": "so?"}, {"role": "assistant", "content": "42"}])
    counted = [token for token, weight in zip(found.tokens, found.token_weights, strict=True) if weight]
    assert chats.decode(counted) == "the cat<|eot|>42<|eot|>"


BLOCK = "{% generation %}{{ m.content }}!{% endgeneration %}"
TURN = "<{{ m.role }}>{% if m.role == 'assistant' %}" + BLOCK + "{% else %}{{ m.content }}{% endif %}</>"
EACH = "{% for m in messages %}"


@pytest.mark.parametrize(
    "template",
    [
        EACH + TURN + "{% endfor %}",
        "{% macro turn(m) %}" + TURN + "{% endmacro %}" + EACH + "{{ turn(m) }}{% endfor %}",
        EACH + "{% set x %}" + TURN + "{% endset %}{{ x }}{% endfor %}",
        "{% set x %}" + EACH + TURN + "{% endfor %}{% endset %}{{ x | replace('@', '') }}",
        EACH + "{% filter trim %}" + TURN + "{% endfilter %}{% endfor %}",
    ],
)
def test_generation_blocks_are_found_wherever_they_are_in_the_template(template, with_template):
    chats = with_template(template)
    said = [*TURNS, {"role": "user", "content": "why?!"}, {"role": "assistant", "content": "why?"}]
    found = chats.encode(said)
    text, offsets = chats.text(said), chats.files.tokenizer.encode(chats.text(said)).offsets
    assert text == "<user>why?</><assistant>the cat!</><user>why?!</><assistant>why?!</>"
    second = text.rindex("why?!")
    counted = {*range(text.index("the cat!"), text.index("the cat!") + 8), *range(second, second + 5)}
    assert found.token_weights == [int(any(i in counted for i in range(*each))) for each in offsets]
    assert 0 < sum(found.token_weights) < len(offsets)


@pytest.mark.parametrize("change", ["length", "trim", "tojson(ensure_ascii=True)"])
def test_a_template_that_changes_a_generation_block_is_refused(change, with_template):
    block = "{% generation %} {{ m.content }}\n {% endgeneration %}"
    chats = with_template(EACH + "{% set x %}" + block + "{% endset %}{{ x | " + change + " }}{% endfor %}")
    with pytest.raises(InputError, match="the chat template changes what its generation blocks enclose"):
        chats.encode(TURNS)


def test_generation_blocks_within_others_are_refused(with_template):
    chats = with_template("{% generation %}a{% generation %}b{% endgeneration %}c{% endgeneration %}")
    with pytest.raises(InputError, match="generation blocks within others"):
        chats.encode(TURNS)


def test_a_template_that_changes_earlier_turns_is_refused_with_what_to_do(with_template):
    only_last = "{% for m in messages %}{{ m.role }}{% if loop.last %}{{ m.content }}{% endif %}{% endfor %}"
    with pytest.raises(InputError, match=r"first 1 messages differently .*\n.*generation"):
        with_template(only_last).encode(TURNS)


def test_a_template_may_be_in_the_config_by_itself_or_by_name(with_template):
    assert (
        with_template(None, chat_template="{{ messages[0].content }}{{ eos_token }}").text(TURNS)
        == "why?</s>"
    )
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "{{ tools[0].name }}"},
    ]
    chats = with_template(None, chat_template=named)
    assert (chats.text(TURNS), chats.text(TURNS, tools=[{"name": "add"}])) == ("plain", "add")


def test_the_day_is_a_setting_and_not_the_clock(with_template):
    place = with_template("{{ strftime_now('%d %b %Y') }}").files.path
    assert mw.data.chat(place).text(TURNS) == "01 Jan 2026"
    assert mw.data.chat(place, date="2024-07-26").text(TURNS) == "26 Jul 2024"
    with pytest.raises(UsageError, match="date='today' is not a day"):
        mw.data.chat(place, date="today")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__.os.popen('id') }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ raise_exception('roles must alternate') }}", "refuses the messages: roles must alternate"),
        ("{{ nothing.at.all }}", "UndefinedError"),
        ("{% for i in range(90000) %}{{ 'ab' * 1000 }}{% endfor %}", "writes more than 16,777,216"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{{ 'ab' * 1000000000 }}", "takes too much memory"),
        ("{{ 'a'|center(10**10)|length }}", "takes too much memory"),
        ("{{ '%4000000000s'|format('a')|length }}", "takes too much memory"),
    ],
)
def test_a_template_reaches_nothing_and_stays_small(template, message, with_template):
    with pytest.raises((InputError, UsageError), match=message):
        with_template(template).text(TURNS)


LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
NESTS = "{% set n = namespace(s=[]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}"
ENDLESS = {
    "loops": LOOP,
    "calls": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "number": "{{ 9 ** 999999999 }}",
    "search": "{% set l = range(99999)|list %}{% for i in range(99999) %}{{ 'x' in l }}{% endfor %}",
    "map": "{{ range(99999)|map('string')|map('replace', '', 'a' * 2000000)|map('length')|sum }}",
    "tags": "{{ ('<!---->' * 20000000)|striptags|length }}",
    "constant": "{% if true %}{{ 7 ** 99999999 % 2 }}{% endif %}",
}


@pytest.mark.parametrize("template", [*ENDLESS.values()], ids=[*ENDLESS])
def test_a_template_that_does_not_end_is_ended_and_others_go_on(template, with_template, monkeypatch):
    monkeypatch.setattr("meshwright.data._tokens._template._MOST_SECONDS", 0.1)
    chats = with_template("{{ messages[0].content }}")
    with pytest.raises(InputError, match=r"refuses the messages: it takes more than 0\.1 seconds"):
        with_template(template).text(TURNS)
    assert chats.text(TURNS) == "why?"


GROWS = "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}"
TEXTS = (
    "{% set n = namespace(x=[]) %}"
    "{% for i in range(99) %}{% set n.x = n.x + [' ' * (i + 9999999)] %}{% endfor %}"
)


@pytest.mark.parametrize("template", [NESTS + "{{ n.s }}", GROWS, TEXTS], ids=["nested", "text", "list"])
def test_a_template_that_grows_without_end_is_ended(template, with_template, monkeypatch):
    monkeypatch.setattr("meshwright.data._tokens._template._MOST_SECONDS", 1)
    with pytest.raises(InputError, match=r"it takes (too much memory|more than 1 second)"):
        with_template(template).text(TURNS)


def test_of_many_chats_the_one_that_fails_is_told_and_those_before_come_first(with_template):
    chats = with_template("{% for m in messages %}{{ m.content + '' }}{% endfor %}")
    given = [([{"role": "user", "content": text}], None) for text in ("a", "b", 3, "d")]
    encoded = chats.encode_each(given)
    assert [chats.decode(next(encoded).tokens) for _ in range(2)] == ["a", "b"]
    with pytest.raises(InputError, match="fails on the messages: TypeError"):
        next(encoded)
    assert chats.text(TURNS)


def test_a_chat_is_encoded_between_those_of_an_iterator(with_template):
    chats = with_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    encoded = chats.encode_each([(TURNS, None), (TURNS, None)])
    assert next(encoded) == chats.encode(TURNS) == next(encoded)


FORKED = """
import os, sys
from meshwright.data import chat
chats, turns = chat(sys.argv[1]), [{"role": "user", "content": "why?"}]
chats.text(turns)
child = os.fork()
assert chats.text(turns) == "why?"
if not child:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""


def test_a_forked_process_renders_by_itself(with_template):
    place = with_template("{{ messages[0].content }}").files.path
    subprocess.run([sys.executable, "-c", FORKED, place], check=True, timeout=400)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "one message or more"),
        ("hello", "one message or more"),
        ([{"content": "x"}], "message 1 is not one"),
        ([TURNS[0], {"role": "user"}], "message 2, of user, has no content"),
        ([{"role": "user", "content": object()}], "type object, which JSON does not have"),
    ],
)
def test_messages_of_another_form_are_told(messages, message, with_template):
    with pytest.raises(InputError, match=message):
        with_template("{{ messages }}").encode(messages)


def test_a_folder_that_is_damaged_or_has_no_template_is_told(with_template, tmp_path):
    with pytest.raises(UsageError, match=r"needs a default template for chats; it has none"):
        with_template(None).encode(TURNS)
    with pytest.raises(UsageError, match="is not one of Jinja"):
        with_template("{% for").encode(TURNS)
    with pytest.raises(UsageError, match=r"tokenizer.json cannot be read"):
        mw.data.chat(tmp_path / "nothing")
    (tmp_path / "tokenizer/tokenizer_config.json").write_text("[]")
    with pytest.raises(UsageError, match="is not a tokenizer's config: expected an object"):
        mw.data.chat(tmp_path / "tokenizer")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("added_tokens.json", {"<|mark|>": 777}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"777": {"content": "<|mark|>"}}}),
    ],
)
def test_tokens_that_files_of_a_tokenizer_say_differently_are_refused(file, said, tmp_path):
    place = Path(shutil.copytree(GOLDEN / "tokenizer", tmp_path / "tokenizer"))
    (place / file).write_text(json.dumps(said))
    with pytest.raises(UsageError, match=r"tokenizer\.json has not the tokens .* say: '<\|mark\|>' is 777"):
        mw.data.chat(place)
    known = mw.data.chat(GOLDEN / "tokenizer").files.tokenizer.token_to_id("</s>")
    (place / "added_tokens.json").write_text(json.dumps({"</s>": known}))
    (place / "tokenizer_config.json").write_text("{}")
    assert mw.data.chat(place).files.special == {}
    (place / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    assert mw.data.chat(place).files.special == {"eos_token": "</s>"}
    assert mw.data._internal.end_tokens(place) == (known,)
