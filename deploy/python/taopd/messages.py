"""The requests to a teacher, and its answers.

Shapes: P is the number of token ids, R = P - start the number of scored rows, k is top_k, M the number of candidates
per row, V is head_vocab_size. Row r is the distribution of token start + r given the tokens before it. All log-probs
are natural logarithms under the softmax of logits / temperature.
"""

import dataclasses
import operator
from typing import Any, Sequence, TypeAlias

import grpc
import numpy as np
import numpy.typing as npt

from taopd import wire
from taopd.retry import TeacherError, status_code

PROTOCOL_VERSION = 1
FINISH_REASONS = {0: None, 1: "stop", 2: "length"}
Ids: TypeAlias = Sequence[int] | npt.NDArray[np.integer]


def ids_array(ids: Any, name: str, num_dims: int) -> npt.NDArray[np.int32]:
    """Returns token ids as int32. Raises ValueError if they are not whole numbers in [0, 2^31)
    of this many dimensions."""
    array = np.asarray(ids)
    if array.ndim != num_dims:
        raise ValueError(f"{name} has {array.ndim} dimensions, must have {num_dims}")
    if array.size == 0:
        return array.astype("<i4")
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name} has the type {array.dtype}, must be integers")
    if array.min() < 0 or array.max() >= 1 << 31:
        raise ValueError(f"{name} has the id {array.min() if array.min() < 0 else array.max()} outside [0, 2^31)")
    return array.astype("<i4", copy=False)


def whole_number(value: Any, name: str, least: int, bits: int) -> int:
    """Returns an integer. Raises ValueError if it is not a whole number in [least, 2^bits)."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number < 1 << bits:
        raise ValueError(f"{name} {value} is not a whole number in [{least}, 2^{bits})")
    return number


@dataclasses.dataclass(frozen=True)
class TeacherInfo:
    """The served model; teacher.proto describes each field."""
    model_name: str
    revision: str
    tokenizer_hash: str
    tokenizer_vocab_size: int
    head_vocab_size: int
    max_model_len: int
    max_top_k: int
    max_candidates: int
    dtype: str
    supports_temperature: bool
    protocol_version: int
    max_dense_vocab_size: int
    eos_token_ids: list[int]

    @classmethod
    def of_reply(cls, reply: dict[str, Any]) -> "TeacherInfo":
        info = cls(**{field.name: reply[field.name] for field in dataclasses.fields(cls)})
        if info.protocol_version != PROTOCOL_VERSION:
            raise TeacherError(grpc.StatusCode.UNIMPLEMENTED,
                               f"protocol_version {info.protocol_version} of the teacher is not "
                               f"known; this client speaks version {PROTOCOL_VERSION}")
        return info


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """The scores of one sequence. The arrays are float32, ids and ranks int32; they belong to the caller. Arrays that
    were not requested are None.

    Attributes:
        ids, logprobs: [R, k] the most probable ids in descending order of probability, and their log-probs.
        log_tail: [R] the log of the probability of all other ids, computed by the teacher as a log-sum-exp over them;
            -inf if k covers the vocabulary.
        sampled_logprobs: [R] the log-prob of the sequence's own token.
        sampled_ranks: [R] its rank, from 1.
        entropy: [R] of the whole distribution, in nats.
        candidate_logprobs: [R, M] the log-probs of candidate_ids.
        candidate_log_tail: [R] the log of the probability outside the row's ids and candidates.
        log_support_mass, log_sum_exp: [R] of the row's ids, and of logits / temperature.
        dense_logprobs: [R, V] the log-probs of every id.
    """
    request_id: str
    revision: str
    ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    log_tail: npt.NDArray[np.float32]
    sampled_logprobs: npt.NDArray[np.float32]
    sampled_ranks: npt.NDArray[np.int32] | None
    entropy: npt.NDArray[np.float32] | None
    candidate_logprobs: npt.NDArray[np.float32] | None
    candidate_log_tail: npt.NDArray[np.float32] | None
    log_support_mass: npt.NDArray[np.float32] | None
    log_sum_exp: npt.NDArray[np.float32] | None
    dense_logprobs: npt.NDArray[np.float32] | None


@dataclasses.dataclass(eq=False)
class ScoreRequest:
    """One sequence to score.

    Attributes:
        token_ids: [P] the sequence, prompt and response.
        start: the first scored position, 1 <= start < P: usually the length of the prompt.
        top_k: k.
        candidate_ids: [R, M] ids whose log-probs are wanted.
        entropy, rank, support_stats, dense: which optional arrays to return (log_support_mass and log_sum_exp belong to
            support_stats).
        expected_revision: the revision that must be served; empty: that of Teacher.info().
        request_id: returned with the scores; empty: a number.
    """
    token_ids: Ids
    start: int
    top_k: int
    _: dataclasses.KW_ONLY
    temperature: float = 1.0
    candidate_ids: Any = None
    entropy: bool = False
    rank: bool = False
    support_stats: bool = False
    dense: bool = False
    expected_revision: str = ""
    request_id: str = ""

    def __post_init__(self) -> None:
        self.token_ids = ids_array(self.token_ids, "token_ids", 1)
        self.start, self.top_k = whole_number(self.start, "start", 0, 32), whole_number(self.top_k, "top_k", 0, 32)
        if not 1 <= self.start < len(self.token_ids):
            raise ValueError(f"start {self.start} must be at least 1 and less than the {len(self.token_ids)} token_ids")
        if not self.temperature > 0:
            raise ValueError(f"temperature {self.temperature} must be above 0")
        if self.candidate_ids is not None:
            self.candidate_ids = ids_array(self.candidate_ids, "candidate_ids", 2)
            if len(self.candidate_ids) != self.num_rows or self.candidate_ids.shape[1] == 0:
                raise ValueError(f"candidate_ids has the shape {self.candidate_ids.shape}, must be [{self.num_rows}, M] "
                                 f"with M of at least 1, one row per token from start {self.start}")

    @property
    def num_rows(self) -> int:
        """R."""
        return len(self.token_ids) - self.start

    @property
    def num_candidates(self) -> int:
        """M, 0 without candidates."""
        return 0 if self.candidate_ids is None else self.candidate_ids.shape[1]

    def encode(self, info: TeacherInfo) -> bytes:
        return wire.encode("ScoreRequest", {
            "request_id": self.request_id, "token_ids": self.token_ids, "score_start": self.start, "top_k": self.top_k,
            "temperature": self.temperature, "num_candidates": self.num_candidates, "candidate_ids": self.candidate_ids,
            "options": {"entropy": self.entropy, "rank": self.rank, "support_stats": self.support_stats,
                        "dense": self.dense},
            "expected_revision": self.expected_revision or info.revision})

    def scores_of(self, reply: dict[str, Any], info: TeacherInfo) -> Scores:
        """Returns the arrays of a reply in their shapes. Raises DATA_LOSS if they do not fit the request."""
        rows = self.num_rows
        columns = {"ids": self.top_k, "logprobs": self.top_k, "log_tail": None, "sampled_logprobs": None,
                   "sampled_ranks": None if self.rank else 0, "entropy": None if self.entropy else 0,
                   "candidate_logprobs": self.num_candidates, "candidate_log_tail": None if self.num_candidates else 0,
                   "log_support_mass": None if self.support_stats else 0,
                   "log_sum_exp": None if self.support_stats else 0,
                   "dense_logprobs": info.head_vocab_size if self.dense else 0}
        arrays: dict[str, np.ndarray | None] = {}
        for name, count in columns.items():
            array, shape = reply[name], (rows,) if count is None else (rows, count)
            if array.size != np.prod(shape):
                raise self._bad_reply(f"{name} has {array.size} numbers, must have {np.prod(shape)}")
            if array.dtype == np.float32 and np.isnan(array).any():
                raise self._bad_reply(f"{name} has a number that is NaN")
            if name == "ids" and array.size and not 0 <= array.min() <= array.max() < info.head_vocab_size:
                raise self._bad_reply(f"an id is outside [0, {info.head_vocab_size})")
            wanted = count != 0 or name in ("ids", "logprobs")
            arrays[name] = array.reshape(shape) if wanted else None
        if reply["request_id"] != self.request_id:
            raise self._bad_reply(f"the reply is of request {reply['request_id']!r}")
        return Scores(request_id=self.request_id, revision=reply["revision"], **arrays)  # type: ignore[arg-type]

    def _bad_reply(self, problem: str) -> TeacherError:
        return TeacherError(grpc.StatusCode.DATA_LOSS, f"the reply to request {self.request_id!r}: {problem}")

    def result_of(self, reply: dict[str, Any], info: TeacherInfo) -> Scores | TeacherError:
        """Returns the result in a message of ScoreStream."""
        if reply["error"] is not None:
            return TeacherError(status_code(reply["error"]["code"]), reply["error"]["message"])
        if reply["response"] is None:
            return self._bad_reply("it has neither scores nor an error")
        try:
            return self.scores_of(reply["response"], info)
        except TeacherError as error:
            return error


@dataclasses.dataclass(frozen=True, eq=False)
class Generation:
    """Tokens of one sequence: all of them, or with stream_tokens the next one.

    Attributes:
        index: the sequence, 0 <= index < n.
        token_ids: [G] int32; an end-of-sequence or stop id that ends the sequence is among them.
        logprobs: [G] the log-probs under softmax(processed logits / temperature), before min_p, top_k and top_p.
        raw_logprobs: [G] those under softmax(logits), if requested, else None.
        finish_reason: "stop", "length", or None if more tokens follow.
        revision: the weights that generated the tokens; the same for all tokens of a sequence.
    """
    index: int
    token_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    raw_logprobs: npt.NDArray[np.float32] | None
    finish_reason: str | None
    revision: str


@dataclasses.dataclass(eq=False)
class GenerateRequest:
    """A prompt and the way to continue it. Options that are None have the model's default;
    teacher.proto describes each.

    Attributes:
        token_ids: [P] the prompt.
        max_new_tokens: P + max_new_tokens must not exceed max_model_len.
        n: the number of sequences.
        seed: sequence i is drawn with seed + i. None: each request draws anew.
        stream_tokens: one Generation per token instead of one per sequence.
    """
    token_ids: Ids
    max_new_tokens: int
    _: dataclasses.KW_ONLY
    n: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: Ids | None = None
    min_new_tokens: int = 0
    stop_token_ids: Ids | None = None
    ignore_eos: bool = False
    seed: int | None = None
    raw_logprobs: bool = False
    stream_tokens: bool = False
    cache_salt: str = ""
    expected_revision: str = ""

    def __post_init__(self) -> None:
        self.token_ids = ids_array(self.token_ids, "token_ids", 1)
        limits = [("n", 1, 32), ("max_new_tokens", 1, 32), ("min_new_tokens", 0, 32)]
        limits += [limit for limit in (("seed", 0, 64), ("top_k", -1, 31)) if getattr(self, limit[0]) is not None]
        for name, least, bits in limits:
            setattr(self, name, whole_number(getattr(self, name), name, least, bits))
        for name in ("allowed_token_ids", "stop_token_ids"):
            if getattr(self, name) is not None:
                setattr(self, name, ids_array(getattr(self, name), name, 1))
        if self.allowed_token_ids is not None and len(self.allowed_token_ids) == 0:
            raise ValueError("allowed_token_ids is not None and empty")
        if self.logit_bias is not None:
            ids = ids_array(list(self.logit_bias), "logit_bias", 1).tolist()
            self.logit_bias = dict(zip(ids, self.logit_bias.values()))

    def encode(self, info: TeacherInfo) -> bytes:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        sampling = {name: values.pop(name, None) for name, _ in wire.MESSAGES["SamplingOptions"].values()}
        values |= {"expected_revision": self.expected_revision or info.revision}
        return wire.encode("GenerateRequest", {"sampling": sampling, **values})

    def generation_of(self, reply: dict[str, Any]) -> Generation:
        """Raises DATA_LOSS if the reply does not fit the request."""
        count, raw = reply["token_ids"].size, reply["raw_logprobs"]
        num_raw = count if self.raw_logprobs else 0
        if reply["logprobs"].size != count or raw.size != num_raw or reply["index"] >= self.n:
            raise TeacherError(grpc.StatusCode.DATA_LOSS,
                               f"a reply of sequence {reply['index']} has {count} token_ids, "
                               f"{reply['logprobs'].size} logprobs and {raw.size} raw_logprobs")
        return Generation(reply["index"], reply["token_ids"], reply["logprobs"], raw if self.raw_logprobs else None,
                          FINISH_REASONS.get(reply["finish_reason"]), reply["revision"])


def in_order(generations: list[Generation], n: int) -> list[Generation]:
    """Returns one finished sequence for each index. Raises DATA_LOSS if one is missing."""
    found = {generation.index: generation for generation in generations if generation.finish_reason}
    if len(generations) != n or len(found) != n:
        raise TeacherError(grpc.StatusCode.DATA_LOSS, f"{len(found)} of {n} sequences have come to their end")
    return [found[index] for index in range(n)]
