"""Huge texts made short before they are encoded, so that 10 MB cost milliseconds where 256 ids are wanted.

Called by the tokenizer from any thread; keeps nothing but what it has learnt about single characters. The invariant:
the short text has the same truncated ids as the long one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

_CHUNK = 8_192  # characters looked at in one go
_STRIDE = 65_536  # characters passed over in one go
_PAUSE_S = 0.0001
_MARGIN = 256  # characters before a cut whose ids are not trusted; added tokens are shorter than half of it


def refuse_surrogates(text: str) -> None:
    """Raises ValueError if there is a lone surrogate in a text."""
    if text.isascii():
        return  # which is known without a look
    for start in range(0, len(text), _STRIDE):
        if start:
            _give_way()
        try:
            text[start : start + _STRIDE].encode()
        except UnicodeEncodeError as error:
            place = start + error.start
            raise ValueError(
                f"the text holds a lone surrogate (U+{ord(text[place]):04X}) at character {place}, which is not text; "
                "remove it, e.g. with text.encode('utf-8', 'replace').decode()"
            ) from None


def _give_way() -> None:
    """Let other threads have the interpreter now, an event loop perhaps: it would come to them only after the switch
    interval, and to let go of it without a pause is no help, for then nobody is there to take it in that moment."""
    time.sleep(_PAUSE_S)


class _Rules:
    """How to shorten text that is made of known characters; the arguments are insides of character classes."""

    def __init__(self, word: str, dropped: str, space: str, keep: int) -> None:
        drop, gap, spaces, run = (
            f"[{x}]" if x else "[^\\s\\S]" for x in (dropped, space + dropped, space, word + dropped)
        )
        self._keep = keep
        self._dropped = re.compile(f"({drop}){drop}+")
        self._spaces = re.compile(f"{drop}?{spaces}(?:{drop}?{spaces})+{drop}?")
        self._words = re.compile(f"({run}{{{keep}}}){run}+")
        self._long_word, self._more_word = re.compile(f"{run}{{{keep}}}"), re.compile(f"{run}*")
        self._drop_end, self._more_dropped = re.compile(drop), re.compile(f"{drop}*")
        self._gap_end, self._more_gap = re.compile(spaces), re.compile(f"{gap}*")
        before, behind = (f"[^{x}]" if x else "[\\s\\S]" for x in (word + dropped, space + dropped))
        self._edge = re.compile(f"{before}(?={behind})")

    def squeeze(self, text: str) -> str:
        """``text`` with one of several spaces or dropped characters, and with long words cut short."""
        return self._words.sub(r"\1", self._spaces.sub(" ", self._dropped.sub(r"\1", text)))

    def settled(self, text: str) -> int:
        """How much of a squeezed text no more squeezing would change, whatever came behind it: up to a place near its
        end where a run of neither kind goes on; 0 if there is none."""
        place = 0
        for found in self._edge.finditer(text, max(0, len(text) - 3 * self._keep)):
            place = found.end()
        return place

    def skip(self, kept: str, text: str, place: int) -> int:
        """The first place from ``place`` on where ``text`` does not merely continue what ``kept`` ends with."""
        if self._long_word.fullmatch(kept[-self._keep :]):
            more = self._more_word
        elif self._gap_end.fullmatch(kept[-1:]):
            more = self._more_gap
        elif self._drop_end.fullmatch(kept[-1:]):
            more = self._more_dropped
        else:
            return place
        while True:
            stop = min(place + _STRIDE, len(text))
            found = more.match(text, place, stop)
            place = found.end() if found is not None else place
            if place < stop or stop == len(text):
                return place
            _give_way()


class Clipper:
    """Makes a huge text short without changing its first ids, for tokenizers whose words are BERT's.

    There a word never reaches over whitespace, punctuation or a Chinese character, and a word with too many characters
    is one unknown id. So the ids of a prefix are right up to its last word; and where words are too long for a short
    prefix to hold enough of them, they can be shortened, like runs of whitespace and of characters that the normaliser
    drops. Which character does what is asked of the tokenizer itself.
    """

    def __init__(self, full: Any, longest_word: int) -> None:
        self._full = full
        self._keep = 2 * (longest_word + 2)  # of a run in which at least every second character counts
        self._kinds: dict[str, str] = {}

    @classmethod
    def of(cls, full: Any, form: dict[str, Any]) -> Clipper | None:
        """A clipper for this tokenizer, or None where its words are not known to be BERT's."""
        parts = [(form.get(name) or {}).get("type") for name in ("normalizer", "pre_tokenizer", "model")]
        if parts != ["BertNormalizer", "BertPreTokenizer", "WordPiece"]:
            return None
        for added in form["added_tokens"]:
            # "[SEP]": it starts and ends with punctuation, so no run of letters or spaces reaches into it from outside.
            content = added["content"]
            plain = re.fullmatch(r"[!-/:-@\[-`{-~][!-~]*[!-/:-@\[-`{-~]", content) and len(content) < _MARGIN // 2
            if not plain or added["normalized"] or added["single_word"]:
                return None
        longest_word = int(form["model"]["max_input_chars_per_word"])
        return cls(full, longest_word) if longest_word < _MARGIN // 2 else None

    def count(self, text: str) -> int:
        """The number of ids of ``text``, without special tokens."""
        return len(self._encoded(text))

    def _encoded(self, text: str) -> Any:
        return self._full.encode_batch([text], add_special_tokens=False)[0]  # without the GIL, as `encode` is not

    def clip(self, text: str, need: int) -> str:
        """A text with the same first ``need`` ids as ``text``, and with more than these only if ``text`` has more."""
        refuse_surrogates(text)
        prefix = text[: 8 * need + 2 * _MARGIN]
        if len(prefix) == len(text) or self._has(prefix, need):
            return prefix
        limit = (self._keep + 4) * (need + 2) + 2 * _MARGIN  # squeezed text of this length has more than `need` words
        done = kept = ""  # the first part is squeezed for good, so that not all of it is looked at again and again
        place = 0
        seen: set[str] = set()
        rules = self._rules(seen)
        while place < len(text):
            chunk = text[place : place + _CHUNK]
            place += len(chunk)
            if not seen.issuperset(chunk):
                seen.update(chunk)
                rules = self._rules(seen)
            kept = rules.squeeze(kept + chunk)
            if len(done) + len(kept) > limit:
                return (done + kept)[:limit]
            place = rules.skip(done[-self._keep :] + kept, text, place)
            settled = rules.settled(kept)
            done, kept = done + kept[:settled], kept[settled:]
            _give_way()
        return done + kept

    def _has(self, prefix: str, need: int) -> bool:
        """Whether the first ``need`` ids of a prefix are sure to be those of the whole text, and not all of them."""
        encoding = self._encoded(prefix)
        if len(encoding) <= need:
            return False
        words = encoding.word_ids
        return bool(words[need - 1] != words[-1] and encoding.offsets[need - 1][1] < len(prefix) - _MARGIN)

    def _rules(self, chars: Iterable[str]) -> _Rules:
        found = {"word": "", "dropped": "", "space": "", "other": ""}
        for char in chars:
            kind = self._kinds.get(char)
            if kind is None:
                kind = self._kinds[char] = self._kind(char)
            found[kind] += re.escape(char)
        return _Rules(found["word"], found["dropped"], found["space"], self._keep)

    def _kind(self, char: str) -> str:
        """word: lengthens the word beside it; dropped; space; other: it is, or begins, a word of its own."""
        between = self._full.normalizer.normalize_str(f"a{char}a")
        words = [word for word, _ in self._full.pre_tokenizer.pre_tokenize_str(between)]
        if len(words) == 1:
            return "dropped" if words == ["aa"] else "word"
        return "space" if words == ["a", "a"] else "other"
