"""Conditions on columns as text: ``time >= '2024-01-01' and lat between 10 and 20``.

Owns the little language and what it means; nothing is evaluated but by the functions here. A condition says of
each row what an SQL engine would: numbers are compared by value, NaN is above all other numbers, a time that is
missing matches nothing. A time without a zone is in UTC.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct

from icechunk_arrow.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Literal", "Predicate", "Term", "parse_predicate"]

Literal = Decimal | str | bool
"""A number, exactly as it was written; a text, or a time as text; true or false."""

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)
    | (?P<word>[^\W\d]\w*)
    | (?P<sign><=|>=|<>|!=|==|=|<|>)
    | (?P<mark>[(),])
    | (?P<end>\Z)
    | (?P<wrong>\S\w*)
    )""",
    re.VERBOSE,
)
_WORD = re.compile(r"[^\W\d]\w*")
_KEYWORDS = {"and", "between", "in", "true", "false"}
_UNKNOWN = {"or", "not", "is", "null", "like", "ilike", "rlike", "case", "exists", "select"}
_SAME_SIGN = {"==": "=", "!=": "<>"}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_LARGEST = Decimal("1e308")
_COMPARISON = "a comparison (= == != <> < <= > >=), between or in"
_LITERAL = "a number, a 'text', a time as '2024-01-01 12:00', true or false"
_OPERAND = "the name of a dimension"
_NEXT = "'and', or the end"


class Term(Struct, frozen=True, kw_only=True):
    """What is asked of one column: ``operator`` is one of ``= <> < <= > >= in``."""

    column: str
    operator: str
    values: tuple[Literal, ...]

    def __str__(self) -> str:
        values = [_written(each) for each in self.values]
        plain = _WORD.fullmatch(self.column) and self.column.lower() not in _KEYWORDS | _UNKNOWN
        name = self.column if plain else f"`{self.column.replace('`', '``')}`"
        shown = f"({', '.join(values)})" if self.operator == "in" else values[0]
        return f"{name} {self.operator} {shown}"


class Predicate(Struct, frozen=True, kw_only=True):
    """Terms that all have to hold."""

    terms: tuple[Term, ...]

    def __str__(self) -> str:
        return " and ".join(map(str, self.terms))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it speaks of, in the order in which it does first."""
        return tuple(dict.fromkeys(term.column for term in self.terms))

    def of(self, column: str) -> tuple[Term, ...]:
        """Give the terms about one column."""
        return tuple(term for term in self.terms if term.column == column)


def parse_predicate(text: str) -> Predicate:
    """Read a condition.

    Raises
    ------
    InvalidInputError
        Something stands there that the language has not; ``token`` and ``position`` say what and where.
    """
    return _Parser(text).parse()


def _written(value: Literal) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, Decimal) else "'" + value.replace("'", "''") + "'"


class _Token(Struct, frozen=True):
    kind: str
    text: str
    start: int

    @property
    def word(self) -> str:
        """The keyword that it may be; a name in quotes is none."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def is_name(self) -> bool:
        return self.kind == "quoted" or (
            self.kind == "word" and self.word not in _KEYWORDS | _UNKNOWN
        )


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while True:
        match = _TOKEN.match(text, at)
        assert match is not None, "the last alternatives match whatever comes"
        kind = match.lastgroup
        assert kind is not None
        yield _Token(kind, match[kind], match.start(kind))
        if kind == "end":
            return
        at = match.end()


class _Parser:
    """Goes through the tokens once; each method leaves them behind what it read."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidInputError(f"a condition is a text, not {type(text).__name__}")
        self._text = text
        self._tokens = list(_tokens(text))
        self._at = 0
        self._depth = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        token = self._next
        self._at += 1
        return token

    def _refuse(self, token: _Token, allowed: str) -> NoReturn:
        fault = "ends" if token.kind == "end" else f"has {token.text!r}"
        advice = ""
        if token.kind == "wrong" and token.text[0] in "'\"`":
            advice = "; a quote is not closed"
        elif token.word == "or":
            advice = "; for 'or' use in (…), or Spark's own filter on the rows"
        elif token.word == "null":
            advice = "; nothing compares with null"
        raise InvalidInputError(
            f"the condition {self._text!r} {fault} at {token.start + 1}, where {allowed} is allowed{advice}",
            token=token.text,
            position=token.start,
        )

    def parse(self) -> Predicate:
        terms = self._conjunction()
        if self._next.kind != "end":
            self._refuse(self._next, _NEXT)
        return Predicate(terms=tuple(terms))

    def _conjunction(self) -> list[Term]:
        terms = self._terms()
        while self._next.word == "and":
            self._take()
            terms += self._terms()
        return terms

    def _terms(self) -> list[Term]:
        token = self._take()
        if token.text == "(" and token.kind == "mark":
            self._depth += 1
            if self._depth > 100:
                self._refuse(token, "fewer brackets in one another")
            terms = self._conjunction()
            self._close(f"{_NEXT.split(',', maxsplit=1)[0]} or ')'")
            self._depth -= 1
            return terms
        if token.is_name:
            return self._about(_name(token))
        value = self._find_literal(token)
        if value is None:
            self._refuse(token, f"{_OPERAND} or {_LITERAL}")
        sign = self._take()
        if sign.kind != "sign":
            self._refuse(sign, "a comparison (= == != <> < <= > >=)")
        column = self._take()
        if not column.is_name:
            self._refuse(column, _OPERAND)
        if self._next.text == "(":
            self._refuse(self._next, f"{_NEXT} (there are no functions)")
        operator = _SAME_SIGN.get(sign.text, sign.text)
        return [
            Term(column=_name(column), operator=_FLIPPED.get(operator, operator), values=(value,))
        ]

    def _about(self, column: str) -> list[Term]:
        token = self._take()
        if token.kind == "sign":
            operator = _SAME_SIGN.get(token.text, token.text)
            return [Term(column=column, operator=operator, values=(self._literal(),))]
        if token.word == "between":
            low = self._literal()
            middle = self._take()
            if middle.word != "and":
                self._refuse(middle, "'and' and the upper bound")
            high = self._literal()
            return [
                Term(column=column, operator=">=", values=(low,)),
                Term(column=column, operator="<=", values=(high,)),
            ]
        if token.word == "in":
            opening = self._take()
            if opening.text != "(":
                self._refuse(opening, "'(' and a list")
            values = [self._literal()]
            while self._next.text == ",":
                self._take()
                values.append(self._literal())
            self._close("',' or ')'")
            return [Term(column=column, operator="in", values=tuple(values))]
        functions = " (there are no functions)" if token.text == "(" else ""
        return self._refuse(token, _COMPARISON + functions)

    def _close(self, allowed: str) -> None:
        token = self._take()
        if token.text != ")" or token.kind != "mark":
            self._refuse(token, allowed)

    def _literal(self) -> Literal:
        token = self._take()
        value = self._find_literal(token)
        if value is None:
            self._refuse(token, _LITERAL)
        return value

    def _find_literal(self, token: _Token) -> Literal | None:
        if token.kind == "number":
            try:
                number = Decimal(token.text)
            except InvalidOperation:  # its exponent is beyond what a decimal has
                number = Decimal("inf")
            if number.copy_abs() > _LARGEST:
                self._refuse(token, "a number up to 1e308")
            return number
        if token.kind == "text":
            return token.text[1:-1].replace("''", "'")
        return {"true": True, "false": False}.get(token.word)


def _name(token: _Token) -> str:
    if token.kind == "word":
        return token.text
    quote = token.text[0]
    return token.text[1:-1].replace(quote * 2, quote)
