"""Programs that people have, over `stdchk://`: what they wrote comes back."""

import joblib
import numpy as np
import pandas as pd
import pytest
import safetensors.numpy
import xarray as xr


@pytest.fixture
def url(folder):
    return f"stdchk://{folder.path}"


def test_pandas_writes_parquet_and_csv(data, url):
    frame = pd.DataFrame({"step": range(1000), "energy": np.random.default_rng(7).normal(size=1000)})
    frame.to_parquet(f"{url}/energy.parquet")
    assert pd.read_parquet(f"{url}/energy.parquet").equals(frame)
    assert pd.read_parquet(f"{url}/energy.parquet", columns=["step"]).step.tolist() == list(range(1000))
    frame.to_csv(f"{url}/energy.csv", index=False)
    assert pd.read_csv(f"{url}/energy.csv").shape == frame.shape


def test_dask_writes_from_two_workers(data, url):
    import dask.dataframe as dd
    from distributed import Client, LocalCluster

    frame = pd.DataFrame({"x": np.arange(40_000), "y": np.arange(40_000) % 7})
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        dd.from_pandas(frame, npartitions=8).to_parquet(f"{url}/frame")
        back = dd.read_parquet(f"{url}/frame")
        assert back.npartitions == 8
        assert back.groupby("y").x.sum().compute().to_dict() == frame.groupby("y").x.sum().to_dict()


def test_xarray_writes_zarr_and_appends(data, url):
    rng = np.random.default_rng(7)

    def field(first, count):
        values = rng.normal(size=(count, 40, 50))
        return xr.Dataset({"t": (("time", "y", "x"), values)}, coords={"time": np.arange(first, first + count)})

    one, two = field(0, 3), field(3, 2)
    one.to_zarr(f"{url}/field.zarr", zarr_format=3, consolidated=False)
    two.to_zarr(f"{url}/field.zarr", append_dim="time", zarr_format=3, consolidated=False)
    back = xr.open_zarr(f"{url}/field.zarr", consolidated=False).load()
    xr.testing.assert_identical(back, xr.concat([one, two], "time"))


def test_joblib_dumps_and_loads(data, folder):
    model = {"weights": np.random.default_rng(7).normal(size=100_000), "name": "model"}
    with folder.open("model.joblib", "wb") as file:
        joblib.dump(model, file)
    with folder.open("model.joblib") as file:
        back = joblib.load(file)
    assert back["name"] == "model"
    assert np.array_equal(back["weights"], model["weights"])


def test_safetensors_are_stored(data, folder):
    tensors = {"a": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(100_000, dtype=np.float16)}
    folder.write_bytes("model.safetensors", safetensors.numpy.save(tensors))
    back = safetensors.numpy.load(folder.read_bytes("model.safetensors"))
    assert all(np.array_equal(back[name], tensor) for name, tensor in tensors.items())


def test_numpy_writes_archives(data, folder):
    with folder.open("state.npz", "wb") as file:
        np.savez_compressed(file, a=np.arange(1000), b=np.zeros((30, 30)))
    with folder.open("state.npz") as file, np.load(file) as back:
        assert back["a"].sum() == 499_500
        assert back["b"].shape == (30, 30)
