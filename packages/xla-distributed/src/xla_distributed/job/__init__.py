"""The processes of a job: how they start, find and watch each other, and what they say when one fails."""
