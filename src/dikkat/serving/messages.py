"""The messages that go in and out as JSON."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator
from pydantic_core import PydanticCustomError

from dikkat.translation import Search, Translation
from dikkat.translation.decoding.options import SearchPrecision
from dikkat.translation.decoding.translator import Markup

Number = Annotated[float, Field(allow_inf_nan=False)]


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


class SearchRequest(_Message):
    """The part that all requests have."""

    model: str | None = Field(None, description="The model's name; without it, the first.")
    beam: int = Field(5, ge=1, strict=True, description="Hypotheses that go on; 1: greedy, and fastest.")
    n_best: int = Field(1, ge=1, strict=True, description="Translations to return, at most `beam`.")
    length_penalty: Annotated[Number, Field(ge=0, le=10)] | None = Field(None, description="Without it, the model's.")
    precision: SearchPrecision = "float32"
    attention: bool = Field(False, description="Whether to return where the model looked.")
    markup: Markup | None = Field(None, description="html: texts and translations are HTML, their tags nested alike.")

    split: bool = Field(True, description="Whether the sentences of a text are translated one by one; not in HTML.")

    def options(self) -> dict[str, Any]:
        """The library's own form of it."""
        search = Search(self.beam, self.n_best, self.length_penalty, precision=self.precision)
        return {"search": search, "markup": self.markup, "split": self.split}


class TranslateRequest(SearchRequest):
    """A sentence."""

    text: str


class BatchRequest(SearchRequest):
    """Sentences."""

    texts: Annotated[list[str], FailFast()]


class Translated(BaseModel):
    """A translation."""

    target: str
    score: float = Field(description="Log-probability, natural logarithm.")
    finished: bool = Field(description="Whether the model ended it, rather than the limit on its length.")
    source_tokens: list[str]
    target_tokens: list[str]
    unknown: list[str] = Field([], description="Words and marks of the source that the model has not learnt.")
    repeated: bool = Field(description="Whether it was cut because the model repeated itself.")
    attention: list[list[float]] | None = Field(
        None, description="For each target token, the weights of the source tokens; they add up to 1."
    )

    @classmethod
    def of(cls, translation: Translation, *, attention: bool) -> "Translated":
        """The message of the library's translation."""
        weights = translation.weights.tolist() if attention else None
        return cls.model_validate(translation, from_attributes=True).model_copy(update={"attention": weights})


class TranslateResponse(BaseModel):
    """The translations of a sentence, best first."""

    translations: list[Translated]


class BatchResponse(BaseModel):
    """The answers to several sentences, in their order."""

    results: list[TranslateResponse]


class ModelInfo(BaseModel):
    """A model that is served."""

    name: str
    cell: str
    score: str
    hidden_size: int
    source_tokens: int
    target_tokens: int


class Health(BaseModel):
    """The state of the server."""

    status: str


class ErrorMessage(BaseModel):
    """The fault of a request, and what is expected."""

    error: str
