"""Dimensions as products of factors, which can be cut and can be found equal.

If a projection's 4,096 outputs are reshaped to 32 heads of 128, then that dimension is the product 32 × 128,
also in the weight that made it. A factor is a number; a dimension is a tuple of factors, the slowest first.
When two dimensions are found equal, both are cut until their factors pair up.
"""

Factor = int
Product = tuple[Factor, ...]


class Factors:
    """A union-find over factors; each factor may also be cut in two."""

    def __init__(self) -> None:
        self._size: list[int] = []
        self._parent: list[Factor] = []
        self._cut: dict[Factor, tuple[Factor, Factor]] = {}

    def new(self, size: int) -> Product:
        """Return a new dimension of `size`, a single factor."""
        return (self._new(size),) if size > 1 else ()

    def size(self, factor: Factor) -> int:
        """Return the value of a factor."""
        return self._size[factor]

    def flat(self, product: Product) -> list[Factor]:
        """Return the uncut factors of `product`, each by its representative."""
        flat = []
        for factor in product:
            root = self._root(factor)
            flat.extend(self.flat(self._cut[root]) if root in self._cut else [root])
        return flat

    def unify(self, one: Product, other: Product) -> None:
        """Make two dimensions of equal size the same, as far as their factors can be paired."""
        left, right = self.flat(one), self.flat(other)
        while left and right:
            a, b = left.pop(0), right.pop(0)
            size_a, size_b = self._size[a], self._size[b]
            if size_a == size_b:
                self._parent[max(a, b)] = min(a, b)
            elif size_a % size_b == 0:
                major, minor = self._divide(a, size_b)
                left, right = [major, minor, *left], [b, *right]
            elif size_b % size_a == 0:
                major, minor = self._divide(b, size_a)
                left, right = [a, *left], [major, minor, *right]
            else:
                return

    def _divide(self, factor: Factor, major: int) -> tuple[Factor, Factor]:
        self._cut[factor] = self._new(major), self._new(self._size[factor] // major)
        return self._cut[factor]

    def _new(self, size: int) -> Factor:
        self._size.append(size)
        self._parent.append(len(self._parent))
        return len(self._size) - 1

    def _root(self, factor: Factor) -> Factor:
        while self._parent[factor] != factor:
            self._parent[factor] = self._parent[self._parent[factor]]
            factor = self._parent[factor]
        return factor
