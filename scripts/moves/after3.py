"""Long lines that no tool wraps."""
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
from after_tools import change
S = "src/meshwright/"
change("benchmarks/exponents.py", ('PROCESS = "import jax; from meshwright.processes import _internal as processes; processes.start(); processes.gather(1); processes.agree(1)"',
 'PROCESS = (\n    "import jax; from meshwright.processes import _internal as processes; processes.start(); "\n    "processes.gather(1); processes.agree(1)"\n)'))
change("benchmarks/findings.py", ('''    return f"beside a model.safetensors with a=1, read a={np.asarray(mw.checkpoints.open_source('x').arrays()['a'])[0]}"''',
 '''    a = np.asarray(mw.checkpoints.open_source("x").arrays()["a"])[0]\n    return f"beside a model.safetensors with a=1, read a={a}"'''),
 ('''    return f"the second ended with w = 1.0, saved is {np.asarray(mw.checkpoints.open_source('run').arrays()['w'])}"''',
  '''    saved = np.asarray(mw.checkpoints.open_source("run").arrays()["w"])\n    return f"the second ended with w = 1.0, saved is {saved}"'''))
change("benchmarks/models/cases.py", ('''mw.parallel.match("Conv_0/kernel", None, None, None, "tensor"), mw.parallel.match("Conv_0/bias", "tensor"),''',
 '''mw.parallel.match("Conv_0/kernel", None, None, None, "tensor"),\n    mw.parallel.match("Conv_0/bias", "tensor"),'''))
change(S + "base/_storage/_place.py", ('"Give a local path. `meshwright.base._storage` makes one for a URL: `local_copy` downloads it, `mirrored` "', '"Give a local path. `mw.data.local_copy` downloads a URL, `mw.data.mirrored` "'))
change(S + "base/_tree.py", ('''>>> mw.base._internal.map_named(lambda name, x: 0 if name.startswith("a/") else x, {"a": {"b": 1}, "c": 2})''', '''>>> params = {"a": {"b": 1}, "c": 2}\n      >>> mw.base._internal.map_named(lambda name, x: 0 if name.startswith("a/") else x, params)'''))
change(S + "base/_unknown_arguments.py", ('''    "Stop": _instead(("early_stopping", 'Write early=mw.engine.early_stopping("eval/loss", "min", patience=3).')),''',
 '''    "Stop": _instead(\n        ("early_stopping", 'Write early=mw.engine.early_stopping("eval/loss", "min", patience=3).')\n    ),'''))
import re
def shift(path, start):
    """Move the last words of the literal that contains `start` to the literal on the next line."""
    p = Path(S + path); lines = p.read_text().split("\n")
    for i, l in enumerate(lines):
        if start in l and len(l) > 110:
            m = re.match(r"^(\s*)(f?)([\"'])(.*)\3$", l); n = re.match(r"^(\s*)(f?)([\"'])(.*)$", lines[i + 1])
            if not (m and n): print("NO SHIFT", path, l); return
            body = m[4]; k = 108 - len(m[1]) - len(m[2])
            cut_ = body.rfind(" ", 0, k) + 1
            head, tail = body[:cut_], body[cut_:]
            q = n[3]
            if q in tail or ("{" in tail and m[2] and not n[2]): q0 = "f" if "{" in tail else ""; lines[i] = f"{m[1]}{m[2]}{m[3]}{head}{m[3]}"; lines.insert(i + 1, f"{m[1]}{q0 or ''}{m[3]}{tail}{m[3]}"); break
            lines[i] = f"{m[1]}{m[2] if '{' in head else ''}{m[3]}{head}{m[3]}"
            lines[i + 1] = f"{n[1]}{n[2]}{q}{tail}{n[4]}"
            break
    else: print("NOT LONG", path, start)
    p.write_text("\n".join(lines))
for path, start in [("data/_batched.py", "Leave out mw.data.Batched"), ("data/_bucketed.py", "mw.data.Bucketed: lengths must"), ("data/_loaders.py", "Wrap it, mw.data.Batched"),
  ("data/_mixture.py", "a set must be of mw.data.text"), ("engine/_untrained_warning.py", "Give them to the attention"), ("plan/_site.py", "Call mw.nn.attention"),
  ("training/_ema.py", "keeps no average of the parameters"), ("training/_pipeline/_cut.py", "this one calls mw.nn.layers"), ("training/_pipeline/_pipelined.py", "is a pipeline in the steps"),
  ("training/_pipeline/_pipelined.py", "Call them by `mw.nn.layers"), ("training/_shapes.py", "mw.data.Bucketed(examples"), ("training/_shapes.py", "mw.data.Batched(loader")]: shift(path, start)
change(S + "debug/_findings.py", ('advice="give each random generator of the input a seed; in mw.data.mapped, take the argument rng",', 'advice="give each random generator of the input a seed; mw.data.mapped has the argument rng",'))
change(S + "training/_state.py", ('"  Make the update yourself, with what it asks for: mw.Trainer(train_step=...) or mw.training.Step."', '"  Make the update yourself: mw.Trainer(train_step=...) or mw.training.Step."'))
change(S + "parallel/_user_rules.py", ('''"  Give what get_sharding_rules returns, or mw.parallel.match('q_proj/kernel', None, 'tensor')."''', '''"  Give what get_sharding_rules returns, or mw.parallel.match('q_proj/kernel', None, "\n                "'tensor')."'''))
change(S + "engine/_exports/_export.py", ('''>>> path = mw.engine.export(lambda params, x: x @ params["w"], params, "float32[batch, 4]", "sum.jaxexport")''', '''>>> product = lambda params, x: x @ params["w"]\n      >>> path = mw.engine.export(product, params, "float32[batch, 4]", "sum.jaxexport")'''))
change(S + "engine/_exports/_load.py", ('''>>> path = mw.engine.export(lambda params, x: x * params, jnp.float32(3), "float32[n]", "three.jaxexport")''', '''>>> times = lambda params, x: x * params\n      >>> path = mw.engine.export(times, jnp.float32(3), "float32[n]", "three.jaxexport")'''))
change(S + "engine/_stopping.py", ('''>>> mw.Stop(max_seconds=3600, early=mw.engine.early_stopping("test/loss", "min", patience=5)).max_seconds''', '''>>> early = mw.engine.early_stopping("test/loss", "min", patience=5)\n      >>> mw.Stop(max_seconds=3600, early=early).max_seconds'''))
change(S + "launch/_jobset.py", ('''>>> job = mw.launch._internal.Job(("meshwright", "train", "gpt:experiment"), num_processes=4, name="gpt")''', '''>>> command = ("meshwright", "train", "gpt:experiment")\n      >>> job = mw.launch._internal.Job(command, num_processes=4, name="gpt")'''))
change(S + "nn/_inputs.py", ('''>>> bias = mw.nn._internal.Bias(lambda slopes, t, s: -slopes[:, None, None] * abs(t[:, None] - s), slopes)''', '''>>> slope = lambda slopes, t, s: -slopes[:, None, None] * abs(t[:, None] - s)\n      >>> bias = mw.nn._internal.Bias(slope, slopes)'''))
change(S + "plan/_roofline.py", ('''>>> rates = mw.plan._internal.Rates({"bfloat16": 6e14}, memory=2.7e12, link=3.6e11, network=4e10, source="mine")''', '''>>> speeds = {"memory": 2.7e12, "link": 3.6e11, "network": 4e10}\n      >>> rates = mw.plan._internal.Rates({"bfloat16": 6e14}, **speeds, source="mine")'''))
change(S + "program/_program.py", ('''>>> "sin" in [operation.kind for operation in mw.program._internal.walk(mw.program._internal.program_of(jaxpr))]''', '''>>> program = mw.program._internal.program_of(jaxpr)\n      >>> "sin" in [operation.kind for operation in mw.program._internal.walk(program)]'''),
 ('''>>> program = mw.program._internal.program_of(jax.make_jaxpr(jax.jit(jnp.dot))(jnp.ones((2, 3)), jnp.ones(3)))''', '''>>> jaxpr = jax.make_jaxpr(jax.jit(jnp.dot))(jnp.ones((2, 3)), jnp.ones(3))\n      >>> program = mw.program._internal.program_of(jaxpr)'''))
change("tests/base/test_lines.py", ('''program = "import sys; from meshwright.base._lines import print_line; print_line('lost', sys.stderr); print('on')"''', '''program = (\n        "import sys; from meshwright.base._lines import print_line; "\n        "print_line('lost', sys.stderr); print('on')"\n    )'''))
p = Path("tests/lm/tuning/tuning_on_hosts.py"); s = p.read_text()
change(S + "training/_pipeline/_cut.py", ('''times.\\n  Use pipeline_schedule='gpipe', which takes any number of stacks."''', '''times.\\n  Use pipeline_schedule='gpipe', "\n                "which takes any number of stacks."'''))
change("tests/data/tokens/golden/make.py", ('''    PYTHONPATH=src .venv/bin/python -c "import sys; sys.path.insert(0, 'tests/data/tokens/golden'); import write"''', '''    PYTHONPATH=src:tests/data/tokens/golden .venv/bin/python -c "import write"'''))
p.write_text(s.replace("import merged_source\n", "import merged_source  # noqa: E402\n"))
