"""Stand-ins for loaders of libraries that the tests do without, true to what of them is looked at."""

import numpy as np


class DataLoader:
    """As PyTorch's: an iterable of batches, or with `batch_size=None` of examples; no index, no state."""

    def __init__(self, dataset, batch_size=1, drop_last=False):
        self.dataset, self.batch_size, self.drop_last = dataset, batch_size, drop_last
        self.batch_sampler = None if batch_size is None else range(0, len(dataset), batch_size)

    @property
    def _auto_collation(self):
        return self.batch_sampler is not None

    def __len__(self):
        return len(self.dataset) if self.batch_sampler is None else len(self.batch_sampler)

    def __iter__(self):
        if self.batch_sampler is None:
            yield from (self.dataset[i] for i in range(len(self.dataset)))
            return
        for start in self.batch_sampler:
            examples = self.dataset[start : start + self.batch_size]
            if len(examples) == self.batch_size or not self.drop_last:
                yield _collate(examples)


class IterableDataset:
    """As PyTorch's, with the length that one may give it, and an index that only raises."""

    def __init__(self, examples):
        self._examples = examples

    def __len__(self):
        return len(self._examples)

    def __getitem__(self, index):
        raise NotImplementedError

    def __iter__(self):
        return iter(self._examples)


def _collate(examples):
    """As PyTorch's default: dictionaries by key, pairs as lists."""
    first = examples[0]
    if isinstance(first, dict):
        return {key: Tensor([x[key] for x in examples]) for key in first}
    if isinstance(first, tuple):
        return [Tensor(column) for column in zip(*examples, strict=True)]
    return Tensor(examples)


class Tensor:
    """What NumPy can read, and is no NumPy array."""

    def __init__(self, values):
        self._values = np.array(values)
        self.shape = self._values.shape

    def __array__(self, dtype=None, copy=None):
        return self._values


class MapDataset:
    """As grain's: indexed; its iterator says where it stands."""

    def __init__(self, parents, length, item):
        self._parents, self._length, self._item = parents, length, item

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        return self._item(index)

    def __iter__(self):
        return Iterator(self)

    def batch(self, size):
        rows = lambda i: range(size * i, min(size * i + size, len(self)))
        item = lambda i: {"id": np.array([self[j]["id"] for j in rows(i)])}
        return BatchMapDataset([self], -(-len(self) // size), item)

    def map(self, function):
        return MapDataset([self], len(self), lambda i: function(self[i]))


class BatchMapDataset(MapDataset):
    pass


for each in (MapDataset, BatchMapDataset):
    each.__module__ = "grain._src.python.dataset.dataset"


class Iterator:
    """An iterator that says where it stands, and is told; it counts what is read of it."""

    def __init__(self, dataset, encode=lambda state: state, decode=lambda state: state):
        self._dataset, self._next, self.num_read = dataset, 0, 0
        self._encode, self._decode = encode, decode

    def __iter__(self):
        return self

    def __next__(self):
        if self._next >= len(self._dataset):
            raise StopIteration
        self._next, self.num_read = self._next + 1, self.num_read + 1
        return self._dataset[self._next - 1]

    def get_state(self):
        return self._encode({"next_index": self._next})

    def set_state(self, state):
        self._next = self._decode(state)["next_index"]


def examples(n):
    return [{"id": np.int64(i)} for i in range(n)]


def dataset(n):
    return MapDataset([], n, lambda i: {"id": np.int64(i)})
