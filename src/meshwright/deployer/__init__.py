"""The small services of a run, under the names by which RedCoast's users know them."""

from meshwright.deployer._batches import LrSchedule
from meshwright.deployer._deployer import Deployer

__all__ = ["Deployer", "LrSchedule"]
