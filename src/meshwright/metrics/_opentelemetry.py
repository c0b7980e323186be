"""Reports to OpenTelemetry, as gauges: https://opentelemetry.io/docs/specs/otel/metrics.

Readings of machines have the names of the semantic conventions; everything else begins with `meshwright.`.
"""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from meshwright._version import __version__
from meshwright.metrics._kinds import Values, numbers
from meshwright.metrics._trackers import installed
from meshwright.metrics._writers import Writer

_SHUTDOWN_MILLISECONDS = 5000
_STANDARD = {
    "machine/busy/cpu": ("system.cpu.utilization", "1"),
    "machine/memory/host": ("system.memory.utilization", "1"),
    "machine/busy/device": ("hw.gpu.utilization", "1"),
    "machine/memory/device": ("hw.gpu.memory.utilization", "1"),
    "machine/celsius/device": ("hw.temperature", "Cel"),
    "machine/watts/device": ("hw.power", "W"),
    "machine/megahertz/device": ("meshwright.machine.frequency", "MHz"),
}
"""The instrument and its unit for readings that have a name of their own."""
_FAMILIES = {
    "ledger/": ("meshwright.run.time", "s", "part"),
    "machine/errors/": ("hw.errors", "{error}", "error.type"),
    "machine/bytes_per_second/": ("meshwright.machine.io", "By/s", "io"),
}
"""The instrument, its unit and its attribute for numbers that begin alike; the attribute has the rest."""


class Instrument(NamedTuple):
    """The instrument of a reported number, and the attributes that tell it from others."""

    name: str
    unit: str
    attributes: Mapping[str, str]


@contextmanager
def opentelemetry(*, attributes: Mapping[str, str] = {}, reader: Any = None) -> Generator[Writer, None, None]:
    """Open a writer that exports each number as a gauge of OpenTelemetry, in the background.

    It goes by OTLP over HTTP to where OpenTelemetry's own environment variables say, such as
    `OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318`, every `OTEL_METRIC_EXPORT_INTERVAL` milliseconds.
    Leaving the context exports the newest values, and waits at most five seconds. In a run the seconds of its
    ledger are exported, too, as `meshwright.run.time` with the attribute `part`. Texts, images and histograms
    are left out.

    Args:
      attributes: Attributes of all gauges, such as `{"run": "digits-7"}`.
      reader: A metric reader of the SDK to use instead.

    Raises:
      UsageError: The packages of OpenTelemetry are not installed.
    """
    sdk = installed("opentelemetry.sdk.metrics", "MeterProvider")
    if reader is None:
        otlp = installed("opentelemetry.exporter.otlp.proto.http.metric_exporter", "OTLPMetricExporter")
        export = installed("opentelemetry.sdk.metrics.export", "PeriodicExportingMetricReader")
        reader = export.PeriodicExportingMetricReader(otlp.OTLPMetricExporter())
    provider = sdk.MeterProvider([reader], shutdown_on_exit=False)
    meter = provider.get_meter("meshwright", __version__)
    gauges: dict[str, Any] = {}

    def write(step: int, values: Values, /) -> None:
        for name, value in {"step": float(step), **numbers(values)}.items():
            known = instrument_of(name)
            if known.name not in gauges:
                gauges[known.name] = meter.create_gauge(known.name, unit=known.unit)
            gauges[known.name].set(value, {**attributes, **known.attributes})

    try:
        yield write
    finally:
        provider.shutdown(_SHUTDOWN_MILLISECONDS)


def instrument_of(name: str) -> Instrument:
    """Return the instrument for a reported number."""
    if name in _STANDARD:
        return Instrument(*_STANDARD[name], {})
    for beginning, (instrument, unit, attribute) in _FAMILIES.items():
        if name.startswith(beginning):
            return Instrument(instrument, unit, {attribute: name.removeprefix(beginning)})
    dotted = re.sub(r"[^\w.\-]", "_", name.replace("/", "."), flags=re.ASCII)[:200]
    return Instrument(f"meshwright.{dotted}", "s" if name.endswith("seconds") else "1", {})
