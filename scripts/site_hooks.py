"""Hooks of `make docs`: sources as pages, tables of public names, and names without a docstring.

Pages link to files of the repository beside `docs/`, as `../examples/digits.py`. On the site these files are
pages of their own, so that no link leaves it.
"""

import logging
import os
import re
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(\]\(|^\[[^\]\n]+\]: )(?!\w+:|#|<)([^)#\s]+)(#[^)\s]*)?", re.MULTILINE)
TABLE, UNPROVEN_TABLE, TOP = "<!-- names -->", "<!-- unproven -->", "<!-- top -->"
UNPROVEN = re.compile(r"^ *Unproven: (never run .+\.)$", re.MULTILINE)
"""The line of a docstring that says on which hardware or cluster a name never ran."""
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".sh": "sh"}
log = logging.getLogger("mkdocs.hooks.site")


def on_files(files, config):
    """Add a page for each file outside of `docs/` that a page links to, and for those that they link to."""
    todo = [file.src_uri for file in files.documentation_pages()]
    while todo:
        uri = todo.pop()
        for target in sorted({link[2] for link in LINK.finditer(text_of(uri, config))}):
            page = page_of(uri, target)
            if page and not files.get_file_from_path(page):
                files.append(generated(config, page))
                todo.append(page)
    return files


def generated(config, uri):
    """Return a page that is reached by links, not from the nav."""
    from mkdocs.structure.files import File, InclusionLevel  # a test imports this file without MkDocs

    return File.generated(config, uri, content=text_of(uri, config), inclusion=InclusionLevel.NOT_IN_NAV)


def on_page_markdown(markdown, page, config, files):
    """Point links to files outside of `docs/` to their pages, and put in the table of names."""
    uri = page.file.src_uri

    def link(found):
        target = page_of(uri, found[2])
        return f"{found[1]}{relative(target, uri)}{found[3] or ''}" if target else found[0]

    markdown = LINK.sub(link, markdown)
    if TOP in markdown:
        return markdown.replace(TOP, f"::: meshwright\n    options:\n      members: {top_names(loaded())}")
    if TABLE in markdown:
        return markdown.replace(TABLE, names_table()).replace(UNPROVEN_TABLE, unproven_table(docstrings()))
    return markdown


def text_of(uri, config):
    """Return the Markdown of a page: as it is written, or a source in a block of code."""
    if not uri.startswith("source/"):
        path = Path(config.docs_dir, uri)
        return path.read_text() if path.is_file() else ""
    path = ROOT / uri.removeprefix("source/").removesuffix(".md")
    if not path.is_file():
        path = ROOT / uri.removeprefix("source/")
    if path.suffix == ".md":
        return path.read_text()
    name = path.relative_to(ROOT)
    return f"# {name}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n````\n"


def page_of(uri, target):
    """Return the page that link `target` on page `uri` is to point to, or None where it is right as it is."""
    inside = not uri.startswith("source/")
    folder = PurePosixPath("docs", uri).parent if inside else PurePosixPath(uri).relative_to("source").parent
    path = PurePosixPath(os.path.normpath(folder / target))
    if path.parts[0] == "docs":
        return None if inside else str(path.relative_to("docs"))
    if not (ROOT / path).is_file() or ".." in path.parts:
        return None
    return f"source/{path}" if path.suffix == ".md" else f"source/{path}.md"


def relative(target, uri):
    """Return the address of page `target` as seen from page `uri`."""
    return os.path.relpath(target, PurePosixPath(uri).parent)


def names_table():
    """Return a table of what `mw` itself names, each with where it is explained and its first sentence."""
    package = loaded()
    rows = ["| `mw.` | |", "|---|---|"]
    for name in package.exports:
        found = package[str(name)]
        if found.is_attribute:
            continue
        target = found.final_target if found.is_alias else found
        said = target.docstring.value.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        rows.append(f"| [`{name}`][{address(package, str(name))}] | {said} |")
    return "\n".join(rows)


def top_names(package):
    """Return the functions and classes at the top of the package that have no page of their package."""
    names = [str(name) for name in package.exports if package[str(name)].is_alias]
    targets = {name: package[name].final_target for name in names}
    return [name for name, target in targets.items() if target.parent.path != "meshwright.errors"]


def docstrings():
    """Return the docstring of each public name of all packages, by `mw.package.name`."""
    package = loaded()
    doors = {f"mw.{name}": package[name] for name in map(str, package.exports) if package[name].is_module}
    names = [
        (path, door, str(name))
        for path, door in ({"mw": package} | doors).items()
        for name in door.exports or ()
    ]
    members = {f"{path}.{name}": door[name] for path, door, name in names}
    return {name: member.docstring.value for name, member in members.items() if member.docstring}


def unproven_table(texts):
    """Return a table of the names whose docstrings say that they never ran on what they are for."""
    rows = [f"| `{name}` | {line[1]} |" for name, text in texts.items() for line in UNPROVEN.finditer(text)]
    return "\n".join(["| name | |", "|---|---|", *rows])


def address(package, name):
    """Return where the reference explains a name of the package: in the package that it comes from."""
    found = package[name]
    return found.path if found.is_module else found.target_path


_PACKAGE = []


def loaded():
    """Return the package as griffe reads it from its sources."""
    if not _PACKAGE:
        import griffe

        _PACKAGE.append(griffe.load("meshwright", search_paths=[ROOT / "src"], resolve_aliases=True))
    return _PACKAGE[0]


def on_pre_build(config):
    """Warn of each public name, and each public method, that has no docstring; a strict build then fails."""
    for page in sorted(Path(config.docs_dir, "reference").glob("*.md")):
        for module in re.findall(r"^::: (meshwright\.[\w.]+)", page.read_text(), re.MULTILINE):
            for path in undocumented(loaded()[module.removeprefix("meshwright.")]):
                log.warning("%s is public and has no docstring", path)


def undocumented(module):
    """Yield the public names of a package, and the methods of its classes, that have no docstring."""
    for name, member in module.members.items():
        if not member.is_public or (found := member.final_target if member.is_alias else member).is_module:
            continue
        if not found.has_docstring:
            yield f"{module.path}.{name}"
        if found.is_class:
            public = (each for each in found.members.values() if each.is_public and not each.is_alias)
            yield from (
                each.path
                for each in public
                if each.is_function and not each.has_docstring and not each.name.startswith("_")
            )
