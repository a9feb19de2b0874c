"""Recognizes texts that a person reads as numbers, such as 1.234,56 or 12 km, and suggests the options that parse them.

A column of such texts would silently be read as categories. So an error names the option instead.
"""

from __future__ import annotations

import collections
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import replace

from matex_tf.lazy import pa
from matex_tf.readers.csv import convert
from matex_tf.readers.csv.dialect import Dialect

_CURRENCIES = (
    "AED AFN AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTC BTN BWP BYN BZD CAD CDF "
    "CHF CLP CNY COP CRC CUP CVE CZK DEM DJF DKK DOP DZD EGP ERN ETB ETH EUR FJD FRF GBP GEL GHS GIP GMD GNF GTQ "
    "GYD HKD HNL HRK HTG HUF IDR ILS INR IQD IRR ISK ITL JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KZT LBP LKR LRD "
    "LSL LYD MAD MDL MGA MKD MMK MNT MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NTD NZD OMR PAB PEN PGK PHP "
    "PKR PLN PYG QAR RMB RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP SVC SYP SZL THB TJS TMT TND "
    "TRY TTD TWD TZS UAH UGX USD UYU UZS VES VND VUV WST XAF XAU XCD XOF YER ZAR ZMW"
).split()
_CYRILLIC = r"\u043b\u0432\.?|\u0440\u0443\u0431\.?"
_CURRENCY = rf"(?:{'|'.join(_CURRENCIES)}|Euros?|euros?|Rs\.?|Rp\.?|[Kk]r\.?|Fr\.?|zł|Kč|Ft|{_CYRILLIC})"
"""A currency, before or after a number."""

# SI prefixes, limited to the usual ones for each symbol: 2PC and 3d are names.
_SMALL = r"(?:da|[fpn\u00b5\u03bcumcdhk])?"
_MIDDLE = r"[n\u00b5\u03bcumk]?"
_LARGE = r"[n\u00b5\u03bcumkMGT]?"
_SYMBOLS = (
    rf"{_SMALL}(?:m|g|s|l|L|mol|bar|t|ha)"
    rf"|{_MIDDLE}(?:Ah|A|V|VA|N|K|C|F|T|sr|rad|Gy|Sv|lm|lx|kat|pc)"
    rf"|{_LARGE}(?:Hz|Pa|Wh|W|J|eV|cal|bps|\u03a9|[Oo]hms?|Bq)"
    r"|[kKMGTPE]i?(?:B|b|bit|[Bb]ytes?)|B|bits?|[Bb]ytes?|[KkM]"
    r"|secs?|seconds?|mins?|minutes?|h|hrs?|hours?|days?|wks?|weeks?|mos?|months?|y|yrs?|years?"
    r"|in|inch|inches|ft|feet|yds?|mi|miles?|lbs?|oz|gal|psi|mph|kmh|kph|kn|kt|knots?|rpm|dBm?|dBA|atm|mmHg"
    r"|ppm|ppb|px|bp|pct|percent|cents?|dollars?|bn|mn|Mio|Mrd|million|billion"
    rf"|\u5143|\u5186|\u4e07|\u842c|\u4ebf|\u5104|\u00b0[A-Z]?|{_CURRENCY}"
)
# A symbol, perhaps with an exponent: m^2, s-1 or m2. A unit has up to five of them: kg*m/s2.
_FACTOR = rf"(?:{_SYMBOLS})(?:\^[-+]?\d|-[1-4]|(?<=[a-z])[23])?"
_UNIT = rf"(?:{_FACTOR}(?:[/*\u00b7\u22c5. ]{_FACTOR}){{0,4}}\.?)"
"""A unit. A number followed by a unit, with or without a blank, counts as a number."""

_APOSTROPHES = {**dict.fromkeys(map(ord, "`\u2018\u2019\u02bc\u2032\u00b4"), "'"), 0x2033: "''", 0x201D: "''"}
_ARABIC_MARKS = {"\N{ARABIC DECIMAL SEPARATOR}": ".", "\N{ARABIC THOUSANDS SEPARATOR}": ","}
_ONE_FOR_KIND = {"Zs": " ", "Sc": "$"}  # by Unicode category: all spaces, and all signs of currencies
_PLAIN = "0-9+.eE-"  # characters of numbers that pyarrow parses

_MARKS = " '_.,\u00b7"  # between groups of digits
# Groups of three digits after the first, with one mark: 1.234.567; or groups as in India: 12,34,567.
_GROUPED = rf"(?:\d{{1,3}}(?P<mark>[{_MARKS}])\d{{3}}(?:(?P=mark)\d{{3}})*|\d{{1,2}}(?P<lakh>,)(?:\d{{2}},)+\d{{3}})"
# Groups, and decimals after a mark that differs from the mark of the groups: 1.234,56; or no groups: 12, 12.5 and .5.
_DIGITS = rf"(?:{_GROUPED}(?:(?!(?(mark)(?P=mark)|,))[.,\u00b7]\d*)?|\d+(?:[.,\u00b7]\d*)?|[.,\u00b7]\d+)"
_EXPONENT = r"(?:\s*[eEdDqQ]\s*[-+]?\d+|\s*[x\u00d7*\u00b7\u22c5]\s*10\s*(?:\^|\*\*)?\s*[-+]?\d+)?"
_SIMPLE = r"(?:\d+(?:[.,]\d*)?|[.,]\d+)"  # without groups of digits
# Hexadecimal, binary, octal and infinite numbers; complex numbers; degrees; lengths.
_OTHERS = (
    r"0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO][0-7]+|(?i:inf|infinity)|∞"
    r"|\d*[.,]\d+[-+]\d{3}"  # Fortran omits the letter of an exponent with three digits
    rf"|{_SIMPLE}{_EXPONENT}\s*[-+]\s*{_SIMPLE}?{_EXPONENT}\s*\*?[ijIJ]"
    rf"""|\d+\s*°\s*\d{{1,2}}(?:[.,]\d+)?\s*'(?:\s*\d{{1,2}}(?:[.,]\d+)?\s*(?:''|"))?\s*[NSEWO]?"""
    r"""|\d+\s*'\s*\d{1,2}(?:[.,]\d+)?\s*(?:''|")"""  # feet and inches
)
# After a number, a time of day or a month is no unit: 5 pm and 12 Jan are names.
_NO_UNIT = r"(?:(?i:[ap]\.?m\.?)|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?)(?:\s*[*†‡§]+)?$"
_NUMBER = re.compile(
    # A bound, or "about".
    r"(?:(?P<bound>[<>≤≥]=?)|[~≈=±]|(?:ca|approx)\.?\s)?\s*"
    # An apostrophe, a parenthesis, and a currency with a sign before or after it.
    rf"'?(?P<open>\()?\s*[-+]?\s*(?:[A-Z]{{0,2}}\$|{_CURRENCY})?\s*[-+]?\s*"
    # The number, perhaps with an uncertainty: 5.1 ± 0.2 or 5.1(2).
    rf"(?:{_OTHERS}|{_DIGITS}{_EXPONENT}(?:\s*(?:±|\+/?-)\s*{_SIMPLE}{_EXPONENT}|\(\d{{1,3}}\))?)"
    # A minus, a percent sign or a currency sign after the number; the closing parenthesis.
    r"\s*(?:[-%‰‱٪]|[A-Z]{0,3}\$)?\s*(?(open)\))"
    # A well-known unit, or after a blank a word that may be one.
    rf"(?(bound)|(?:(?!\s?{_NO_UNIT})(?:\s?(?P<known>{_UNIT})|\s(?P<word>[^\W\d_][\w/^*\u00b7.°-]{{0,11}})))?)"
    # A mark of a footnote.
    r"\s*(?:[*†‡§]{1,3}|\[\w\])?"
)
"""A number, normalized by `_normalize`: signs, groups of digits, exponents, currencies, percent, a unit.

A bound has no unit: <5 is a number, and >50K the name of a class.
"""
_PLAIN_NUMBER = re.compile(rf"[-+]?(?:{_DIGITS}{_EXPONENT}|(?i:inf|infinity))%?")
_DAY, _MONTH, _YEAR = r"(?:0?[1-9]|[12]\d|3[01])", r"(?:0?[1-9]|1[0-2])", r"[12]\d{3}"
_NO_NUMBER = re.compile(
    rf"{convert.ADDRESS}|{_YEAR} {_MONTH} {_DAY}|{_DAY} {_MONTH} {_YEAR}|{_MONTH} {_DAY} {_YEAR}"
    rf"|{_YEAR}\s?[qQ][1-4]|[12]\d\d0s"
)
"""IPv4 addresses, dates, quarters, and decades."""

_BETWEEN = re.compile(r"\s*[;|]\s*|,?\s+")
"""Separators between several numbers in one text, which indicate a wrong delimiter."""


def find_unit(text: str) -> str | None:
    """Whether a text is a number, and its unit if the text may also be a name.

    None: not a number, such as "abc". "": certainly one or several numbers, such as "12", or "12 km" with a well-known
    unit. A word, or one capital letter except K and M: perhaps a number with this unit, such as "A" of "1A".
    `find_usual_number` decides: numbers of a column have one unit, while 1A and 2B may be names.
    """
    if not any(letter.isnumeric() or letter in "∞fF" for letter in text):  # f: of "inf"
        return None
    normalized = _normalize(text)
    if _NO_NUMBER.fullmatch(normalized):
        return None
    match = _NUMBER.fullmatch(normalized)
    if match is not None:
        unit = match["known"] or ""
        return match["word"] or (unit if re.fullmatch("[A-JLN-Z]", unit) else "")
    parts = _BETWEEN.split(normalized)
    return "" if len(parts) > 1 and all(_PLAIN_NUMBER.fullmatch(part) for part in parts) else None


def find_usual_number(counts: Mapping[str, int]) -> str | None:
    """One of the texts that are numbers, if more than half of the rows hold numbers; else None.

    `counts`: the number of rows with each text. Of uncertain units, only the most common one counts.
    """
    units = {text: unit for text in counts if (unit := find_unit(text)) is not None}
    rows_by_unit: collections.Counter[str] = collections.Counter()
    for text, unit in units.items():
        rows_by_unit[unit] += counts[text]
    common_unit = max((unit for unit in rows_by_unit if unit), key=lambda unit: rows_by_unit[unit], default="")
    if 2 * sum(rows_by_unit[unit] for unit in {"", common_unit}) <= sum(counts.values()):
        return None
    return min(text for text, unit in units.items() if unit in ("", common_unit))


def add_counts(counts_by_rank: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up the counts of all ranks: the number of rows with each text."""
    counts: collections.Counter[str] = collections.Counter()
    for rank_counts in counts_by_rank:
        counts.update(rank_counts)
    return dict(counts)


def _normalize(text: str) -> str:
    """Replace all kinds of digits, spaces, signs, apostrophes and currencies by one character for each kind."""
    characters = []
    # Translate first: NFKC would decompose primes and acute accents.
    for letter in unicodedata.normalize("NFKC", text.translate(_APOSTROPHES)):
        category = unicodedata.category(letter)
        if category == "Cf":  # direction marks, zero-width spaces
            continue
        if category == "Nd":
            letter = str(unicodedata.decimal(letter))
        elif category == "Pd" or letter == "\N{MINUS SIGN}":
            letter = "-"
        characters.append(_ONE_FOR_KIND.get(category) or _ARABIC_MARKS.get(letter, letter))
    normalized = "".join(characters).replace("\N{FRACTION SLASH}", ".")  # by NFKC from ½; 1.2 is a number, too
    return re.sub(r"\s{3,}", "  ", normalized.strip())  # the pattern would be slow on long runs of spaces


def suggest_option(text: str, column: str, dialect: Dialect) -> str:
    """Advice for a message about a text in a column of numbers."""
    categories = f"dtype={{{column!r}: str}} reads the texts of this column as categories"
    if find_unit(text) is None:
        return f"{categories}; if {text!r} marks a missing value, pass na_values=[{text!r}]"
    if _read_text(text, dialect) is not None:
        return f'dtype={{{column!r}: "float64"}} reads this column as numbers; {categories}'
    options = _list_options(text, dialect) or _list_delimiters(text)
    if options:
        return f"{', '.join(options)}; {categories}"
    # A word, or a character that no plain number has.
    odd_part = re.search(rf"[^\W\d_]{{2,}}|[^\s{_PLAIN}]", text)
    character_name = f" ({unicodedata.name(odd_part[0], 'no name')})" if odd_part and len(odd_part[0]) == 1 else ""
    reason = f"{odd_part[0]!r}{character_name} in a number" if odd_part else "such a spelling"
    return f"no option reads {reason}: write the values as -1.5 or -1.5e+00 in the file; {categories}"


def _list_options(text: str, dialect: Dialect) -> list[str]:
    """The smallest sets of options decimal= and thousands= that parse the text, and the resulting number, as texts."""
    # The characters of the text that `_normalize` turns into one of `_MARKS`, each once.
    marks = dict.fromkeys(letter for letter in text.strip() if _normalize(f"1{letter}1")[1] in _MARKS)
    suggestions = []
    for decimal, thousands in itertools.product((dialect.decimal, ".", ","), (dialect.thousands, None, *marks)):
        if decimal == thousands:
            continue
        number = _read_text(text, replace(dialect, decimal=decimal, thousands=thousands))
        if number is None:
            continue
        options: dict[str, str | None] = {"decimal": decimal} if decimal != dialect.decimal else {}
        options |= {"thousands": thousands} if thousands != dialect.thousands else {}
        suggestion = ", ".join(f"{name}={value!r}" for name, value in options.items())
        suggestions.append((len(options), f"{suggestion} reads it as {number:.15g}"))
    fewest = min((count for count, _ in suggestions), default=0)
    return list(dict.fromkeys(suggestion for count, suggestion in suggestions if count == fewest)) if fewest else []


def _list_delimiters(text: str) -> list[str]:
    """The delimiter option that would separate the numbers of a text."""
    marks = set(_BETWEEN.findall(text.strip()))
    if _NUMBER.fullmatch(_normalize(text)) is not None or len(marks) != 1:
        return []
    mark = marks.pop()
    count = len(_BETWEEN.split(text.strip()))
    return [f"delimiter={mark!r} reads it as {count} numbers"] if len(mark) == 1 and mark.isascii() else []


@functools.lru_cache
def _read_text(text: str, dialect: Dialect) -> float | None:
    """The number that a reader with this dialect gets from the text; None if it gets an error."""
    converted = convert.convert_column(pa.array([text]), pa.float64(), dialect)
    return None if converted is None else converted[0].as_py()
