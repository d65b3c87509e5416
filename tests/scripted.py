"""A model whose replies are given, for tests of what is said with one."""

from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

from glassformer.generation.decoding import Continuation


class Script(Continuation):
    """Gives the replies that it was made with, in place of a model's."""

    def __init__(self, engine: Tokenizer, replies: Sequence[str], room: int = 10_000) -> None:
        self.max_seq_len = room
        self.prompts: list[list[int]] = []
        self._engine = engine
        self._replies = list(replies)

    def unread(self, prompt: Sequence[int]) -> int:
        return len(prompt)

    def reply(
        self, prompt: Sequence[int], most: int | None = None, stop_tokens: Sequence[int] = ()
    ) -> Iterator[int]:
        self.prompts.append(list(prompt))
        text = self._replies.pop(0)
        tokens = self._engine.encode(text.removesuffix("^C")).ids
        for token in tokens[: min(most or 10_000, self.max_seq_len - len(prompt))]:
            yield token
            if token in stop_tokens:
                return
        if text.endswith("^C"):
            raise KeyboardInterrupt
