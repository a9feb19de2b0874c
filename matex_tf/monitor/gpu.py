"""Reads utilisation and used memory of this process's GPUs from NVIDIA's driver (nvidia-ml-py)."""

from __future__ import annotations

import glob
import os
from typing import Any


class Gpus:
    """The GPUs that this process sees. `missing` explains why an existing GPU cannot be read."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._driver: Any = None
        self.missing = ""
        # "" and "-1" hide all GPUs.
        if not glob.glob("/dev/nvidia[0-9]*") or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
            return
        try:
            import pynvml
        except ImportError:
            self.missing = "GPUs are not recorded: pip install nvidia-ml-py"
            return
        self.use_driver(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"))

    def use_driver(self, driver: Any, visible: str | None) -> None:
        """Read the GPUs that `visible` names, by number or UUID, through `driver` (pynvml); None: all GPUs."""
        try:
            driver.nvmlInit()
            names = [name.strip() for name in visible.split(",")] if visible else range(driver.nvmlDeviceGetCount())
            self._handles = [_find_handle(driver, name) for name in names]
            self._driver = driver
        except driver.NVMLError as error:
            self.missing = f"GPUs are not recorded: {error}"

    def take_sample(self) -> dict[str, float]:
        """`gpu`: the mean utilisation of the GPUs in percent; `vram`: the used bytes.

        {} if there is no GPU, or the driver does not answer.
        """
        if not self._handles:
            return {}
        try:
            utilisations = [self._driver.nvmlDeviceGetUtilizationRates(handle).gpu for handle in self._handles]
            used_bytes = [self._driver.nvmlDeviceGetMemoryInfo(handle).used for handle in self._handles]
        except self._driver.NVMLError:
            return {}
        return {"gpu": sum(utilisations) / len(utilisations), "vram": sum(used_bytes)}


def _find_handle(driver: Any, name: str | int) -> Any:
    if str(name).isdigit():
        return driver.nvmlDeviceGetHandleByIndex(int(name))
    return driver.nvmlDeviceGetHandleByUUID(str(name))
