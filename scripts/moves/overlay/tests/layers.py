"""The packages of the house in order: a package imports only from those before its own."""

PACKAGES = (
    "base",
    "processes",
    "launch",
    "program",
    "parallel",
    "data",
    "observe",
    "nn",
    "training",
    "checkpoints",
    "report",
    "engine",
    "lm",
    "plan",
    "debug",
    "cli",
)
SHARED = {"_lazy", "_version", "errors"}
"""The modules beside the packages, which all may import."""
NOT = {"nn": {"data"}, "training": {"data"}}
"""The packages that a package does not import, although they are before its own."""


def may_import(package: str) -> set[str]:
    """Return the packages that a package may import, with its own."""
    return set(PACKAGES[: PACKAGES.index(package) + 1]) - NOT.get(package, set())
