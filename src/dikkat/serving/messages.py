"""The requests and responses of the JSON API."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator
from pydantic_core import PydanticCustomError

from dikkat.translation import Search, Translation
from dikkat.translation.decoding.options import SearchPrecision
from dikkat.translation.decoding.translation import FLAGS
from dikkat.translation.decoding.translator import Markup
from dikkat.translation.terms import Terms

Number = Annotated[float, Field(allow_inf_nan=False)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, fields: Any) -> Any:
        """Raise an error for the first unknown name; pydantic would build one for each of 100,000 unknown names."""
        if isinstance(fields, dict):
            for name in fields:
                if name not in cls.model_fields:
                    expected = ", ".join(cls.model_fields)
                    raise PydanticCustomError(
                        "name", "got {name}; expected {expected}", {"name": repr(name)[:80], "expected": expected}
                    )
        return fields


class SearchRequest(_Message):
    """The fields of all requests."""

    model: str | None = Field(None, description="Name of the model; by default the first.")
    beam: int = Field(5, ge=1, strict=True, description="Hypotheses in the beam; 1: greedy search, the fastest.")
    n_best: int = Field(1, ge=1, strict=True, description="Translations to return, at most `beam`.")
    length_penalty: Annotated[Number, Field(ge=0, le=10)] | None = Field(
        None, description="Length penalty; by default the model's."
    )
    precision: SearchPrecision = "float32"
    attention: bool = Field(False, description="Whether to return the attention weights.")
    markup: Markup | None = Field(None, description="html: texts and translations are HTML with equally nested tags.")
    split: bool = Field(True, description="Whether to translate each sentence of a text separately, except in HTML.")
    terms: dict[str, str] = Field({}, max_length=1_000, description="Source terms with the translations to use.")

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments for `translate_n_best`."""
        search = Search(self.beam, self.n_best, self.length_penalty, precision=self.precision)
        return {"search": search, "markup": self.markup, "split": self.split, "terms": Terms.of(self.terms)}


class TranslateRequest(SearchRequest):
    """A sentence."""

    text: str


class BatchRequest(SearchRequest):
    """Sentences."""

    texts: Annotated[list[str], FailFast()]


class StoredSource(BaseModel):
    """A stored pair that took part in the probability of a token."""

    model_config = ConfigDict(from_attributes=True)

    source: str
    target: str
    weight: float = Field(description="The pair's share of the probability, from 0 to 1.")


class Translated(BaseModel):
    """A translation."""

    target: str
    score: float = Field(description="Log-probability, natural logarithm.")
    finished: bool = Field(description="False if the translation was cut at the maximum length.")
    source_tokens: list[str]
    target_tokens: list[str]
    unknown: list[str] = Field([], description="Words and marks of the source that the model does not know.")
    repeated: bool = Field(description="Whether the translation was cut because the model repeated itself.")
    lost: list[str] = Field([], description="Numbers, addresses and placeholders that the translation lacks.")
    invented: list[str] = Field([], description="Groups of digits in the translation that the source does not have.")
    unused_terms: list[str] = Field([], description="Source terms whose translation could not be used.")
    sources: list[list[StoredSource]] = Field(
        [], description="For each target token, the stored corrections that took part, if the model has any."
    )
    confidence: float | None = Field(
        None, description="Probability that the translation is right; null for a model without validation pairs."
    )
    flags: list[str] = Field([], description=f"Reasons to check the translation: {', '.join(FLAGS)}.")
    attention: list[list[float]] | None = Field(
        None, description="For each target token, the weights of the source tokens, which sum to 1."
    )

    @classmethod
    def of(cls, translation: Translation, *, attention: bool) -> "Translated":
        """Convert a translation of the library."""
        weights = translation.weights.tolist() if attention else None
        return cls.model_validate(translation, from_attributes=True).model_copy(update={"attention": weights})


class TranslateResponse(BaseModel):
    """The translations of a sentence, the best first."""

    translations: list[Translated]


class BatchResponse(BaseModel):
    """The translations of several sentences, in the order of the request."""

    results: list[TranslateResponse]


class ModelInfo(BaseModel):
    """A served model."""

    name: str
    languages: tuple[str, str] | None = Field(description="Source and target language, codes or names, if known.")
    cell: str
    score: str
    hidden_size: int
    source_tokens: int
    target_tokens: int


class Health(BaseModel):
    """The state of the server."""

    status: str


class ErrorMessage(BaseModel):
    """The error of a request."""

    error: str
