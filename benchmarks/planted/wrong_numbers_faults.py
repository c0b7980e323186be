"""Faults that end in NaN, loss spikes, another state than an undisturbed run, or late compilation."""

from pathlib import Path

from benchmarks.planted.fault import Fault

_HERE = Path(__file__).parent


def _experiment(module: str) -> str:
    return f"{_HERE / module}.py:experiment"


def _nan(fault: str, says: str) -> Fault:
    train = ("train", _experiment("nans"), f"fault={fault}", "workdir=RUN", "--fake-devices", "8")
    return Fault(f"NaN: {fault}", _HERE / "nans.py", ("nan", "RUN"), says, 4, first=(train,))


def _resume(fault: str, says: str) -> Fault:
    words = ("verify-resume", _experiment("resumes"), f"fault={fault}", "--fake-devices", "1")
    return Fault(f"resume: {fault}", _HERE / "resumes.py", words, says, 1)


def _spike(fault: str) -> Fault:
    train = ("train", _experiment("spikes"), f"fault={fault}", "workdir=RUN", "--fake-devices", "1")
    says = r"at step 50; went back to step 40, left out batches 49 to 51\n.* at step 88; .*batches 90 to 92"
    return Fault(f"spike: {fault}", _HERE / "spikes.py", ("report", "RUN"), says, first=(train,))


_ROW = r"(.|\n)*rows 5 of 8 \(examples 53\)(.|\n)*cpu:5"
FAULTS = (
    _nan("log", rf"the logarithm of -\S+ \(float32\) is NaN\n +at +\S*nans.py:\d+ in _log{_ROW}"),
    _nan("masked_row", rf"-inf - -inf \(float32\) is NaN\n +at +\S*nans.py:\d+ in _masked_row{_ROW}"),
    _nan("zero_by_zero", rf"0 / 0 \(float32\) is NaN\n +at +\S*nans.py:\d+ in _zero_by_zero{_ROW}"),
    _nan("float16", rf"× \d+ \(float16\) is inf\n +at +\S*nans.py:\d+ in _float16{_ROW}"),
    _nan("bfloat16", rf"e to the power \d+ \(bfloat16\) is inf\n +at +\S*nans.py:\d+ in _bfloat16{_ROW}"),
    _nan("update", r"/ 0 \(float32\) is NaN(.|\n)*the update by the optimizer(.|\n)*it is not the examples"),
    _nan("infinite_example", rf"first: +batch/x has inf at \[5, 0\]{_ROW}"),
    _nan(
        "gradient_of_sqrt", rf"0.5 / 0 \(float32\) is inf\n +at +\S*nans.py:\d+ .*\n +in +the gradient{_ROW}"
    ),
    _nan(
        "gradient_of_where", rf"0 / 0 \(float32\) is NaN\n +at +\S*nans.py:\d+ .*\n +in +the gradient{_ROW}"
    ),
    _nan("layer", r"the logarithm of -(.|\n)*layer, iteration 2 of a scan of 4(.|\n)*params/layers/w"),
    _nan("remat", r"the logarithm of -(.|\n)*layer, iteration 2 of a scan of 4(.|\n)*params/layers/w"),
    _nan("custom_gradient", rf"/ 0 \(float32\) is inf\n +at +\S*nans.py:\d+ .*\n +in +the gradient{_ROW}"),
    _nan(
        "while_loop",
        rf"is inf\n +at +\S*nans.py:\d+ .*\n +in +the forward pass, iteration \d of a while{_ROW}",
    ),
    _spike("labels"),
    _spike("scale"),
    _spike("nan"),
    _resume("unseeded", r"cause: unseeded data"),
    _resume("augmented", r"cause: unseeded data"),
    _resume("traced", r"cause: random call at trace time(.|\n)*at \S*resumes.py:\d+ in loss"),
    _resume("initialised", r"cause: random call at trace time(.|\n)*values of params/w"),
    _resume("loader", r"cause: position of the data"),
    _resume("from_the_beginning", r"cause: position of the data(.|\n)*the data began again"),
    _resume("counter", r"cause: state outside(.|\n)*at \S*resumes.py:\d+ in loss"),
    _resume("narrow", r"cause: saved form(.|\n)*save.cast"),
    Fault(
        "recompilation: told",
        _HERE / "recompiles.py",
        ("train", _experiment("recompiles"), "workdir=RUN", "--fake-devices", "1"),
        r"the step was compiled again, in \S+ s, for a batch where x was float32\[8, 4\], is float32\[8, 6\]",
        0,
    ),
    Fault(
        "recompilation: refused",
        _HERE / "recompiles.py",
        ("train", _experiment("recompiles"), "workdir=RUN", "compile.late=refuse", "--fake-devices", "1"),
        r"a shape that the step is not compiled for: x was float32\[8, 4\], is float32\[8, 6\]",
        2,
    ),
)
