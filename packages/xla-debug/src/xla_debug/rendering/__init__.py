"""Render run reports for people: in the terminal and as a page of HTML."""
