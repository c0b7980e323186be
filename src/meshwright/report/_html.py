"""HTML and SVG put together from parts, so that no text of a run can be taken for markup."""

import html
import re
from collections.abc import Iterable

_VOID = ("meta", "br")


class Html(str):
    """Text that is HTML already. Any other text is escaped where it is put in."""

    __slots__ = ()


Part = str | Html | None


def tag(name: str, /, *parts: Part, **attributes: str | float | None) -> Html:
    """Return an element of these parts. None adds nothing; `class_` and `stroke_width` are spelled so."""
    told = "".join(
        f' {key.removesuffix("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{told}>")
    return Html(f"<{name}{told}>{joined(parts)}</{name}>")


def breakable(name: str) -> Html:
    """Return a name that may go on in a new line after each of its parts."""
    return Html(re.sub(r"([/_.])(?=\w)", r"\1<wbr>", _escaped(name)))


def joined(parts: Iterable[Part]) -> Html:
    """Return the parts one after the other."""
    return Html("".join(_escaped(part) for part in parts if part is not None))


def document(title: str, style: str, *parts: Part) -> str:
    """Return a page that stands by itself. `style` is CSS, ours and trusted."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(style)),
    )
    return f"<!doctype html>\n{tag('html', head, tag('body', tag('main', *parts)), lang='en')}\n"


def _escaped(part: str) -> str:
    return part if isinstance(part, Html) else html.escape(_printable(part), quote=False)


def _printable(text: str) -> str:
    """Return `text` without what HTML may not hold: control characters, and halves of surrogate pairs."""
    if text.isprintable():
        return text
    kept = (c if c.isprintable() or c in "\n\t " else "\N{REPLACEMENT CHARACTER}" for c in text)
    return "".join(kept)
