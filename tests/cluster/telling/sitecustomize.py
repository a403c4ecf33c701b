"""For processes with this folder in PYTHONPATH: `switchyard engine` gets a backend without a model,
whose text names its job, so that each token of a stream can be checked; and engines that
`switchyard cluster apply` declares end after some seconds of less load, not after minutes.
"""

import sys

if "switchyard" in sys.orig_argv and "engine" in sys.orig_argv:
    import switchyard.engine.models.opening as opening
    from benchmarks.routing import TICK, TokenBackend
    from switchyard.engine.messages import Chunk

    class Telling(TokenBackend):
        def iterate(self):
            jobs = {identifier: job for identifier, (job, _) in self._jobs.items()}
            return [
                Chunk(
                    e.identifier, f" {jobs[e.identifier].prompt[0]}.{e.token_ids[0]}", e.token_ids
                )
                if isinstance(e, Chunk)
                else e
                for e in super().iterate()
            ]

    opening.make_backend = lambda *_: Telling(TICK)

if "switchyard" in sys.orig_argv and "apply" in sys.orig_argv:
    import switchyard.cluster.declaration as declaration

    declaration.DOWN = 5.0
