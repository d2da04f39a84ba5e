"""What goes in and out as JSON."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator
from pydantic_core import PydanticCustomError

from dikkat.translation import Search, Translation
from dikkat.translation.decoding.options import SearchPrecision
from dikkat.translation.decoding.steering import Step

Number = Annotated[float, Field(allow_inf_nan=False)]
Place = Annotated[int, Field(ge=0, le=2**31, strict=True)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _names(cls, given: Any) -> Any:
        """Refuse the first name that is none: of a hundred thousand, pydantic would make as many errors."""
        if isinstance(given, dict):
            for name in given:
                if name not in cls.model_fields:
                    expected = ", ".join(cls.model_fields)
                    raise PydanticCustomError(
                        "name", "got {name}; expected {expected}", {"name": repr(name)[:80], "expected": expected}
                    )
        return given


class Asked(_Message):
    """What every request may say."""

    model: str | None = Field(None, description="The model's name; without it, the first.")


class Searched(Asked):
    """How to look for a translation."""

    beam: int = Field(5, ge=1, strict=True, description="Hypotheses that go on; 1: greedy, and fastest.")
    n_best: int = Field(1, ge=1, strict=True, description="Translations to return, at most `beam`.")
    length_penalty: Annotated[Number, Field(ge=0, le=10)] = 1.0
    precision: SearchPrecision = "float32"
    attention: bool = Field(False, description="Whether to return where the model looked.")

    def search(self) -> Search:
        """As the library has it."""
        return Search(beam=self.beam, n_best=self.n_best, length_penalty=self.length_penalty, precision=self.precision)


class TranslateRequest(Searched):
    """A sentence."""

    text: str


class BatchRequest(Searched):
    """Sentences."""

    texts: Annotated[list[str], FailFast()]


class StreamRequest(Asked):
    """A sentence, to be followed word by word."""

    text: str
    likeliest: int = Field(5, ge=0, le=50, strict=True, description="Tokens to tell of at each step.")


class Word(_Message):
    """A token that is to be written at a step."""

    step: Place
    token: Place


class Pin(_Message):
    """An attention weight that is to be had at a step by a source position."""

    step: Place
    position: Place
    weight: Annotated[Number, Field(ge=0, le=1)]


class SteerRequest(StreamRequest):
    """A sentence, with words and weights of the reader's own."""

    words: Annotated[list[Word], FailFast()] = Field(default_factory=list, max_length=1_000)
    pins: Annotated[list[Pin], FailFast()] = Field(default_factory=list, max_length=10_000)


class AttentionRequest(Asked):
    """A sentence and a translation of it."""

    text: str
    translation: str


class Found(BaseModel):
    """A translation."""

    target: str
    score: float = Field(description="Log-probability, natural logarithm.")
    finished: bool = Field(description="Whether the model ended it, rather than the limit on its length.")
    source_tokens: list[str]
    target_tokens: list[str]
    attention: list[list[float]] | None = Field(
        None, description="For each target token, the weights of the source tokens; they add up to 1."
    )

    @classmethod
    def of(cls, found: Translation, *, attention: bool) -> "Found":
        """As the library has it."""
        return cls(
            target=found.target,
            score=found.score,
            finished=found.finished,
            source_tokens=found.source_tokens,
            target_tokens=found.target_tokens,
            attention=found.weights.tolist() if attention else None,
        )


class TranslateResponse(BaseModel):
    """Of a sentence, its translations, best first."""

    translations: list[Found]


class BatchResponse(BaseModel):
    """Of each sentence, in their order."""

    results: list[TranslateResponse]


class Candidate(BaseModel):
    """A token that might have come."""

    token: int
    label: str
    log_probability: float


class Taken(BaseModel):
    """A step of a translation."""

    step: int
    token: int
    label: str
    log_probability: float
    attention: list[float]
    likeliest: list[Candidate]

    @classmethod
    def of(cls, index: int, step: Step, labels: list[str]) -> "Taken":
        """As the library has it; the labels are of the step's token and of its likeliest ones."""
        own, *others = labels
        return cls(
            step=index,
            token=step.token,
            label=own,
            log_probability=step.log_probability,
            attention=step.weights.tolist(),
            likeliest=[
                Candidate(token=token, label=label, log_probability=score)
                for (token, score), label in zip(step.likeliest, others, strict=True)
            ],
        )


class SteerResponse(BaseModel):
    """A translation, step by step."""

    translation: Found
    steps: list[Taken]


class ModelInfo(BaseModel):
    """A model that is served."""

    name: str
    cell: str
    score: str
    hidden_size: int
    source_tokens: int
    target_tokens: int


class Health(BaseModel):
    """Whether the server can work."""

    status: str


class Problem(BaseModel):
    """What is wrong with a request, and what is expected."""

    error: str
