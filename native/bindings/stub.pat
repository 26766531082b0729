# What the stub says beyond what the module itself tells. Names of the package rig stand here and not in the module:
# for a name in the module the generator would import the installed package, which has another copy of the module.
_core.Buffer.access:
    \from rig.kinds import Access
    @property
    def access(self) -> Access:
        \doc

_core.Buffer.__suffix__:
    def __buffer__(self, flags: int, /) -> memoryview:
        """Give the memory that the host addresses, once the work that wrote it is done."""
