"""transformers' own float32: what a model would write, and how likely a text is."""

from collections.abc import Sequence

import torch


class Reference:
    """The model at `path`, on a GPU where torch uses one."""

    def __init__(self, path: str) -> None:
        import transformers  # half a second, for each worker of pytest

        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self._model = model.to(device).eval()
        self.tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(path)

    @torch.inference_mode()
    def logprobs(self, token_ids: Sequence[int], start: int) -> torch.Tensor:
        """Logprobs of all tokens, after each of `token_ids` from the one before `start` to the
        last but one.
        """
        inputs = torch.tensor([token_ids], device=self._model.device)
        kept = len(token_ids) - start + 1
        logits = self._model(inputs, logits_to_keep=kept).logits[0, :-1]
        return torch.log_softmax(logits.float(), -1).cpu()

    def prompt(self, messages: list[dict[str, str]]) -> list[int]:
        text = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def gaps(self, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
        """By how many nats the likeliest token is likelier than each of the answer's."""
        rows = self.logprobs([*prompt, *answer], len(prompt))
        taken = rows.gather(1, torch.tensor(answer)[:, None])[:, 0]
        return (rows.max(-1).values - taken).tolist()

    def scores(self, token_ids: Sequence[int]) -> list[float]:
        """The logprob of each token but the first."""
        rows = self.logprobs(token_ids, 1)
        return rows.gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0].tolist()
