"""Devices besides the host and memory devices, one module for each kind, imported when it is asked for."""

from __future__ import annotations

__all__ = ["missing"]

_NONE = "this version of rig has no driver for it"


def missing() -> tuple[tuple[str, str], ...]:
    """Give each known kind of accelerator that `rig.devices` does not list, with one line why.

    The kinds are those of vendors' interfaces: opencl, cuda, amd, nv and metal.

    >>> import rig.drivers
    >>> dict(rig.drivers.missing())["metal"]
    'this version of rig has no driver for it'
    """
    from rig.drivers import opencl

    why = opencl.missing()
    found = () if why is None else (("opencl", why),)
    return (*found, *((kind, _NONE) for kind in ("cuda", "amd", "nv", "metal")))
