"""Run reports as people see them: in the terminal and as a page of HTML."""
