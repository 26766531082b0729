# What the stub says beyond what the module itself tells.
_core.Buffer.__suffix__:
    def __buffer__(self, flags: int, /) -> memoryview:
        """Give the memory that the host addresses, once the work that wrote it is done."""
