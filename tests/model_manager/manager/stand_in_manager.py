"""The real manager with the stand-in engine."""

import sys

from millrace.model_manager.manager.process import main

if __name__ == "__main__":
    main(engine_command=(sys.executable, "-P", "-m", "tests.model_manager.manager.stand_in_engine"))
