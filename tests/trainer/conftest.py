import pytest

import compiling


@pytest.fixture(scope="package", autouse=True)
def compiled_once(tmp_path_factory):
    with compiling.kept_in(tmp_path_factory.mktemp("compiled")):
        yield
