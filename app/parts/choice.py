"""One choice of a whole answer, and the selection of the best choices. Pure."""

from collections.abc import Sequence

from switchyard import engine


class Choice:
    """The events of one job, collected: text, logprobs, end."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.prompt_logprobs: tuple[engine.TokenLogprob | None, ...] = ()
        self.token_ids: list[int] = []
        self.logprobs: list[engine.TokenLogprob] = []  # logprobs of the tokens in the answer
        self.finished: engine.Finished | None = None

    @property
    def mean_logprob(self) -> float:
        """The mean over all tokens of the choice, including its stop token."""
        logprobs = [token.logprob for token in self.logprobs]
        if self.finished is not None and self.finished.stop_token is not None:
            logprobs.append(self.finished.stop_token.logprob)
        return sum(logprobs) / max(len(logprobs), 1)

    def add(self, event: engine.JobEvent) -> None:
        match event:
            case engine.PromptLogprobs():
                self.prompt_logprobs = event.logprobs
            case engine.Chunk():
                self.texts.append(event.text)
                self.token_ids += event.token_ids
                self.logprobs += event.logprobs or ()
            case engine.Finished():
                self.finished = event


def best_of(choices: Sequence[Choice], num_jobs: int, n: int) -> list[Choice]:
    """The `n` choices of each prompt with the highest mean logprob, best first.

    `choices` holds `num_jobs` choices for the first prompt, then those for the next.
    """
    if num_jobs == n:
        return list(choices)
    return [
        choice
        for start in range(0, len(choices), num_jobs)
        for choice in sorted(
            choices[start : start + num_jobs], key=lambda c: c.mean_logprob, reverse=True
        )[:n]
    ]
