"""Runs ExLlamaV2's dynamic generator, with the same code for GPU and CPU. Used only on the engine
thread.
"""

import gc
import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from switchyard.engine.backends.exl import results
from switchyard.engine.backends.exl.detokenizer import Detokenizer
from switchyard.engine.backends.exl.faults import explain
from switchyard.engine.backends.exl.loaded import LoadedModel
from switchyard.engine.backends.exl.occupancy import occupancy
from switchyard.engine.backends.exl.progress import GENERATOR, Callback, Progress
from switchyard.engine.backends.exl2 import events
from switchyard.engine.backends.exl2.job import Exl2Job
from switchyard.engine.backends.exl2.load.config import read_config
from switchyard.engine.backends.exl2.make import make_budget, make_generator
from switchyard.engine.backends.sampling.forcing import Forcing
from switchyard.engine.backends.sampling.matcher import Matcher
from switchyard.engine.backends.sampling.rules import Rule
from switchyard.engine.backends.sampling.sampler import Sampler
from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import DeviceLost, InvalidJob, ModelError, OutOfMemory
from switchyard.engine.grammar.bills import Bills
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.grammar.masks import MaskThreads
from switchyard.engine.grammar.turns import SlowTurns
from switchyard.engine.job import Job
from switchyard.engine.messages import JobEvent, ModelInfo, Parked, Started
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from switchyard.engine.stats import Occupancy, Work

logger = logging.getLogger(__name__)

WARM_UP = 32  # tokens
GAP_TRIALS = 3  # the fastest counts
MAX_RETRIES = 2  # of a failed iteration, before all active jobs fail

# How a library reads a model's configuration, and how it loads the weights.
Read = Callable[[ModelConfig, ModelDir, str], Any]
Load = Callable[[ModelConfig, Any, Callback], LoadedModel]


class Exl2Backend:
    """Keeps the generator's own queue empty: `has_room` admits only jobs that can start
    immediately.
    """

    def __init__(
        self,
        config: ModelConfig,
        device: str,
        load: Load,
        grammars: Grammars | None = None,
        tell_progress: Callable[[float], None] | None = None,
        read: Read = read_config,
        chunk_size: int | None = None,
    ) -> None:
        """`read`: creates the input for `load`; the default is for ExLlamaV2. `chunk_size`: the
        number of prompt tokens in an iteration while no prompt waits; the default depends on the
        device.
        """
        self._config = config
        self._read = read
        self._grammars = grammars
        self._masks: MaskThreads | None = None
        self._turns = SlowTurns()
        self._bills = Bills()
        self._device = device
        self._load = load
        self._tell_progress = tell_progress
        self._loaded: LoadedModel | None = None
        self._generator: Any = None
        self._tokenizer: Any = None  # the model's; `open` sets it
        self._newline_ids: list[int] = []
        self._jobs: dict[str, Exl2Job] = {}
        self._num_failures = 0
        self._lacks_memory = False  # whether memory ran out in the last failed iteration
        self.work = Work()
        self._budget = make_budget(config, device, chunk_size)

    def open(self) -> ModelInfo:
        try:
            return self._open()
        except BaseException:
            self.close()  # release what has been made
            raise

    def _open(self) -> ModelInfo:
        model_dir = ModelDir.read(self._config.path)
        library_config = self._read(self._config, model_dir, self._device)
        with Progress(self._config.name, self._tell_progress) as progress:
            loaded = self._loaded = self._load(self._config, library_config, progress)
        loaded.warn_of_a_small_cache(library_config.max_seq_len)
        self._grammars = self._grammars or Grammars(Tokenizer(model_dir))
        self._tokenizer = self._grammars.model_tokenizer
        pieces = self._tokenizer.pieces
        self._newline_ids = [i for i, piece in enumerate(pieces) if piece == b"\n"]
        self._generator = self._make_generator()
        progress.tell(GENERATOR)
        self._prove()
        self._check_gap()
        loaded.warn_of_no_copies(self._config.unpacked_weights)
        self._masks = MaskThreads(self._config.name, self._config.max_batch_size)
        return ModelInfo(
            max_seq_len=library_config.max_seq_len,
            vocab_size=library_config.vocab_size,
            page_size=self._generator.page_size,
            num_pages=self._generator.max_pages,
            device=self._device,
            cache_mode=loaded.cache_mode,
            num_draft_tokens=self._generator.num_draft_tokens,
            loras=tuple(lora.name for lora in self._config.loras),
            products=loaded.products,
        )

    def has_room(self, job: Job) -> bool:
        return bool(self._generator.has_room(job))

    def enqueue(self, job: Job) -> None:
        if job.prompt_logprobs is not None and not self._generator.paged:
            raise InvalidJob(
                "scoring a prompt needs flash-attn, which is missing", "prompt_logprobs"
            )
        try:
            exl2_job = self._make_job(job)
            self._generator.enqueue(exl2_job)
        except AssertionError as error:  # raised before the generator took the job
            raise InvalidJob(f"{type(error).__name__}: {error}") from error
        except BaseException as error:
            raise events.explained(error) from error
        self._jobs[job.identifier] = exl2_job

    def cancel(self, identifier: str) -> list[JobEvent]:
        return [] if (job := self._release(identifier)) is None else events.cancelled(job)

    def iterate(self) -> list[JobEvent]:
        """Run one step. A failed step is retried twice before the error is raised."""
        begin, is_decoding = time.monotonic(), self._generator.is_any_decoding
        try:
            told: list[results.Result] = self._generator.iterate()
        except BaseException as error:  # see Exl2Job
            fault = explain(error)
            if isinstance(fault, DeviceLost):
                raise fault from error
            self._generator.repair()
            self._num_failures += 1
            if self._num_failures > MAX_RETRIES:
                self._lacks_memory = isinstance(fault, OutOfMemory)
                raise fault from error
            self.work.retries += 1
            logger.warning("an iteration failed; trying again", exc_info=True)
            if isinstance(fault, OutOfMemory):
                torch.cuda.empty_cache()  # memory may only be fragmented
            return self._lost_events()
        self._budget.end(time.monotonic() - begin, is_decoding)
        self.work.mask_seconds = self._bills.seconds
        if any(type(result) is results.TokenTold for result in told):  # only a token proves success
            self._num_failures = 0
        return [event for result in told for event in self._events(result)]

    def is_waiting(self, wake: Callable[[], None]) -> bool:
        if not self._generator.is_waiting:
            return False
        assert self._masks is not None
        self._masks.wake_once(wake)
        return bool(self._generator.is_waiting)  # False if a mask arrived meanwhile

    @property
    def num_jobs(self) -> int:
        return int(self._generator.num_remaining_jobs())

    def occupancy(self) -> Occupancy:
        assert self._loaded is not None
        return occupancy(self._generator, self._loaded)

    def reconcile(self, known: Sequence[str]) -> tuple[int, list[str]]:
        held = self._generator.all_jobs()
        strays = [job for job in held if job.identifier not in known]
        for job in strays:
            self._generator.cancel(job)
        identifiers = {job.identifier for job in held}
        lost = [identifier for identifier in known if identifier not in identifiers]
        self._jobs = {i: job for i, job in self._jobs.items() if i in known and i not in lost}
        return len(strays), lost

    def reset(self) -> None:
        if self._lacks_memory and self._loaded is not None and self._loaded.shed():
            logger.warning("memory ran out; freeing the float16 copies of the weights")
            return self.rebuild()
        self._begin_recovery()
        self._generator.clear_queue()
        self._generator.reset_page_table()  # no cached page is reused
        self._prove()

    def rebuild(self) -> None:
        self._begin_recovery()
        self._generator = None
        self._generator = self._make_generator()
        self._prove()

    def reload(self) -> None:
        self._begin_recovery()
        self.close()
        self.open()

    def close(self) -> None:
        self._jobs.clear()
        self._generator = None
        if self._masks is not None:
            self._masks.close()
        if self._loaded is not None:
            self._loaded.unload()
        self._loaded = self._tokenizer = None
        gc.collect()
        torch.cuda.empty_cache()

    def _begin_recovery(self) -> None:
        self._lacks_memory = False
        self._jobs.clear()
        self._num_failures = MAX_RETRIES  # no retries until a step succeeds

    def _prove(self, prompt_tokens: int = WARM_UP, new_tokens: int = WARM_UP) -> None:
        """Generate some tokens before any job depends on the generator. The page table is empty
        afterwards.
        """
        prompt = tuple(i % WARM_UP for i in range(prompt_tokens))
        job = Job("warm-up", prompt, new_tokens, ignore_eos=True)
        sampler = Sampler(job, (), self._tokenizer.pieces, ())
        self._generator.prove(Exl2Job(job, (), sampler, self._detokenizer(job)))

    def _check_gap(self) -> None:
        """Raises ModelError if even the smallest part of a prompt takes longer than
        `max_gap_ms`.
        """
        gap, least, took = self._config.max_gap_ms, self._budget.least, list[float]()
        for _ in range(GAP_TRIALS if gap is not None else 0):
            begin = time.monotonic()
            self._prove(least + 1, 1)
            took.append(1000 * (time.monotonic() - begin))
        if gap is not None and min(took) > gap:
            raise ModelError(
                f"max_gap_ms is {gap:g}, but {least} tokens of a prompt take {min(took):.1f} ms",
                "max_gap_ms",
            )

    def _detokenizer(self, job: Job, ends: Collection[int] = ()) -> Detokenizer:
        return Detokenizer(self._tokenizer.pieces, job, self._tokenizer.contents, ends)

    def _make_generator(self) -> Any:
        loaded: Any = self._loaded  # not None here
        num_tokens = len(self._tokenizer.pieces)
        return make_generator(
            self._config, loaded, self._device, num_tokens, self.work, self._budget
        )

    def _make_job(self, job: Job) -> Exl2Job:
        assert self._grammars is not None and self._masks is not None
        ends = () if job.ignore_eos else {*self._tokenizer.eos_token_ids, *job.end_token_ids}
        stops = sorted({*job.stop_token_ids, *ends})
        rules: list[Rule] = []
        if job.constraint is not None:
            closing, bill = job.end_token_ids, self._bills.bill(job.client)
            rules.append(
                Matcher(job.constraint, self._grammars, self._masks, self._turns, bill, closing)
            )
        if job.forced is not None:
            rules.append(Forcing(job.forced, self._grammars.pieces))
        sampler = Sampler(job, stops, self._tokenizer.pieces, self._newline_ids, rules)
        return Exl2Job(job, stops, sampler, self._detokenizer(job, ends), ends)

    def _release(self, identifier: str) -> Exl2Job | None:
        """Release the job, if it exists, and return it."""
        job = self._jobs.pop(identifier, None)
        if job is not None:
            self._generator.cancel(job)
        return job

    def _lost_events(self) -> list[JobEvent]:
        """Ends the jobs whose results were lost in a failed iteration, either because they failed
        themselves or because a token was sampled but not sent. Returns their last events.
        """
        jobs = self._jobs.values()
        lost = [j for j in jobs if j.error is not None or j.num_sampled != j.num_told]
        for job in lost:
            self._release(job.identifier)
        return [events.failed(job.identifier, job.error) for job in lost]

    def _events(self, result: results.Result) -> list[JobEvent]:
        identifier = result.identifier
        if (job := self._jobs.get(identifier)) is None:
            return []
        match result:
            case results.TokenTold():  # nearly always
                job.num_told = job.num_sampled
                if result.end is not None:
                    del self._jobs[identifier]
                return events.told(job, result)
            case results.JobBegun():
                return [Started(identifier)]
            case results.JobMoved(_, is_parked):
                return [Parked(identifier, is_over=not is_parked)]
            case results.PromptComputed():
                return [events.prefill(job, result)]
            case results.PromptScored():
                job.is_scored = True
                if result.is_end:
                    self._release(identifier)
                return events.scored(job, result)
            case results.JobBroken(_, error):
                self._release(identifier)  # idempotent: the generator may have released it
                return [events.failed(identifier, error)]
