"""Reads utilisation and used memory of this process's GPUs from NVIDIA's driver (nvidia-ml-py)."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Sequence
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
        self.use_driver(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("CUDA_DEVICE_ORDER", ""))

    def use_driver(self, driver: Any, visible: str | None, order: str = "") -> None:
        """Read the GPUs that CUDA sees, through `driver` (pynvml).

        `visible` and `order` are the values of CUDA_VISIBLE_DEVICES (None: not set, all GPUs) and CUDA_DEVICE_ORDER.
        """
        try:
            driver.nvmlInit()
            handles = _list_handles(driver)
            if visible is not None:
                names = [name.strip() for name in visible.split(",")]
                models = {driver.nvmlDeviceGetName(handle) for handle in handles}
                if len(models) > 1 and order != "PCI_BUS_ID" and any(map(_is_number, names)):
                    self.missing = (
                        "GPUs are not recorded: of several models CUDA numbers the fastest first, and the driver does "
                        "not. With CUDA_DEVICE_ORDER=PCI_BUS_ID their numbers are the same"
                    )
                    return
                handles = _choose_handles(driver, handles, names)
            self._handles, self._driver = handles, driver
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


def _list_handles(driver: Any) -> list[Any]:
    """The GPUs that this process may use, in the order of the PCI bus. The driver counts all GPUs of the host."""
    handles = []
    for number in range(driver.nvmlDeviceGetCount()):
        with contextlib.suppress(driver.NVMLError_NoPermission):
            handles.append(driver.nvmlDeviceGetHandleByIndex(number))
    return handles


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _choose_handles(driver: Any, handles: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """The GPUs of `handles` with these names: numbers, UUIDs, or unique beginnings of UUIDs.

    As CUDA does, it ignores an invalid name and all names after it.
    """
    chosen_handles: list[Any] = []
    for name in names:
        if _is_number(name):
            matching_handles = list(handles[int(name) : int(name) + 1])
        elif name.startswith("MIG-"):  # a part of a GPU, which `handles` does not list
            matching_handles = [driver.nvmlDeviceGetHandleByUUID(name)]
        else:
            matching_handles = [
                handle for handle in handles if name and driver.nvmlDeviceGetUUID(handle).startswith(name)
            ]
        if len(matching_handles) != 1:
            break
        chosen_handles += matching_handles
    return chosen_handles
