"""What steps measured, packed on the devices and merged on the host."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from meshwright.metrics._histogram import Histogram
from meshwright.metrics._kinds import as_float
from meshwright.metrics._mean import Mean, widened
from meshwright.shown import values_of

Metrics = Mapping[str, Mean | Histogram | ArrayLike]
"""What one step measured: by name, scalars, `Mean`s of them or `Histogram`s of arrays."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Packed(Mapping[str, Mean | Histogram]):
    """Metrics by name in one array for each kind: the host's cost is per array, not per number."""

    means: jax.Array | None
    """float[2, number of means]: totals, then counts. None where there are none."""
    histograms: Histogram | None
    """One whose `parts` are float[number of histograms, 510]. None where there are none."""
    mean_names: tuple[str, ...] = field(metadata={"static": True})
    histogram_names: tuple[str, ...] = field(metadata={"static": True})

    @classmethod
    def of(cls, metrics: Mapping[str, Mean | Histogram]) -> Self:
        """Return `metrics`, the parts of whose means are scalars: the means, then the histograms."""
        means = {name: metric for name, metric in metrics.items() if isinstance(metric, Mean)}
        histograms = {name: metric for name, metric in metrics.items() if isinstance(metric, Histogram)}
        return cls(
            _stacked([mean.total for mean in means.values()], [mean.count for mean in means.values()])
            if means
            else None,
            Histogram(jnp.stack([one.parts for one in histograms.values()])) if histograms else None,
            tuple(means),
            tuple(histograms),
        )

    def __getitem__(self, name: str) -> Mean | Histogram:
        if name in self.mean_names:
            return Mean(*self.means[:, self.mean_names.index(name)])  # type: ignore[index]
        if name in self.histogram_names:
            return Histogram(self.histograms.parts[self.histogram_names.index(name)])  # type: ignore[union-attr]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.mean_names + self.histogram_names)

    def __len__(self) -> int:
        return len(self.mean_names) + len(self.histogram_names)

    def __repr__(self) -> str:
        means = values_of(self.means) if self.mean_names else np.zeros((2, 0))
        histograms = jax.tree.leaves(self.histograms)
        if means is None or means.ndim != 2 or any(values_of(x) is None for x in histograms):
            return f"<metrics {', '.join(self)}>"  # inside `jit`, say
        return "{" + ", ".join(f"{name!r}: {_shown(x)}" for name, x in merge([self]).items()) + "}"


def _shown(reported: Any) -> str:
    return repr(reported) if isinstance(reported, Histogram) else f"{reported:.6g}"


def _stacked(totals: Sequence[ArrayLike], counts: Sequence[ArrayLike]) -> jax.Array:
    return jnp.stack([jnp.stack([widened(x) for x in parts]) for parts in (totals, counts)])


def merge(steps: Iterable[Metrics]) -> dict[str, Any]:
    """Return each metric over all `steps`, in the order in which names first appear.

    Of scalars and `Mean`s that is the exact mean, a float: totals and counts are summed in float64 on the
    host and divided once. A scalar weighs 1. A metric that only some steps have is the mean over those; one
    with count 0 is NaN. `Histogram`s add up.

    Raises:
      UsageError: a metric is not a scalar.
    """
    sums: dict[str, Any] = {}
    for metrics in _joined(steps):
        for name, metric in metrics.items():
            part = _on_host(name, metric)
            sums[name] = sums[name] + part if name in sums else part
    return {name: _reported(total) for name, total in sums.items()}


def _joined(steps: Iterable[Metrics]) -> Iterator[Metrics]:
    """Yield `steps`, those in a row that are packed alike summed as arrays, not number by number."""
    for layout, alike in itertools.groupby(steps, _layout):
        if layout is None:
            yield from alike
        else:
            yield _summed(list(alike))  # type: ignore[arg-type]


def _layout(metrics: Metrics) -> object:
    return (metrics.mean_names, metrics.histogram_names) if isinstance(metrics, Packed) else None


def _summed(packed: list[Packed]) -> dict[str, Mean | Histogram]:
    found: dict[str, Mean | Histogram] = {}
    first = packed[0]
    if first.means is not None:
        totals, counts = np.stack([np.asarray(one.means) for one in packed]).sum(0, np.float64).tolist()
        found |= dict(zip(first.mean_names, map(Mean, totals, counts), strict=True))
    if first.histograms is not None:
        parts = np.stack([one.histograms.parts for one in packed]).astype(np.float64)  # type: ignore[union-attr]
        found |= dict(
            zip(first.histogram_names, map(Histogram, Histogram(parts).summed().parts), strict=True)
        )
    return found


def _on_host(name: str, metric: Any) -> Mean | Histogram:
    if isinstance(metric, Histogram):
        return Histogram(np.asarray(metric.parts, np.float64))
    mean = metric if isinstance(metric, Mean) else Mean(metric, 1)
    return Mean(as_float(name, mean.total), as_float(name, mean.count))


def _reported(total: Mean | Histogram) -> Any:
    if isinstance(total, Histogram):
        return total
    return total.total / total.count if total.count else math.nan  # type: ignore[operator]
