"""Hide secrets in command lines, variables and texts, by their names, before these get into a report."""

from __future__ import annotations

import re
from collections.abc import Sequence

HIDDEN = "(hidden)"

_WORDS = frozenset(
    "KEY TOKEN SECRET PASSWORD PASSWD PASSPHRASE PWD CREDENTIAL AUTH AUTHORIZATION BEARER APIKEY ACCESSKEY SECRETKEY PRIVATEKEY "
    "AUTHTOKEN ACCESSTOKEN USERPASS COOKIE".split()
)
_PLURALS = frozenset(f"{word}S" for word in _WORDS)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # api_key, api-key, apiKey, API_KEY
_LETTER = re.compile(r"^-[A-Za-z](?=[A-Za-z])")
_NUMBER = re.compile(r"[+-]?\d{1,9}(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)
"""A count, which is no secret behind a plural: `--max-tokens 512`."""
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*(=.*)?", re.DOTALL)
_ASSIGNED = re.compile(r"([^=]*[^=\s])\s*=(?!=)(.*)", re.DOTALL)
_VALUE = r"""(?:"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|(?:(?:Bearer|Basic|Token)\s+)?[^\s,;&"'{}\[\]()]+)"""
_NAMED = re.compile(rf"""(?P<name>[A-Za-z_][\w.-]*)(?P<between>["']?\s*(?:=(?!=)|:(?!//))\s*)(?P<value>{_VALUE})""", re.IGNORECASE)
_LITERAL = re.compile(
    r"""(?P<name>[A-Za-z_]\w*)(?P<between>["']?\]?\s*(?:(?::\s*[\w.|\[\] ]+)?=(?!=)|:)\s*)"""
    r"""(?P<value>[rbfuRBFU]{0,2}(["'])(?:[^\\]|\\.)*?(?:\4|$))"""
)
_URL_USER = re.compile(r"(?<=://)[^\s?#\"']*@|(?<![\w/@.-])[\w.+-]+:[^\s:@/][^\s@/]*@(?=[\w.-]+)")


def is_secret(name: str) -> bool:
    """Whether a variable or argument with this name holds a secret."""
    words = _words(name)
    return not words.isdisjoint(_WORDS) or not words.isdisjoint(_PLURALS)


def hide_value(name: str, value: str) -> str:
    """Hide a value that has the name of a secret, else only the secrets in its text."""
    return HIDDEN if _hides(name, value) else hide_in_text(value)


def hide_in_arguments(arguments: Sequence[str]) -> list[str]:
    """Hide the secrets of a command line.

    Hides X in `--token=X`, `--token X`, `token=X`, `--env TOKEN=X`, `{"token": "X"}`, and the user before the `@` of a URL. Values without
    a name, such as a second argument or `-pX`, stay.
    """
    masked: list[str] = []
    option = ""  # the last one, as long as the arguments behind it may be its values
    for argument in arguments:
        if _OPTION.fullmatch(argument):
            option = "" if "=" in argument else argument.lstrip("-")
            masked.append(_assignment(argument))
        elif option and _hides(option, argument):
            masked.append(HIDDEN)
            option = option if _is_plural(option) else ""
        else:
            option = ""
            masked.append(_assignment(argument))
    return masked


def hide_in_text(text: str) -> str:
    """Hide the values that a text, such as JSON, a header or a query, gives to names of secrets, and the users of URLs."""
    return _NAMED.sub(_without_value, _URL_USER.sub(f"{HIDDEN}@", text))


def hide_in_source(line: str) -> str:
    """Hide the literals that a line of source gives to names of secrets: `token = "X"`, `login(password="X")`."""
    return _LITERAL.sub(_without_value, _URL_USER.sub(f"{HIDDEN}@", line))


def _assignment(argument: str) -> str:
    """Hide the secrets of one argument; in `name=value`, which may be nested (`--env=TOKEN=X`), by the name."""
    parts = _ASSIGNED.fullmatch(argument)
    if parts is None:
        return hide_in_text(argument)
    name, value = parts.groups()
    return f"{name}={HIDDEN if _hides(name, value) else _assignment(value)}" if _is_name(name) else hide_in_text(argument)


def _is_name(text: str) -> bool:
    """Whether the part of an argument before `=` is a name, not just any text."""
    return re.fullmatch(r"[+~-]*[\w.,/@-]+", text) is not None


def _without_value(match: re.Match[str]) -> str:
    return f"{match['name']}{match['between']}{HIDDEN}" if _hides(match["name"], match["value"]) else match[0]


def _hides(name: str, value: str) -> bool:
    return is_secret(name) and not (_is_plural(name) and _NUMBER.fullmatch(value))


def _is_plural(name: str) -> bool:
    words = _words(name)
    return not words.isdisjoint(_PLURALS) and words.isdisjoint(_WORDS)


def _words(name: str) -> set[str]:
    # Also without the letter of an option that a name may follow at once: -DTOKEN=X.
    return {word.upper() for word in (*_WORD.findall(name), *_WORD.findall(_LETTER.sub("", name)))}
