"""A server whose model never comes to the end of its first step. It says where it listens, and when it has begun to compute.

Its argument is the time in seconds that answers may take after the first signal.
"""

import logging
import sys
import threading
from dataclasses import replace

from executors import ShadowExecutor
from tiny import Setup, make_service

from chairlift.core.types import Plan
from chairlift.server.run import bind, serve
from chairlift.server.service import Service
from chairlift.server.settings import Settings


class StuckExecutor(ShadowExecutor):
    """Takes a plan, and that is all."""

    def launch(self, plan: Plan) -> None:
        if plan.work:
            logging.info("computing")
            threading.Event().wait()
        super().launch(plan)


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    setup = replace(Setup(), executor=StuckExecutor, settings=Settings(shutdown_timeout_s=float(sys.argv[1])))
    listener = bind("127.0.0.1", 0)

    def start() -> Service:
        service, _, _ = make_service(setup)
        return service

    logging.info("http://127.0.0.1:%d", listener.getsockname()[1])
    return serve(listener, lambda: start, setup.settings)


if __name__ == "__main__":
    sys.exit(main())
