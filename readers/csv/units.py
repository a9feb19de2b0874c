"""Units of measure and currencies, as they stand beside numbers in texts that are written as `number_like` does."""

from __future__ import annotations

_CURRENCIES = (
    "AED AFN AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTC BTN BWP BYN BZD CAD CDF "
    "CHF CLP CNY COP CRC CUP CVE CZK DEM DJF DKK DOP DZD EGP ERN ETB ETH EUR FJD FRF GBP GEL GHS GIP GMD GNF GTQ "
    "GYD HKD HNL HRK HTG HUF IDR ILS INR IQD IRR ISK ITL JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KZT LBP LKR LRD "
    "LSL LYD MAD MDL MGA MKD MMK MNT MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NTD NZD OMR PAB PEN PGK PHP "
    "PKR PLN PYG QAR RMB RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP SVC SYP SZL THB TJS TMT TND "
    "TRY TTD TWD TZS UAH UGX USD UYU UZS VES VND VUV WST XAF XAU XCD XOF YER ZAR ZMW"
).split()
_CYRILLIC = r"\u043b\u0432\.?|\u0440\u0443\u0431\.?"
CURRENCY = rf"(?:{'|'.join(_CURRENCIES)}|Euros?|euros?|Rs\.?|Rp\.?|[Kk]r\.?|Fr\.?|zł|Kč|Ft|{_CYRILLIC})"
"""Before a number, or after it."""

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
    rf"|\u5143|\u5186|\u4e07|\u842c|\u4ebf|\u5104|\u00b0[A-Z]?|{CURRENCY}"
)
_FACTOR = rf"(?:{_SYMBOLS})(?:\^[-+]?\d|-[1-4]|(?<=[a-z])[23])?"
KNOWN = rf"(?:{_FACTOR}(?:[/*\u00b7\u22c5. ]{_FACTOR}){{0,4}}\.?)"
"""A unit that makes a number of what it follows, with a blank or without."""
