"""Variables in templates, with the meaning that clusterctl gives them."""

import re
from collections.abc import Mapping

_VARIABLE = re.compile(
    r"""
    \$(?P<escaped>\$)                         # $$ stands for $
    | \$\{\s*(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*
      (?: :?[=-] (?P<default>(?: \$\{(?: \$\{[^{}]*\} | [^{}] )*\} | (?!\$\{)[^}] )*) )?
      \}
    | (?P<foreign>\$\{[^}]*\}?)               # what of the shell's language nobody uses here
    """,
    re.VERBOSE,
)


class SubstitutionError(ValueError):
    """A template asks for what it was not given, or in a way that is not understood."""


def substitute(template: str, variables: Mapping[str, str]) -> str:
    """The template with each `${NAME}` and `${NAME:=default}` replaced.

    As for clusterctl, an empty value counts as not given when there is a default, and a default
    may be another variable: `${NAME:=${OTHER}}`.

    Raises:
        SubstitutionError: if variables without a default are missing (all are named), or an
            expression is of another form.
    """
    missing: set[str] = set()

    def replace(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        if match["foreign"]:
            msg = f"{match['foreign']} is not understood: only ${{NAME}} and ${{NAME:=default}} are"
            raise SubstitutionError(msg)
        name, default = match["name"], match["default"]
        if default is not None:
            return variables.get(name) or _VARIABLE.sub(replace, default)
        if name not in variables:
            missing.add(name)
        return variables.get(name, "")

    result = _VARIABLE.sub(replace, template)
    if missing:
        msg = f"the template needs values for {', '.join(sorted(missing))}"
        raise SubstitutionError(msg)
    return result
