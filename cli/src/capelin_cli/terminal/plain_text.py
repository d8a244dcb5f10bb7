"""Text from tenants, shown as it is."""

from rich.text import Text


def plain(text: str, style: str = "") -> Text:
    """Text without markup, in which control characters and directions of writing are visible.

    Any user can write messages of conditions: they must neither color the screen, nor move its
    cursor, nor look like something else.
    """
    return Text(printable(text), style)


def printable(text: str) -> str:
    r"""Text with escapes such as `\x1b` in place of what terminals do not show but obey."""
    return "".join(
        character if character.isprintable() or character == "\n" else _escaped(character)
        for character in text
    )


def _escaped(character: str) -> str:
    return " " if character == "\t" else character.encode("unicode_escape").decode()
