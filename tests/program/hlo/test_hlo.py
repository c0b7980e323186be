"""A compiled program as text, graph and picture."""

import re
import shutil
import sys
import types
from pathlib import Path
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import meshwright as mw
from base.storage.stores import files
from meshwright.cli import main
from meshwright.errors import UsageError
from meshwright.program import _internal as hlo

HEAD = '<?xml version="1.0"?>\n<?xml-stylesheet href="https://fonts"?>\n'
SVG = HEAD + '<svg xmlns="http://www.w3.org/2000/svg"><![CDATA[%s]]></svg>'


@pytest.fixture(scope="module")
def compiled():
    """A loop over layers with a sum over devices in it."""
    mesh = mw.make_mesh("tensor=8")

    def model(params, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w) @ w.T, None), x, params)[0].sum()

    split = jax.NamedSharding(mesh, P(None, None, "tensor"))
    params = jax.ShapeDtypeStruct((3, 16, 64), jnp.float32, sharding=split)
    return jax.jit(model).lower(params, jax.ShapeDtypeStruct((4, 16), jnp.float32)).compile()


@pytest.fixture
def no_graphviz(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pygraphviz", None)
    return tmp_path


def dot_program(directory, script):
    """Put a program called `dot` on the path, as far as `shutil.which` is concerned."""
    program = directory / "dot"
    program.write_text(f"#!{sys.executable}\nimport sys\n{script}\n")
    program.chmod(0o755)


def saved(*arguments, **more):
    """The files of a program, in the order of their contents."""
    return [Path(file) for file in hlo.save_hlo(*arguments, **more)]


def program(hlo):
    """A compiled program of this text."""
    return types.SimpleNamespace(as_text=lambda: hlo)


def test_the_text_is_the_optimized_program_and_the_graph_has_its_operations(compiled, no_graphviz):
    text, dot = (file.read_text() for file in saved(compiled, no_graphviz / "made/here"))
    assert text == compiled.as_text()
    collectives = re.findall(r"%(all-reduce[\w.-]*) = ", text)
    assert collectives
    assert all(f'"{name}" [label="{name}\\n' in dot for name in collectives)


def test_a_loop_is_drawn_with_what_runs_in_it_and_a_fusion_is_not(compiled, no_graphviz):
    text, dot = (file.read_text() for file in saved(compiled, no_graphviz))
    body = re.search(r"while\(.*body=%([\w.-]+)", text)[1]
    assert f'subgraph "cluster_{body}"' in dot
    assert not re.search(r'subgraph "cluster_\S*fused', dot)


def test_the_graph_is_what_the_text_says(no_graphviz):
    hlo = """HloModule jit_f

%fused (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  ROOT %negate.1 = f32[8]{0} negate(%a)
}

ENTRY %main (x: f32[8]) -> (f32[8], f32[]) {
  %x = f32[8]{0:T(128)} parameter(0), metadata={op_name="params[\\'w\\']"}
  %all-reduce.1 = (f32[8]{0}, /*index=1*/f32[]{:T(128)S(6)}) all-reduce(%x, %c), to_apply=%fused
  %copy.1 = f32[8]{0} copy(%x)
  %gte.1 = f32[8]{0} get-tuple-element(%all-reduce.1), index=0
  ROOT %fusion.1 = f32[8]{0} fusion(%gte.1, %x), kind=kLoop, calls=%fused, metadata={op_name="not %copy.1"}
}
"""
    _, file = saved(program(hlo), no_graphviz)
    dot = file.read_text()
    edges = set(re.findall(r'^"(\S+)" -> "(\S+)"', dot, re.M))
    into_fusion = {("all-reduce.1", "fusion.1"), ("x", "fusion.1")}
    assert edges == {("x", "all-reduce.1"), ("x", "copy.1")} | into_fusion
    assert '"x" [label="x\\nf32[8]", tooltip="params[\'w\']"' in dot
    assert '"all-reduce.1" [label="all-reduce.1\\n(f32[8], f32[])"' in dot


@pytest.fixture
def graphviz():
    program = shutil.which("dot")
    assert program, "Graphviz draws here: install it, `apt-get install --no-install-recommends graphviz`."
    return program


def test_graphviz_draws_the_optimized_program_and_nothing_that_the_network_serves(
    graphviz, compiled, no_graphviz
):
    (no_graphviz / "dot").symlink_to(graphviz)
    text, _, file = saved(compiled, no_graphviz, name="mine")
    svg = file.read_text()
    assert (file.name, svg[:5]) == ("mine.svg", "<svg ")
    drawn = {title.text for title in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}title")}
    ops = set(re.findall(r"%((?:all-reduce|while|\w+_fusion)[\w.-]*) = ", text.read_text()))
    assert {op.split(".")[0] for op in ops} >= {"all-reduce", "while"}
    assert ops <= drawn
    assert set(re.findall(r"\w+://[^\s\"')]*", svg)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "stylesheet" not in svg


def test_what_stands_before_the_picture_is_left_out(compiled, no_graphviz):
    dot_program(no_graphviz, f"print({SVG!r} % sys.stdin.read())")
    *_, file = saved(compiled, no_graphviz)
    assert file.read_text().startswith("<svg ")
    assert "//fonts" not in file.read_text()


def test_a_blank_in_a_path_is_no_obstacle_to_a_picture(graphviz, compiled, no_graphviz):
    (no_graphviz / "with a blank").mkdir()
    (no_graphviz / "with a blank/dot").symlink_to(graphviz)
    (no_graphviz / "dot").symlink_to("with a blank/dot")
    *_, file = saved(compiled, no_graphviz / "and here")
    assert file == no_graphviz / "and here/step.svg"


def test_without_dot_the_package_draws_it(compiled, no_graphviz, monkeypatch):
    class AGraph:
        def __init__(self, string):
            self.string = string

        def draw(self, *, format, prog):  # noqa: A002 - its name there
            return (SVG % self.string.count("all-reduce")).encode()

    monkeypatch.setitem(sys.modules, "pygraphviz", types.SimpleNamespace(AGraph=AGraph))
    *_, svg = saved(compiled, no_graphviz)
    assert svg.read_text().startswith("<svg ")


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (None, "install Graphviz, or the package pygraphviz"),
        ("sys.exit(3)", "Graphviz failed: .*exit status 3"),
        ("print('no picture')", "Graphviz drew none"),
    ],
)
def test_without_a_picture_the_rest_is_there_and_one_warning(compiled, no_graphviz, caplog, script, says):
    if script:
        dot_program(no_graphviz, script)
    files = saved(compiled, no_graphviz)
    assert [file.name for file in files] == ["step.hlo.txt", "step.dot"]
    (record,) = caplog.records
    assert re.search(says, record.getMessage())


def test_what_is_too_large_to_be_looked_at_is_not_drawn(no_graphviz, caplog):
    dot_program(no_graphviz, f"print({SVG!r})")
    ops = "\n".join(f"  %add.{i} = f32[] add(%add.{i - 1}, %x)" for i in range(1, 3000))
    large = program(f"HloModule m\n\nENTRY %main () -> f32[] {{\n{ops}\n}}\n")
    assert [file.suffix for file in saved(large, no_graphviz)] == [".txt", ".dot"]
    assert "graph of 2999 operations is too large" in caplog.text


def test_a_directory_that_cannot_be_written_to_is_told(compiled, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        hlo.save_hlo(compiled, tmp_path / "file")


def test_the_command_writes_the_step_of_an_experiment(no_graphviz, capsys):
    target = "meshwright.cli.demo.digits:experiment"
    assert (
        main(
            [
                "hlo",
                target,
                "mesh=data=4,tensor=2",
                f"workdir={no_graphviz}/run",
                "--to",
                f"{no_graphviz}/hlo",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "step compiled in " in shown
    assert f"{no_graphviz}/hlo/step.dot" in shown
    assert not (no_graphviz / "run").exists()


def test_at_an_address_the_same_files_are_put_there(compiled, no_graphviz, memory, at, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = [file.read_bytes() for file in saved(compiled, no_graphviz)]
    assert hlo.save_hlo(compiled, f"{at}/run") == [f"{at}/run/step.hlo.txt", f"{at}/run/step.dot"]
    assert list(files(f"{at}/run").values()) == sorted(here, key=len)
    assert not [path for path in tmp_path.iterdir() if ":" in path.name]
