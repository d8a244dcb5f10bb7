"""Views of the kinds that others define: only the fields that providers read, none required."""
