import os

import pytest

os.environ["VERL_USE_EXTERNAL_MODULES"] = "mia.training.cpu"  # before verl is imported, as in every process of a run


@pytest.fixture
def alone_in_a_group(monkeypatch, tmp_path):
    import torch.distributed  # noqa: PLC0415 - of an extra
    from verl.utils.distributed import initialize_global_process_group_ray  # noqa: PLC0415 - of an extra

    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "DIST_INIT_METHOD": f"file://{tmp_path}/meet"}.items():
        monkeypatch.setenv(name, value)
    initialize_global_process_group_ray()
    yield
    torch.distributed.destroy_process_group()
