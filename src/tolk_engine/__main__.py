"""``python -m tolk_engine check`` says what compiling needs and what of it is here."""

from __future__ import annotations

import sys

from tolk_engine.check import main

if __name__ == "__main__":
    if sys.argv[1:] != ["check"]:
        sys.exit("usage: python -m tolk_engine check")
    sys.exit(main())
