"""The metrics of steps, packed into few arrays on the devices and merged on the host."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from meshwright.base._internal import documented, values_of
from meshwright.observe._kinds import as_float
from meshwright.observe._metrics import Histogram, Mean, widened

Metrics = Mapping[str, Mean | Histogram | ArrayLike]
"""The metrics of a step by name: scalars, `Mean`s of scalars, or `Histogram`s."""


@documented
@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Packed(Mapping[str, Mean | Histogram]):
    """Metrics by name, kept in one array for all means and one for all histograms.

    The host's work grows with the number of arrays, not of metrics.

    Example:
      >>> packed = mw.observe._internal.Packed.of({"loss": mw.Mean.of(jnp.array([1.0, 2.0]))})
      >>> packed["loss"]
      Mean(1.5, count=2)
    """

    means: jax.Array | None
    """The totals of the means, then their counts: float[2, number of means]. None if there are none."""
    histograms: Histogram | None
    """A histogram whose `parts` are float[number of histograms, 510]. None if there are none."""
    mean_names: tuple[str, ...] = field(metadata={"static": True})
    """The names of the means, in order."""
    histogram_names: tuple[str, ...] = field(metadata={"static": True})
    """The names of the histograms, in order."""

    @classmethod
    def of(cls, metrics: Mapping[str, Mean | Histogram]) -> Self:
        """Return metrics in packed form: first the means, then the histograms."""
        means = {name: metric for name, metric in metrics.items() if isinstance(metric, Mean)}
        histograms = {name: metric for name, metric in metrics.items() if isinstance(metric, Histogram)}
        return cls(
            _stacked([mean.total for mean in means.values()], [mean.count for mean in means.values()])
            if means
            else None,
            Histogram(jnp.stack([histogram.parts for histogram in histograms.values()]))
            if histograms
            else None,
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
            return f"<metrics {', '.join(self)}>"  # for example inside `jit`
        return "{" + ", ".join(f"{name!r}: {_text(x)}" for name, x in merge([self]).items()) + "}"


def _text(reported: Any) -> str:
    return repr(reported) if isinstance(reported, Histogram) else f"{reported:.6g}"


def _stacked(totals: Sequence[ArrayLike], counts: Sequence[ArrayLike]) -> jax.Array:
    return jnp.stack([jnp.stack([widened(x) for x in parts]) for parts in (totals, counts)])


def merge(steps: Iterable[Metrics]) -> dict[str, Any]:
    """Return the mean of each metric over several steps, and the sum of each histogram.

    Totals and counts are summed in float64 on the host and divided once. A scalar has the weight 1. A metric
    that only some steps have is the mean over those steps. A mean with count 0 is NaN.

    Args:
      steps: The metrics of each step. The result has the order in which names first appear.

    Raises:
      UsageError: A metric is not a scalar.

    Example:
      >>> mw.observe.merge([{"loss": 1.0}, {"loss": 2.0, "accuracy": 0.5}])
      {'loss': 1.5, 'accuracy': 0.5}
    """
    sums: dict[str, Any] = {}
    for metrics in _joined(steps):
        for name, metric in metrics.items():
            part = _on_host(name, metric)
            sums[name] = sums[name] + part if name in sums else part
    return {name: _reported(total) for name, total in sums.items()}


def _joined(steps: Iterable[Metrics]) -> Iterator[Metrics]:
    """Yield the metrics of steps. Neighbours with the same layout are summed as arrays first, for speed."""
    for layout, alike in itertools.groupby(steps, _layout):
        if layout is None:
            yield from alike
        else:
            yield _summed(list(alike))  # type: ignore[arg-type]


def _layout(metrics: Metrics) -> object:
    return (metrics.mean_names, metrics.histogram_names) if isinstance(metrics, Packed) else None


def _summed(packed: list[Packed]) -> dict[str, Mean | Histogram]:
    sums: dict[str, Mean | Histogram] = {}
    first = packed[0]
    if first.means is not None:
        # The sum of infinity and minus infinity is NaN, without a warning.
        with np.errstate(invalid="ignore"):
            totals, counts = (
                np.stack([np.asarray(packed_metrics.means) for packed_metrics in packed])
                .sum(0, np.float64)
                .tolist()
            )
        sums |= dict(zip(first.mean_names, map(Mean, totals, counts), strict=True))
    if first.histograms is not None:
        parts = np.stack([packed_metrics.histograms.parts for packed_metrics in packed]).astype(np.float64)  # type: ignore[union-attr]
        sums |= dict(zip(first.histogram_names, map(Histogram, Histogram(parts).summed().parts), strict=True))
    return sums


def _on_host(name: str, metric: Any) -> Mean | Histogram:
    if isinstance(metric, Histogram):
        # In float64 on the host, as counts of many steps are not exact in float32.
        return Histogram(np.asarray(metric.parts, np.float64))
    mean = metric if isinstance(metric, Mean) else Mean(metric, 1)
    return Mean(as_float(name, mean.total), as_float(name, mean.count))


def _reported(total: Mean | Histogram) -> Any:
    if isinstance(total, Histogram):
        return total
    return total.total / total.count if total.count else math.nan  # type: ignore[operator]
