"""HTML and SVG built from parts. All text from a run is escaped, so that it cannot act as markup."""

import html
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from meshwright.base._internal import put_file_at
from meshwright.errors import UsageError

_VOID = ("meta", "br", "input")


class Html(str):
    """Text that is HTML already. Any other text is escaped when it is inserted."""

    __slots__ = ()


Part = str | Html | None


def tag(name: str, /, *parts: Part, **attributes: str | float | None) -> Html:
    """Return an element with these parts and attributes; those that are None are left out.

    Attributes are spelled as Python names: `class_` for `class`, `stroke_width` for `stroke-width`.
    """
    text = "".join(
        f' {key.removesuffix("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{text}>")
    return Html(f"<{name}{text}>{joined(parts)}</{name}>")


def breakable(name: str) -> Html:
    """Return a name in which a browser may break the line after each `/`, `_` and `.`."""
    return Html(re.sub(r"([/_.])(?=\w)", r"\1<wbr>", _escaped(name)))


def joined(parts: Iterable[Part]) -> Html:
    """Return the parts, concatenated."""
    return Html("".join(_escaped(part) for part in parts if part is not None))


def document(title: str, style: str, *parts: Part) -> str:
    """Return an HTML file that needs no other. `style` is CSS and is not escaped, so it must be our own."""
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
    """Replace the characters that HTML must not contain: control characters and lone surrogates."""
    # The common case, in one call.
    if text.isprintable():
        return text
    characters = (c if c.isprintable() or c in "\n\t " else "\N{REPLACEMENT CHARACTER}" for c in text)
    return "".join(characters)


def write_html(text: str, to: str | Path) -> str:
    """Write a file atomically: a reader finds either the old page or the new one."""
    with put_file_at(to) as file:
        part = file.with_name(f".{file.name}.part")
        try:
            # A killed process may have left the part file, or it may be a link, which must not be followed.
            part.unlink(missing_ok=True)
            with part.open("x", encoding="utf-8") as opened:
                opened.write(text)
            part.replace(file)
        except OSError as error:
            # Leave no half page on a full disk.
            with suppress(OSError):
                part.unlink()
            raise UsageError(
                f"the page cannot be written to {to}: {error.strerror}.\n  Give another file with --to FILE."
            ) from None
    return str(to)
