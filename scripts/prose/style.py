"""Our style, as proselint checks: phrases that read as translated, and what to write instead."""

from collections.abc import Iterator

from proselint.registry.checks import Check, CheckResult
from proselint.registry.checks.engine import Fancy, RegexOptions
from proselint.registry.checks.types import ExistenceSimple

from scripts.prose.sentences import long_sentences

MAX_WORDS = 35  # of a sentence, a piece of code being one word
PLACES = (  # that a server can be behind
    r"(?: (?:an?|the|your|one|another|its))?(?: (?:reverse|Unix|same|trusted))?"
    r" (?:prox|gateway|nginx|socket|balancer|prefix)"
)
BEGIN = r"(?:(?<=[.!?:;] )|(?<=\n )|(?<=- ))"  # of a sentence

PHRASES = {  # name: pattern, advice
    "tells": (
        r"(?<!can )(?<!can't )(?<!could )\b(?:tells?|told)\b"
        r"(?! (?:(?:\w+ )?apart|to|whether|if|which|how|me)\b)",
        "reports, shows, returns, says",
    ),
    "otherwise": (r"\b(?:unless|where|if) (?:said|asked) otherwise", "unless you set it"),
    "behind": (rf"\bbehind\b(?!{PLACES})", "after"),
    "neither": (r"\bneither\b(?![^.;:]*\bnor\b)", "neither needs a nor"),
    "also": (
        r", also (?:where|while|of|for|by|with|without|if|when|in|on|after|from|to|those|the)\b",
        "even if, including",
    ),
    "stands": (r"\bst(?:ands?|ood) (?:in|below|above|beside|behind|there|at|where)\b", "is"),
    "lies": (r"\b(?:lies|lie|lay) (?:in|on|at|under|beside|with|below)\b", "is"),
    "anew": (r"\banew\b", "again"),
    "dated": (
        r"\b(?:in vain|for want of|upon which|for ever|hence|thereby|shall)\b",
        "plain words",
    ),
    "of-own": (r"\b(?:an?|each|every|one) [\w-]+ of (?:its|their) own\b", "its own"),
    "but-for": (r"\bbut (?:for|of|in|by)\b(?! (?:the|an?) \w+ to\b)", "except"),
    "goes-by": (r"\b(?:goes|go|went) by\b", "depends on, follows"),
    "let-in": (r"\b(?:is|are|was|were|be) let (?:in|go|out)\b", "is accepted"),
    "asked-for": (r"\b(?:is|are) asked for\b", "say who requires it"),
    "ends-the-start": (r"\bends? the start\b", "the server doesn't start"),
    "as-may": (r"\bas (?:many|much|few|long) [\w ]{0,20}as may\b", "say the limit"),
    "keeps-from": (r"\bwould keep an? \w+ from\b", "say what is checked"),
    "those-that": (r"\b(?:is|are) those (?:that|which) are\b", "leave it out"),
    "vague": (r"\b(?:[Nn]obody|[Ww]hoever|so many|of which)\b", "name the component"),
}
EXACT = {
    "aside": (r", of [\w ]{1,20} or of [\w ]{1,20},", "say all or none"),
    "none-of": (BEGIN + r"None of (?:that|this) (?:is|was)\b", "we have not …"),
    "that-takes": (BEGIN + r"That (?:takes|asks)\b", "name the subject"),
    "what-first": (BEGIN + r"What [\w ]{3,40}, (?:it|they|the|a)\b", "begin with the subject"),
    "none": (r"(?<!there )\b(?:is|are) none\b(?! of)", "is not one, doesn't"),
    "else": (BEGIN + r"Else\b(?! if)", "Otherwise"),
    "of": (BEGIN + r"Of (?!course)", "begin with the subject"),
    "inversion": (
        BEGIN + r"(?:So|Nor|Neither) (?:are|is|do|does|did|was|were|must|has|have|can|may|will)\b",
        "begin with the subject",
    ),
}


def long(text: str, check: Check) -> Iterator[CheckResult]:
    for begin, end, words in long_sentences(text, MAX_WORDS):
        yield CheckResult(check.path, check.message.format(words), (begin, end), None)


def of_phrase(name: str, pattern: str, advice: str, is_case_insensitive: bool = True) -> Check:
    """A check for a phrase. A space in the pattern matches any white space, because lines break
    anywhere.
    """
    return Check(
        ExistenceSimple(pattern.replace(" ", r"\s")),
        Fancy(RegexOptions(is_case_insensitive)),
        f"switchyard.{name}",
        f"'{{}}': {advice}",
    )


CHECKS = (
    *(of_phrase(name, *parts) for name, parts in PHRASES.items()),
    *(of_phrase(name, *parts, is_case_insensitive=False) for name, parts in EXACT.items()),
    Check(long, path="switchyard.long", message="a sentence of {} words: split it"),
)
