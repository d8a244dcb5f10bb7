"""How the command talks to people: tables, checklists, waiting."""
